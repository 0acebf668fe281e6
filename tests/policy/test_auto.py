"""`auto` as a whole: close to the best fixed setting, whatever it believes at first."""

from __future__ import annotations

import logging
import math
import random
from dataclasses import replace

import numpy as np
import pytest
from policy_worlds import CALM, RTX, state, step

from phasegate.cost.model import CostModel, InterferenceCost
from phasegate.engine.moment import explain_at
from phasegate.engine.record import DECODE, MIXED, PREFILL, RunRecord
from phasegate.engine.simulate import simulate
from phasegate.errors import PolicyError
from phasegate.policy.auto import FALLBACK, Auto
from phasegate.policy.base import UNLIMITED, Plan, Snapshot
from phasegate.policy.spec import build_policy
from phasegate.report.summary import summarise
from phasegate.scheduler.limits import Limits
from phasegate.workload import make_source

LIMITS = Limits(488_000, slots=512, token_budget=8192)
CHAT = "prompt=256,output=128,prompt_dist=lognormal:1,output_dist=geometric"


def wrong(cost: InterferenceCost, seed: int) -> InterferenceCost:
    """Every constant off by a factor of 0.2 to 5."""
    rng = random.Random(seed)
    values = {
        name: getattr(cost, name) * 5.0 ** rng.uniform(-1, 1)
        for name in ("alpha_p", "alpha_d", "beta_p", "b_d", "k_d")
    }
    return replace(cost, kappa=rng.uniform(1.0, 5.0), **values)


def serve(
    policy: str | Auto,
    engine: CostModel = RTX,
    *,
    belief: CostModel | None = None,
    workload: str = CHAT,
    concurrency: int | None = 128,
    rate: float | None = None,
    requests: int = 2500,
    limits: Limits = LIMITS,
) -> RunRecord:
    if isinstance(policy, str):
        built = build_policy(policy, engine if belief is None else belief, limits)
    else:
        built = policy
    source = make_source(workload, concurrency=concurrency, rate=rate, requests=requests, seed=11)
    record = simulate(engine, source, built, limits)
    assert record.counts["finished"] == requests
    if isinstance(built, Auto):
        assert built.error == ""
    return record


def throughput(record: RunRecord) -> float:
    return record.counts["finished"] / record.duration


def auto(spec: str = "auto", cost: CostModel | None = RTX, limits: Limits = LIMITS) -> Auto:
    policy = build_policy(spec, cost, limits)
    assert isinstance(policy, Auto)
    return policy


@pytest.mark.parametrize("engine", [RTX, CALM], ids=["interference", "no interference"])
@pytest.mark.parametrize("belief", ["wrong", "none"])
def test_close_to_the_best_fixed_setting(engine: InterferenceCost, belief: str) -> None:
    fixed = [throughput(serve("mixed", engine))]
    fixed += [throughput(serve(f"exclusive:k={k},max_hold=none", engine)) for k in (3, 6, 12)]
    prior = wrong(engine, 5) if belief == "wrong" else None
    own = throughput(serve(auto(cost=prior), engine))
    assert own > 0.99 * max(fixed)


def test_needs_no_profile_where_others_do() -> None:
    assert build_policy("auto", None, LIMITS).spec == "auto"
    assert build_policy("mixed", None, LIMITS).spec == "mixed"
    for spec in ("threshold", "hybrid"):
        with pytest.raises(PolicyError, match="give a profile"):
            build_policy(spec, None, LIMITS)


@pytest.mark.parametrize("bad", ["itl=0", "ttft=-1", "itl=inf", "itl=fast", "k=3"])
def test_bad_options_are_refused_in_one_line(bad: str) -> None:
    with pytest.raises(PolicyError) as caught:
        build_policy(f"auto:{bad}", RTX, LIMITS)
    assert "\n" not in str(caught.value)


def test_the_mode_follows_the_engine() -> None:
    for engine, kind, other in ((RTX, PREFILL, MIXED), (CALM, MIXED, PREFILL)):
        kinds = serve("auto", engine).iterations["kind"]
        later = kinds[len(kinds) // 2 :]
        assert (later == kind).sum() > 5 * (later == other).sum()
        assert (later == DECODE).any()


def test_few_preemptions_where_kv_is_tight() -> None:
    """Scenario 5 in small: without a margin most requests would be preempted."""
    limits = Limits(36_000, slots=128, token_budget=8192)
    workload = "prompt=100,output=500,output_dist=uniform:0.5"
    careless = serve("mixed", workload=workload, requests=600, limits=limits)
    careful = serve("auto", workload=workload, requests=600, limits=limits)
    assert careless.requests["preemptions"].sum() > 1000
    assert careful.requests["preemptions"].sum() < 30
    assert throughput(careful) > 1.05 * throughput(careless)


TIGHT = {  # workload, concurrency, KV tokens, requests
    "long tails": (
        "prompt=2000,output=600,output_dist=lognormal:1.5,prompt_dist=lognormal:2", 128, 60_000, 700
    ),
    "geometric": ("prompt=1000,output=300,output_dist=geometric", 128, 20_000, 400),
    "a handful": ("prompt=512,output=256,prompt_dist=lognormal:3", 8, 2000, 200),
}  # fmt: skip


@pytest.mark.parametrize("cell", TIGHT)
def test_not_slower_than_mixed_batching_where_kv_holds_a_few(cell: str) -> None:
    """A margin would leave slots empty that are worth more than a preemption now and then."""
    workload, concurrency, kv, requests = TIGHT[cell]
    limits = Limits(kv, slots=512, token_budget=8192)
    rates = []
    for policy in ("mixed", "auto"):
        source = make_source(workload, concurrency=concurrency, requests=requests, seed=0)
        record = simulate(RTX, source, build_policy(policy, RTX, limits), limits)
        rates.append(throughput(record))
    assert rates[1] >= 0.985 * rates[0]


def test_requests_that_come_by_themselves_do_not_wait_for_company() -> None:
    """Open loop at a moderate load: first tokens come as soon as with mixed batching."""
    mixed = summarise(serve("mixed", concurrency=None, rate=9.0, requests=1500))
    own = summarise(serve("auto", concurrency=None, rate=9.0, requests=1500))
    assert own["ttft_s"]["mean"] < 1.05 * mixed["ttft_s"]["mean"]
    assert own["e2e_s"]["mean"] < 1.02 * mixed["e2e_s"]["mean"]


@pytest.mark.parametrize("itl", [0.05, 0.1])
def test_keeps_an_itl_target(itl: float) -> None:
    workload = "prompt=2000,output=100,prompt_dist=lognormal:1,output_dist=geometric"
    bare = summarise(serve("auto", workload=workload, requests=800))
    kept = summarise(serve(f"auto:itl={itl},ttft=2", workload=workload, requests=800))
    assert bare["itl_s"]["p99"] > itl
    assert kept["itl_s"]["p99"] <= itl
    assert kept["itl_s"]["p99"] > 0.7 * itl, "and makes use of it"


def test_a_batch_class_does_not_have_to_keep_the_target_of_the_others() -> None:
    """Interactive requests keep their 50 ms; while only batch runs, refills are whole again."""
    limits = replace(LIMITS, order="priority")
    spec = "auto:itl=0:0.05/5:none,ttft=0:2/5:none"
    workload = "prompt=2000,output=100,prompt_dist=lognormal:1,output_dist=geometric,priority="
    p99 = []
    for classes in ("1:5", "0.3:5"):
        summary = summarise(serve(spec, workload=workload + classes, requests=500, limits=limits))
        p99.append(summary["itl_s"]["p99"])
    assert p99[0] > 0.2
    assert p99[1] <= 0.05


def test_max_hold_is_kept() -> None:
    """Nobody waits longer than that for a refill, though larger refills would cost less."""
    ample = Limits(10_000_000, slots=512, token_budget=8192)
    long = serve("auto:max_hold=none", concurrency=256, limits=ample)
    short = serve("auto:max_hold=0.02", concurrency=256, limits=ample)
    waits = []
    for record in (long, short):
        wait = record.requests["admitted"] - record.requests["arrival"]
        waits.append(np.quantile(wait[len(wait) // 2 :], 0.9))
    assert waits[1] < 0.12 < 0.25 < waits[0]


def test_decisions_are_few() -> None:
    """Records keep each change of mode, k and N: they must not follow every wiggle."""
    record = serve("auto")
    refills = (np.diff(record.iterations["kind"]) != 0).sum() / 2
    assert len(record.decisions) < 0.2 * refills


class BugError(Exception):
    """What tests throw."""


@pytest.mark.parametrize("where", ["plan", "observe"])
def test_an_internal_error_leaves_mixed_batching(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
    policy = auto()
    healthy, calls = getattr(policy.rule, where), iter(range(10**9))

    def failing(argument: object) -> object:
        if next(calls) >= 500:
            raise BugError("a bug")
        return healthy(argument)

    setattr(policy.rule, where, failing)
    source = make_source(CHAT, concurrency=128, requests=2000, seed=11)
    with caplog.at_level(logging.ERROR, logger="phasegate"):
        record = simulate(RTX, source, policy, LIMITS)
    assert record.counts["finished"] == 2000
    assert [r.message for r in caplog.records] == [
        "auto: plain mixed batching from now on, because of BugError: a bug"
    ]
    assert policy.decision.mode == record.decisions[-1][1].mode == FALLBACK
    assert "BugError: a bug" in policy.explain()[0]


def test_a_number_that_is_not_finite_leaves_mixed_batching() -> None:
    policy = auto()
    policy.rule.cost._theta[0] = math.nan
    policy.rule.cost.version += 1
    waiting = state(waiting=[500] * 8, decoding=20, context=20_000, oldest_wait=1.0)
    plan = policy.plan(waiting)
    assert policy.error
    assert plan.decode
    assert plan.admit > 0
    assert plan.prefill_tokens > 0
    policy.observe(step(decodes=20))
    assert policy.decision.mode == FALLBACK


def test_an_urgent_request_starts_a_refill() -> None:
    policy = auto()
    policy.plan(state(decoding=50, context=50_000))
    policy.observe(step(decodes=50, context=50_000))
    plan = policy.plan(state(waiting=[100], decoding=50, context=50_000, urgent=True))
    assert plan.admit >= 1
    assert plan.prefill_tokens > 0


def test_prompts_that_are_under_way_are_finished_though_nobody_waits() -> None:
    """Scenario 3: a gate that looks at the queue alone would never prefill them."""
    policy = auto()
    plan = policy.plan(state(prefilling=3, pending=90_000, decoding=5, context=5000))
    assert plan.prefill_tokens > 0
    assert plan.admit == 0


def test_decoding_goes_on_without_looking_when_nothing_can_change() -> None:
    policy = auto()
    for _ in range(100):
        policy.plan(state(decoding=8, context=8000))
        policy.observe(step(decodes=8, context=8000, iterations=4))
    assert 1 < policy.plan(state(decoding=8, context=8000)).repeat <= 64 < UNLIMITED


def test_explains_itself_at_any_moment() -> None:
    everything = ""
    for moment in (0.0, 0.5, 20.0):
        source = make_source(CHAT, concurrency=128, requests=2000, seed=11)
        lines = explain_at(moment, RTX, source, auto("auto:itl=0.2"), LIMITS)
        text = "\n".join(lines)
        everything += text
        assert lines[0].startswith("at ")
        assert "running with" in text
        assert "ITL target" in text
        assert "learned from" in text
        assert "safety net" in text
    assert "exclusive" in everything
    assert all(len(line) < 300 for line in lines)


def test_says_why_it_takes_the_dearer_way(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, reasons = auto(), []
    plan = policy.plan

    def watched(now: Snapshot) -> Plan:
        answer, choice = plan(now), policy.rule.choice
        if choice.refill is not None and choice.action != "decode" and choice.running:
            cheaper = "exclusive" if choice.refill.is_exclusive else "mixed"
            if choice.action != cheaper:
                reasons.append(choice.reason)
        return answer

    monkeypatch.setattr(policy, "plan", watched)
    serve(policy)
    assert reasons
    assert all("to measure" in reason or "to compare" in reason for reason in reasons)


def test_explaining_a_moment_after_the_end() -> None:
    source = make_source(CHAT, concurrency=4, requests=10, seed=11)
    lines = explain_at(1e6, RTX, source, auto(), LIMITS)
    assert lines[-1].startswith("all requests had ended by")
