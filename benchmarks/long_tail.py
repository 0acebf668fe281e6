"""What continuous batching gains over static batching on a long tail: predicted and measured.

    python benchmarks/long_tail.py            # about 4 minutes on 2 idle cores, demo model
    python benchmarks/long_tail.py --quick    # fewer requests, and so a smaller gain

Most answers are a word (1 to 3 tokens), one in 32 is a text of 320. A static batch of 32 runs until
its longest answer has ended, mostly with one request in it; `mixed` and `hybrid` fill every slot
that becomes free. The simulator, with costs measured before, between and after the runs, predicts a
gain in requests/s of more than 5; the real engine has to show it within 15 %.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
from fidelity import drift, serve
from harness import markdown, parser, publish

from phasegate.calibrate.fit import Sample, fit_interference
from phasegate.engine.simulate import simulate
from phasegate.model import measured
from phasegate.model.demo import demo_model
from phasegate.model.loading import load_model
from phasegate.model.runner import TorchRunner
from phasegate.model.threads import set_threads
from phasegate.policy.spec import build_policy
from phasegate.scheduler.limits import Limits
from phasegate.workload import RequestTable, source_of
from phasegate.workload.arrivals import ClosedLoop

SLOTS = 32
POLICIES = ("mixed", "hybrid", f"static:n={SLOTS}")
PROMPT, WORDS, TEXT, ONE_IN = 8, (1, 3), 320, 32


def long_tail(requests: int, seed: int = 0) -> RequestTable:
    """The workload, two requests waiting for each slot. No text begins among the last eighth, so
    that the run does not end with one request alone, which no policy can help."""
    dice = np.random.default_rng(seed)
    output = dice.integers(WORDS[0], WORDS[1] + 1, requests)
    texts = dice.random(requests) < 1 / ONE_IN
    texts[-(requests // 8) :] = False
    output[texts] = TEXT
    table = RequestTable.of(np.full(requests, PROMPT), output, label="long tail")
    return replace(table, loop=ClosedLoop(((0, 3 * SLOTS),)))


def main() -> None:
    """Run and print."""
    options = parser(__doc__ or "")
    options.add_argument("--threads", type=int, help="CPU threads (default: all usable cores)")
    options.add_argument("--calibrate", type=float, default=15.0, help="seconds per block")
    options.add_argument("--requests", type=int, default=0, help="per run")
    arguments = options.parse_args()
    set_threads(arguments.threads)
    table = long_tail(arguments.requests or (256 if arguments.quick else 768))
    runner = TorchRunner(load_model(demo_model()), kv_tokens=64 * 1024, page=256, slots=SLOTS)
    limits = Limits(runner.kv_tokens, slots=SLOTS, token_budget=1024, page=runner.page)

    blocks: list[list[Sample]] = [measured.measure_samples(runner, limits, arguments.calibrate)]
    real, guess = [], []
    for turn, policy in enumerate(POLICIES, 1):
        prior = fit_interference(blocks[-1]).cost
        real.append(serve(runner, limits, prior, policy, table).record.duration)
        blocks.append(measured.measure_samples(runner, limits, arguments.calibrate, seed=turn))
        cost = fit_interference([*blocks[-2], *blocks[-1]]).cost
        chosen = build_policy(policy, prior, limits)
        guess.append(simulate(cost, source_of(table), chosen, limits).duration)
    rows = []
    for policy, measured_s, predicted_s in zip(POLICIES, real, guess, strict=True):
        gains = real[-1] / measured_s, guess[-1] / predicted_s
        rows.append(
            [
                f"`{policy}`",
                f"{measured_s:.1f}",
                f"{predicted_s:.1f}",
                f"{gains[0]:.2f}x",
                f"{gains[1]:.2f}x",
                f"{100 * (gains[1] / gains[0] - 1):+.1f} %",
            ]
        )
    head = [
        f"{len(table)} requests, {table.output.mean():.1f} output tokens on average",
        "measured, s",
        "predicted, s",
        "gain over static, measured",
        "predicted",
        "apart",
    ]
    publish(
        "long_tail", sys.argv[1:], f"{markdown(head, rows)}\n\n{drift(blocks)}", arguments.write
    )


if __name__ == "__main__":
    main()
