"""The scenarios of DESIGN.md that every policy has to survive, one test each, in virtual time on
the constants of an RTX PRO 6000 (KV for 488,000 tokens unless the scenario says otherwise).

All invariants are checked after every step (see `invariants.py`), except in long runs.
"""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
from invariants import CheckedEngine, check_itl, check_record, checked_simulation, record_of

from phasegate.cost.profile import load_profile
from phasegate.engine.record import RunRecord
from phasegate.engine.simulate import simulate
from phasegate.policy.spec import MAX_HOLD, MAX_STALL, POLICIES, build_policy
from phasegate.scheduler.limits import Limits
from phasegate.scheduler.request import Request, State
from phasegate.workload import RequestTable, make_source, source_of

PROFILE = load_profile("rtx-pro-6000/qwen3-8b")
COST = PROFILE.cost_model()
KV = PROFILE.kv_capacity_tokens
BUDGET = Limits(KV).token_budget

EXCLUSIVE = (
    "exclusive:k=1",
    "exclusive:k=16",
    "exclusive:theta=0.3",
    "threshold",
    "threshold:rule=paper",
)
CONTINUOUS = (
    "mixed",
    "mixed:n=safe",
    *EXCLUSIVE,
    "hybrid",
    "hybrid:rule=paper",
    *(["auto"] if "auto" in POLICIES else []),
)
EVERY = (*CONTINUOUS, "static:n=16")

continuous = pytest.mark.parametrize("spec", CONTINUOUS)
every = pytest.mark.parametrize("spec", EVERY)


def with_options(spec: str, options: str) -> str:
    return f"{spec}{',' if ':' in spec else ':'}{options}"


def engine_for(spec: str, limits: Limits) -> CheckedEngine:
    exclusive = spec.startswith((*EXCLUSIVE, "static"))
    return checked_simulation(build_policy(spec, COST, limits), limits, COST, exclusive=exclusive)


def serve(spec: str, table: RequestTable, limits: Limits | None = None) -> RunRecord:
    """Serve a table to its end, checking everything after every step."""
    engine = engine_for(spec, limits or Limits(KV))
    engine.run(source_of(table))
    engine.check_drained()
    record = record_of(engine)
    check_record(record)
    check_itl(engine, record)
    return record


def in_order(record: RunRecord, name: str) -> list[float]:
    """A column of the requests, by id."""
    column = record.requests[name][np.argsort(record.requests["id"])]
    return [float(value) for value in column]


def ttfts(record: RunRecord) -> list[float]:
    first, arrival = in_order(record, "first_token"), in_order(record, "arrival")
    return [f - a for f, a in zip(first, arrival, strict=True)]


def itls(record: RunRecord, request: int) -> np.ndarray:
    (row,) = np.flatnonzero(record.requests["id"] == request)
    return record.itl_values(int(row))


def prefill_seconds(*prompts: int) -> float:
    """Seconds to prefill these prompts alone."""
    tokens = sum(prompts)
    return sum(
        COST.seconds(min(BUDGET, tokens - done), 0.0, 0, 0) for done in range(0, tokens, BUDGET)
    )


def iterations_between_decodes(record: RunRecord) -> int:
    """The most iterations from one that decodes to the next that does."""
    return int(np.diff(np.flatnonzero(record.iterations["kind"] != 0)).max())


@continuous
def test_1_a_very_long_prompt_meets_a_long_decode(spec: str) -> None:
    """A: 4,094 in, 8,192 out is decoding; B: 65,535 in arrives. At a time A waits for the prefill
    of B or for one full mixed iteration, no longer; B for its own prefill and the guard."""
    table = RequestTable.of([4094, 65535], [8192, 200], arrival=[0.0, 20.0])
    record = serve(spec, table)
    alone = prefill_seconds(65535)
    full_iteration = COST.seconds(BUDGET - 1, 0.0, 1, 4094 + 8192)
    longest = itls(record, 0).max()
    assert longest <= alone + full_iteration
    if spec.startswith(("mixed", "hybrid")):
        assert longest <= full_iteration
    assert ttfts(record)[1] <= 1.1 * alone + MAX_HOLD + full_iteration


@continuous
def test_2_decodes_keep_going_against_a_stream_of_prompts(spec: str) -> None:
    """36 decodes, and 3-6k prompts at two per second for the 12 other slots. Decodes run at
    least every K iterations, where a refill of all 12 takes K - 1."""
    rng = random.Random(2)
    prompts = [rng.randrange(3000, 6000) for _ in range(60)]
    table = RequestTable.of(
        [500] * 36 + prompts,
        [3000] * 36 + [200] * 60,
        arrival=[0.0] * 36 + [2 + 0.5 * i for i in range(60)],
    )
    record = serve(spec, table, Limits(KV, slots=48))
    k = 1 + -(-12 * 6000 // BUDGET)
    assert iterations_between_decodes(record) <= k
    assert itls(record, 0).max() <= prefill_seconds(12 * 6000) + 0.5
    if spec == "mixed":
        assert iterations_between_decodes(record) == 1


@continuous
def test_3_the_gate_works_with_an_empty_queue(spec: str) -> None:
    """Four prompts of 32k run beside 8 decodes, a quarter of the budget each, and nothing waits:
    it is only running requests that the phases have to keep apart (I8 is checked)."""
    table = RequestTable.of(
        [500] * 8 + [32_000] * 4, [1000] * 8 + [200] * 4, arrival=[0.0] * 8 + [3.0] * 4
    )
    record = serve(with_options(spec, f"chunk={BUDGET // 4}"), table)
    it = record.iterations
    during = (it["start"] > 3.1) & (it["prefill_tokens"] > 0)
    assert during.sum() >= 4 * 32_000 // BUDGET
    if "safe" not in spec and spec not in ("threshold", "hybrid", "auto"):  # N may be smaller
        assert it["waiting"][during].max() == 0
    first = ttfts(record)[8:]
    assert first == sorted(first), "first come, first served"
    assert first[-1] <= 1.1 * prefill_seconds(4 * 32_000) + MAX_HOLD + 1.0


def test_4_few_decodes_and_long_prompts_are_for_exclusive_batching() -> None:
    """Three 32k prompts at a time, 64 tokens each: their long contexts make mixed iterations
    dear. Whoever can choose comes out close to the best."""
    table = RequestTable.of([32_000] * 60, [64] * 60).closed(3)
    limits = Limits(KV, token_budget=2048)

    def seconds(spec: str) -> float:
        return simulate(COST, source_of(table), build_policy(spec, COST, limits), limits).duration

    mixed, exclusive = seconds("mixed"), seconds("exclusive:k=1")
    assert exclusive < 0.95 * mixed
    assert seconds("threshold") < 1.01 * exclusive
    for spec in CONTINUOUS:
        if spec in ("hybrid", "auto"):
            assert seconds(spec) < 1.05 * exclusive, spec


def test_5_a_margin_for_growth_removes_preemptions_and_gains_throughput() -> None:
    """KV 299,584, about 1,000 in and 5,000 out, 128 at a time. What is left of the preemptions
    with memory-safe N comes from the start, when lengths are not known yet."""
    spec = "prompt=1000,output=5000,prompt_dist=uniform:0.3,output_dist=uniform:0.5"
    limits = Limits(299_584)

    def run(policy: str) -> tuple[float, int]:
        source = make_source(spec, concurrency=128, requests=400, seed=3)
        record = simulate(COST, source, build_policy(policy, COST, limits), limits)
        check_record(record)
        return 400 / record.duration, int(record.requests["preemptions"].sum())

    without, preemptions = run("mixed")
    assert preemptions > 1000
    for policy in (
        "mixed:n=safe",
        "threshold",
        "hybrid",
        *(["auto"] if "auto" in POLICIES else []),
    ):
        throughput, left = run(policy)
        assert left < 0.08 * preemptions, policy
        assert throughput > 1.02 * without, policy


@every
def test_6_a_fifth_prompt_waits_when_four_fill_kv(spec: str) -> None:
    """Four 100k prompts fill 90 % of KV. The fifth waits until one of them has ended; nobody is
    preempted and the phases do not alternate meanwhile, but for the decode iterations that the
    guard on stalls lets through a long refill."""
    table = RequestTable.of([100_000] * 5, [600] * 4 + [50], arrival=[0.0] * 4 + [20.0])
    record = serve(spec, table, Limits(444_000))
    assert in_order(record, "admitted")[4] >= record.requests["end"].min() > 20.0
    assert record.requests["preemptions"].sum() == 0
    phases = record.iterations["prefill_tokens"] > 0
    guarded = record.iterations["duration"][phases].sum() // MAX_STALL
    assert np.count_nonzero(np.diff(phases.astype(int))) <= 2 * (5 + guarded)


@every
def test_7_a_request_that_can_never_fit_does_not_block_the_queue(spec: str) -> None:
    """A prompt longer than KV, and a prompt + max_tokens longer than KV, are rejected at arrival
    with the numbers; those behind them are served."""
    limits = Limits(10_000)
    engine = engine_for(spec, limits)
    too_long, too_much = Request(0, 12_000, 10), Request(1, 6_000, 5_000, output=10)
    others = [Request(i, 2_000, 50, output=50) for i in range(2, 6)]
    assert not engine.submit(too_long)
    assert not engine.submit(too_much)
    assert too_long.state is too_much.state is State.REJECTED
    assert "12000" in too_long.reason
    assert "10000" in too_long.reason
    assert all(number in too_much.reason for number in ("6000", "5000", "10999", "10000"))
    for request in others:
        assert engine.submit(request)
    while engine.step():
        pass
    engine.check_drained()
    assert all(request.state is State.FINISHED for request in others)


@every
@pytest.mark.parametrize("prompt", [1002, 780, 400, 250])
def test_8_five_prompts_on_fifty_blocks(spec: str, prompt: int) -> None:
    """50 blocks of 16 tokens. Prompts of 1,002 tokens never fit: rejected, no hang. Of those of
    780 one fits at a time; of shorter ones more, until they grow."""
    table = RequestTable.of([prompt] * 5, [20] * 5, arrival=[0.0] * 5)
    record = serve(spec, table, Limits(800))
    assert record.counts["finished"] == (0 if prompt == 1002 else 5)
    assert record.counts["rejected"] == (5 if prompt == 1002 else 0)


@every
def test_8_two_blocks_and_one_request_that_fills_both(spec: str) -> None:
    """20 + 13 tokens, the last of which is never written to KV: 32."""
    record = serve(spec, RequestTable.of([20], [13], arrival=[0.0]), Limits(32))
    assert record.counts["finished"] == 1
    assert record.iterations["kv_used"].max() == 32


@every
@pytest.mark.parametrize("state", ["waiting", "prefilling", "decoding", "preempted"])
def test_9_abort_in_every_state(spec: str, state: str) -> None:
    """After each abort the books are checked: no KV, no slot, no prompt token is left behind.
    Everything else is served to its end."""
    limits = Limits(1000, slots=8, token_budget=150)
    engine = engine_for(spec, limits)
    rng = random.Random(9)
    for i in range(20):
        engine.submit(Request(i, rng.randrange(100, 200), 200, output=rng.randrange(50, 200)))
    aborted = 0
    while engine.step(until=0.0):
        for request in list(engine.scheduler.requests.values()):
            where = request.state.value
            if where == "waiting" and request.preemptions:
                where = "preempted"
            if where == state and rng.random() < 0.03:
                engine.abort(request.id)
                aborted += 1
    engine.check_drained()
    assert aborted > 0 or (state == "preempted" and engine.preemptions < 10)


@continuous
def test_10_a_preempted_request_does_not_queue_behind_later_arrivals(spec: str) -> None:
    """KV is tight and more keeps arriving. Whenever somebody is admitted, nobody who came
    earlier is left waiting."""
    limits = Limits(2000, slots=16)
    engine = engine_for(spec, limits)
    rng = random.Random(10)
    pending = [Request(i, 150, 400, 0.3 * i, output=rng.randrange(100, 400)) for i in range(25)]
    scheduler = engine.scheduler
    while pending or scheduler.has_work:
        while pending and pending[0].arrival <= engine.clock.now():
            engine.submit(pending.pop(0))
        if not engine.step(until=0.0):
            engine.clock.wait_until(pending[0].arrival)
        waiting = [r.id for r in scheduler.requests.values() if r.state is State.WAITING]
        running = [*scheduler.prefilling, *scheduler.decoding]
        if scheduler.admitted and waiting:
            assert max(running) < min(waiting)
    engine.check_drained()


@continuous
def test_10_a_high_priority_request_gets_in_when_low_ones_hold_all_slots(spec: str) -> None:
    """The four slots are taken for seconds; the urgent request has its first token at once."""
    limits = Limits(KV, slots=4, order="priority")
    engine = engine_for(spec, limits)
    for i in range(8):
        engine.submit(Request(i, 500, 500, priority=5))
    while engine.clock.now() < 2.0:
        engine.step(until=0.0)
    urgent = Request(8, 500, 20, engine.clock.now(), priority=0)
    engine.submit(urgent)
    while engine.step(until=0.0):
        pass
    engine.check_drained()
    assert urgent.first_token_at - urgent.arrival < 0.1
    assert urgent.preemptions == 0
    assert engine.preemptions >= 1


@continuous
def test_10_low_priority_is_not_starved(spec: str) -> None:
    """High-priority requests keep both slots busy for a minute. One of low priority waits for
    its ageing of 10 s, and not for the end of the others."""
    limits = Limits(KV, slots=2, order="priority", ageing=10.0)
    high = 30
    table = RequestTable.of(
        [200] * high + [200],
        [500] * high + [500],
        arrival=[2.0 * i for i in range(high)] + [1.0],
        priority=[0] * high + [1],
    )
    engine = engine_for(spec, limits)
    engine.run(source_of(table))
    engine.check_drained()
    (low,) = (p.request for p in engine.books.values() if p.request.priority == 1)
    last_high = max(p.request.first_token_at for p in engine.books.values())
    assert low.first_token_at - low.arrival < 30.0 < last_high


@every
def test_11_a_burst_fills_the_queue_limit(spec: str) -> None:
    """100 requests at once, 4 find a slot and 20 may wait: 76 are refused at once with the reason;
    of those that were accepted none is lost, and later ones find room again."""
    limits = Limits(KV, slots=4, queue_limit=20)
    engine = engine_for(spec, limits)
    burst = [Request(i, 100, 50, output=50) for i in range(100)]
    accepted = [request for request in burst if engine.submit(request)]
    assert accepted == burst[:24]
    assert all("20 requests are waiting" in request.reason for request in burst[24:])
    assert all(request.finished_at == 0.0 for request in burst[24:])
    while len(engine.scheduler.queue) >= 20:
        engine.step()
    late = Request(100, 100, 50, engine.clock.now(), output=50)
    assert engine.submit(late)
    while engine.step():
        pass
    engine.check_drained()
    assert all(request.state is State.FINISHED for request in [*accepted, late])


@continuous
def test_12_no_flapping_when_kv_is_short(spec: str) -> None:
    """KV for about ten requests, 40 at a time. A phase ends because somebody left, or because
    somebody was preempted; not again and again because the next one does not fit."""
    limits = Limits(8_000, slots=64)
    engine = engine_for(spec, limits)
    engine.run(make_source("prompt=400,output=400", concurrency=40, requests=150, seed=12))
    engine.check_drained()
    record = record_of(engine)
    prefills = (record.iterations["prefill_tokens"] > 0).astype(int)
    refills = np.count_nonzero(np.diff(prefills) == 1)
    assert refills <= 150 + engine.preemptions
    modes = [decision.mode for _, decision in record.decisions]
    if spec != "auto":  # chooses anew at every refill, by design
        assert sum(a != b for a, b in pairwise(modes)) <= 2


@pytest.mark.parametrize("spec", EXCLUSIVE)
def test_12_holding_back_has_a_hard_time_out(spec: str) -> None:
    """60 of 64 slots decode for minutes, so k slots are never free; whoever comes is let in after
    `max_hold` and one iteration at the latest."""
    limits = Limits(KV, slots=64)
    table = RequestTable.of(
        [100] * 60 + [100] * 4, [2000] * 60 + [20] * 4, arrival=[0.0] * 60 + [1.0, 2.0, 2.1, 9.0]
    )
    policy = build_policy(with_options(spec, "max_hold=0.5"), COST, limits)
    engine = checked_simulation(policy, limits, COST, exclusive=True, max_hold=0.5)
    engine.run(source_of(table))
    engine.check_drained()
    longest = max(record_of(engine).iterations["duration"])
    for wait in ttfts(record_of(engine))[60:]:
        assert wait <= 0.5 + 3 * longest
