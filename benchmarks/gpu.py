"""The embedded engine on one GPU: is it right, what does an iteration cost, which policy wins?

    python benchmarks/gpu.py --out gpu.json     # under 6 minutes; needs no network and no files
    python benchmarks/gpu.py --toy              # the same on a CPU with a tiny model, in seconds

A model in the shape of Qwen3-8B with random weights, bfloat16, made on the device. In order: the
decode kernel against attention written out; the whole model against itself before our kernels
went in (the engine refuses to start otherwise), and captured decodes against eager ones; the
constants of an iteration at contexts 512 and 2048; then mixed batching (MB), exclusive batching
(EB, the `threshold` policy) and `hybrid` on 512 prompt and 256 output tokens, with as many slots
as fit. The runs begin in the middle: the first prompts are declared present in KV, since what KV
holds does not change how long an iteration takes.

Every stage has a time limit. What was measured is printed and written whatever happens later; a
stage that hangs ends the script with exit code 3, a kernel that computes something else ends it
with 1 before anything is measured.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from harness import draw_requests, markdown

from phasegate.calibrate import Design, Sample, fit_interference
from phasegate.cost.model import CostModel, InterferenceCost
from phasegate.cost.profile import load_profile
from phasegate.engine.clock import Clock, VirtualClock, WallClock
from phasegate.engine.costmodel import CostModelRunner
from phasegate.engine.loop import Engine
from phasegate.engine.record import Recorder, RunRecord
from phasegate.engine.step import Runner
from phasegate.files import write_atomic
from phasegate.model.attention import DecodeKernels, PackedStep
from phasegate.model.kv_memory import LayerShape
from phasegate.model.loading import LoadedModel, load_model
from phasegate.model.measured import PromptSource, device_name, measure_samples
from phasegate.model.runner import TorchRunner
from phasegate.policy.spec import build_policy
from phasegate.scheduler.limits import Limits
from phasegate.scheduler.scheduler import Scheduler
from phasegate.workload import RequestTable, source_of
from phasegate.workload.source import Source

POLICIES = {"MB": "mixed:n=safe", "EB": "threshold", "hybrid": "hybrid"}
PAGE = 64
TOLERANCE = {torch.bfloat16: 3e-2, torch.float32: 1e-4}
"""Largest difference of the kernel's numbers (about 1 in size) that is rounding."""


@dataclass(frozen=True)
class Size:
    """What to run. Seconds: `calibrate` and `run` are measured for so long; `limits` end the
    stages (check, model, engine, calibrate, each run)."""

    model: dict[str, int]
    dtype: torch.dtype
    device: str
    slots: int
    kv_tokens: int | None
    budget: int
    design: Design
    prompt: int
    output: int
    calibrate: float
    run: float
    limits: dict[str, float]


FULL = Size(
    model={
        "vocab_size": 151_936,
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40_960,
    },
    dtype=torch.bfloat16,
    device="cuda",
    slots=1024,
    kv_tokens=None,
    budget=8192,
    design=Design((512, 2048), (1, 8, 32, 64, 128, 256), (256, 1024, 4096), (0, 1024), 4),
    prompt=512,
    output=256,
    calibrate=40.0,
    run=30.0,
    limits={"check": 40.0, "model": 50.0, "engine": 60.0, "calibrate": 65.0, "run": 40.0},
)
TOY = Size(
    model={
        "vocab_size": 500,
        "hidden_size": 96,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 2048,
    },
    dtype=torch.float32,
    device="cpu",
    slots=16,
    kv_tokens=8192,
    budget=256,
    design=Design((64, 512), (1, 4, 8), (16, 64), (0, 64), 2),
    prompt=32,
    output=8,
    calibrate=0.5,
    run=0.3,
    limits=dict.fromkeys(("check", "model", "engine", "calibrate", "run"), 60.0),
)


@dataclass
class Report:
    """What has been found so far: told at once, and in full by `finish`, whatever happens."""

    out: Path | None
    rows: list[list[str]] = field(default_factory=list)
    results: dict[str, Any] = field(default_factory=dict)
    failed: bool = False

    def add(self, name: str, value: float | str, unit: str = "", note: str = "") -> None:
        """A line of the table, and an entry `name` of the JSON."""
        shown = value if isinstance(value, str) else f"{value:,.4g}"
        number = value if isinstance(value, str) or math.isfinite(value) else None
        self.results[name] = {"value": number, "unit": unit, "note": note}
        self.rows.append([name, f"{shown} {unit}".strip(), note])
        print(f"{name}: {shown} {unit} {note}", file=sys.stderr, flush=True)

    @contextmanager
    def stage(self, name: str, limit: float) -> Iterator[None]:
        """Note how long a stage takes and why it fails; end the script if it hangs."""

        def give_up() -> None:
            self.add(f"{name} failed", f"not done after {limit:.0f} s")
            self.finish()
            os._exit(3)

        timer = threading.Timer(limit, give_up)
        timer.daemon = True
        timer.start()
        began = time.perf_counter()
        try:
            yield
        except Exception as error:
            self.failed = True
            self.add(f"{name} failed", f"{type(error).__name__}: {str(error).splitlines()[0]}")
            raise
        finally:
            timer.cancel()
            self.results[f"{name}, seconds"] = round(time.perf_counter() - began, 2)

    def finish(self) -> None:
        """Print the table, write the JSON."""
        print(markdown(["", "result", "note"], self.rows), flush=True)
        if self.out is not None:
            write_atomic(self.out, json.dumps(self.results, indent=2) + "\n")


class WrongResultError(RuntimeError):
    """Something computes other numbers than it should."""


# ---------------------------------------------------------------- correctness
@torch.inference_mode()
def kernel_error(size: Size) -> float:
    """Largest difference between the decode kernel and attention written out in float64."""
    device, m = torch.device(size.device), size.model
    heads, kv_heads, dim = m["num_attention_heads"], m["num_key_value_heads"], m["head_dim"]
    shape = LayerShape(heads, kv_heads, dim, dim)
    kernel = DecodeKernels([shape], size.dtype, device).of(shape)
    if kernel is None:
        raise WrongResultError("there is no decode kernel for this device (is Triton installed?)")
    generator = torch.Generator().manual_seed(0)

    def numbers(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, generator=generator).to(device, size.dtype)

    worst = 0.0
    for lengths in ([1, 2, 63, 64, 65, 700], [2049], [300 + i for i in range(80)]):
        rows = len(lengths)
        region = max(lengths)
        keys, values = numbers(kv_heads, rows * region, dim), numbers(kv_heads, rows * region, dim)
        q = numbers(rows, heads, dim)
        new_k, new_v = numbers(rows, kv_heads, dim), numbers(rows, kv_heads, dim)
        starts = torch.arange(rows, device=device) * region
        count = torch.tensor(lengths, device=device)
        out = torch.empty_like(q)
        kernel(q, new_k, new_v, keys, values, starts, count, dim**-0.5, 0, out)
        at = starts + count - 1
        if not torch.equal(keys[:, at], new_k.transpose(0, 1)):
            raise WrongResultError("the decode kernel stores new keys in the wrong place")
        for row, n in enumerate(lengths):
            span = slice(row * region, row * region + n)
            k, v = (x[:, span].repeat_interleave(heads // kv_heads, 0) for x in (keys, values))
            scores = torch.einsum("hd,htd->ht", q[row].double(), k.double()) * dim**-0.5
            exact = torch.einsum("ht,htd->hd", scores.softmax(-1), v.double())
            worst = max(worst, float((out[row] - exact).abs().max()))
    return worst


@torch.inference_mode()
def graph_error(runner: TorchRunner) -> float | None:
    """Largest relative difference between captured and eager decodes; None without graphs."""
    graphs, memory, kernels = runner._graphs, runner._memory, runner._kernels
    if graphs is None:
        return None
    model = runner.loaded.model
    dice = np.random.default_rng(0)
    memory.fill(0, memory.tokens)
    worst = 0.0
    for n in (1, 3, 17, 100, graphs.largest):
        tokens = dice.integers(0, model.config.vocab_size, n)
        starts = np.arange(n, dtype=np.int64) * PAGE
        lengths = dice.integers(1, PAGE + 1, n)
        captured = graphs.run(tokens, starts, lengths).float().clone()
        on_device = [torch.from_numpy(x).to(model.device) for x in (tokens, starts, lengths)]
        ids, start, length = on_device
        step = PackedStep(memory, kernels, n, start, length, [])
        eager = model(
            input_ids=ids[None], position_ids=length[None] - 1, use_cache=False, step=step
        ).logits[0]
        worst = max(worst, float((captured - eager).norm() / eager.float().norm()))
    return worst


# ---------------------------------------------------------------- measuring
def random_model(size: Size) -> LoadedModel:
    """The model, its weights drawn on the device."""
    config = transformers.Qwen3Config(**size.model, tie_word_embeddings=False)
    torch.manual_seed(0)
    with torch.device(size.device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=size.dtype)
    return load_model(model)


def kappa_at(samples: list[Sample], cost: InterferenceCost, context: int) -> float:
    """Factor on decode attention in mixed iterations at one context length."""
    found = []
    for s in samples:
        if s.decodes and s.prefill_tokens and abs(s.context_tokens / s.decodes / context - 1) < 0.1:
            attention = cost.k_d * s.context_tokens
            rest = cost.seconds(s.prefill_tokens, s.prefill_attention, s.decodes, 0.0)
            found.append((s.seconds - rest) / max(attention, 1e-12))
    return float(np.median(found)) if found else float("nan")


def calibrate(size: Size, runner: TorchRunner, limits: Limits, report: Report) -> InterferenceCost:
    """Measure iterations, fit, report."""
    samples = measure_samples(runner, limits, size.calibrate, design=size.design)
    fit = fit_interference(samples)
    cost = fit.cost
    quality = f"R^2 {fit.r2:.4f}, typical error {fit.typical:.1%}, {fit.samples} iterations"
    report.add("alpha_d", cost.alpha_d * 1e3, "ms", quality)
    report.add("alpha_p", cost.alpha_p * 1e3, "ms")
    report.add("beta_p", cost.beta_p * 1e6, "us/token")
    report.add("b_d", cost.b_d * 1e6, "us/request")
    report.add("k_d", cost.k_d * 1e9, "ns/token")
    report.add("kappa", cost.kappa)
    for context in size.design.contexts:
        report.add(f"kappa at {context}", kappa_at(samples, cost, context))
    alone = [s.seconds for s in samples if s.decodes == 1 and not s.prefill_tokens]
    if alone:
        report.add("one decode", float(np.median(alone)) * 1e3, "ms", "median iteration")
    return cost


def serve(
    runner: Runner,
    clock: Clock,
    policy: str,
    cost: CostModel,
    limits: Limits,
    source: Source,
    seconds: float,
) -> RunRecord:
    """Serve `source` for so long, the first requests from the middle of their lives; then drop
    what is left."""
    recorder = Recorder()
    engine = Engine(build_policy(policy, cost, limits), Scheduler(limits), runner, clock, recorder)
    told = 0
    while (now := clock.now()) < seconds:
        for request in source.take(now):
            if request.id < limits.running:
                request.prefilled = request.prompt - 1
            engine.submit(request)
        if not engine.step(source.next_arrival()):
            break
        if engine.ended > told:
            source.finished(engine.ended - told, clock.now())
            told = engine.ended
    duration = clock.now()
    for request_id in list(engine.scheduler.requests):
        engine.abort(request_id)
    return recorder.record(
        policy=policy,
        profile="",
        workload=source.label,
        kv_capacity=limits.kv_capacity,
        slots=limits.running,
        submitted=engine.submitted,
        duration=duration,
    )


def token_rate(record: RunRecord) -> float:
    """Tokens processed per second, prompt and output, without the first sixth of the run."""
    it = record.iterations
    late = it["start"] >= it["start"][-1] / 6
    tokens = it["prefill_tokens"][late].sum() + it["decodes"][late].sum()
    return float(tokens / it["duration"][late].sum())


def run_policies(
    size: Size, runner: TorchRunner, limits: Limits, cost: CostModel, report: Report
) -> None:
    """Serve the workload under each policy; report measured against simulated."""
    workload = f"prompt={size.prompt},output={size.output},prompt_dist=uniform:0.5"
    lone = cost.seconds(size.prompt, 0.0, 0, 0.0) - cost.alpha_prefill
    lone += cost.alpha_decode * size.output / limits.running
    requests = limits.running + int(4 * size.run / lone)  # more than can be served in the time
    table: RequestTable = draw_requests(
        f"{workload},output_dist=geometric", requests=min(requests, 100_000),
        concurrency=limits.running,
    )  # fmt: skip
    for title, policy in POLICIES.items():
        with suppress(Exception), report.stage(title, size.limits["run"]):
            prompts = PromptSource(source_of(table), size.model["vocab_size"])
            real = serve(runner, WallClock(), policy, cost, limits, prompts, size.run)
            source = source_of(table)
            guess = serve(
                CostModelRunner(cost), VirtualClock(), policy, cost, limits, source, size.run
            )
            measured, predicted = token_rate(real), token_rate(guess)
            note = f"{predicted:,.0f} simulated ({predicted / measured - 1:+.1%})"
            report.add(title, measured, "tokens/s", f"{note}; {real.counts['finished']} finished")


def fitting_slots(size: Size, kv_tokens: int) -> int:
    """Slots for requests at their mean length, page by page."""
    return min(size.slots, kv_tokens // (size.prompt + size.output + PAGE))


def attempt(size: Size, report: Report) -> int:
    """All stages; the exit code."""
    report.add("device", device_name(torch.device(size.device)), "", f"torch {torch.__version__}")
    began = time.perf_counter()
    with report.stage("kernel check", size.limits["check"]):
        error = kernel_error(size)
        report.add("kernel, largest difference", error)
        if not error <= TOLERANCE[size.dtype]:
            raise WrongResultError("the decode kernel computes something else")
    with report.stage("model", size.limits["model"]):
        loaded = random_model(size)
    with report.stage("engine", size.limits["engine"]):
        runner = TorchRunner(loaded, size.kv_tokens, PAGE, size.slots)
        captured = graph_error(runner)
        if captured is None:
            report.add("CUDA graphs", "none")
        else:
            report.add("CUDA graphs, largest difference", captured)
            if not captured <= 0.05:
                raise WrongResultError("captured decodes compute something else")
    slots = fitting_slots(size, runner.kv_tokens)
    report.add("KV cache", float(runner.kv_tokens), "tokens", f"{slots} slots")
    limits = Limits(runner.kv_tokens, slots=slots, token_budget=size.budget, page=PAGE)
    cost: CostModel = load_profile("h200/qwen3-8b").cost_model()  # if it cannot be measured
    with suppress(Exception), report.stage("calibrate", size.limits["calibrate"]):
        cost = calibrate(size, runner, limits, report)
    run_policies(size, runner, limits, cost, report)
    report.add("total", time.perf_counter() - began, "s")
    return int(report.failed)


def main(argv: list[str] | None = None) -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--toy", action="store_true", help="tiny model on the CPU")
    options = parser.parse_args(argv)
    if not options.toy and not torch.cuda.is_available():
        print("PyTorch finds no CUDA GPU; try --toy", file=sys.stderr)
        return 2
    report = Report(options.out)
    try:
        return attempt(TOY if options.toy else FULL, report)
    except Exception as error:  # the stage has told
        print(f"stopped: {error}", file=sys.stderr)
        return 1
    finally:
        report.finish()


if __name__ == "__main__":
    sys.exit(main())
