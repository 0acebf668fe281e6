"""Runs small enough to follow by hand.

An iteration costs
    prefill only      1 s + 1/8 s per prompt token
    with decodes      2 s + 1/4 s per decode + 1/8 s per prompt token
which binary fractions hold exactly, so the times are compared for equality.

Three requests:     A  8 prompt tokens, 3 output tokens, arrives at 0 s
                    B 16 prompt tokens, 2 output tokens, arrives at 0 s
                    C  8 prompt tokens, 2 output tokens, arrives at 4 s
"""

from __future__ import annotations

import numpy as np
import pytest
from invariants import CheckedEngine, check_itl, check_record, checked_simulation, record_of

from phasegate.cost.model import InterferenceCost
from phasegate.engine.record import RunRecord
from phasegate.policy.base import Decision
from phasegate.policy.spec import build_policy
from phasegate.scheduler.limits import Limits
from phasegate.scheduler.request import Request, State
from phasegate.workload import OpenSource, RequestTable

COST = InterferenceCost(alpha_p=1.0, alpha_d=2.0, beta_p=1 / 8, b_d=1 / 4, k_d=0.0)
ABC = RequestTable.of(prompt=[8, 16, 8], output=[3, 2, 2], arrival=[0.0, 0.0, 4.0])
A, B, C = range(3)
NAMES = ("prefill", "decode", "mixed")


def serve(spec: str, limits: Limits, table: RequestTable = ABC) -> tuple[CheckedEngine, RunRecord]:
    """Serve the table, checking all invariants on the way."""
    policy = build_policy(spec, COST, limits)
    engine = checked_simulation(policy, limits, COST, exclusive=not spec.startswith("mixed"))
    engine.run(OpenSource(table))
    engine.check_drained()
    record = record_of(engine)
    check_record(record)
    check_itl(engine, record)
    return engine, record


def iterations(record: RunRecord) -> list[tuple[float, float, str, int, int]]:
    """(start, end, kind, prompt tokens, decodes) of every iteration."""
    it = record.iterations
    return [
        (start, start + seconds, NAMES[int(kind)], int(prompt), int(decodes))
        for start, seconds, kind, prompt, decodes in zip(
            it["start"],
            it["duration"],
            it["kind"],
            it["prefill_tokens"],
            it["decodes"],
            strict=True,
        )
    ]


def of(record: RunRecord, request: int) -> dict[str, float | list[float]]:
    """TTFT, ITLs and E2E of one request, seconds."""
    (row,) = np.flatnonzero(record.requests["id"] == request)
    arrival = record.requests["arrival"][row]
    return {
        "ttft": record.requests["first_token"][row] - arrival,
        "itl": record.itl_values(int(row)).tolist(),
        "e2e": record.requests["end"][row] - arrival,
    }


def test_mixed() -> None:
    """C arrives exactly when the first iteration ends, and finds both slots taken. B leaves
    after its second token; C is prefilled while A decodes."""
    _, record = serve("mixed", Limits(kv_capacity=1000, slots=2))
    assert iterations(record) == [
        (0.0, 4.0, "prefill", 24, 0),  # A and B
        (4.0, 6.5, "decode", 0, 2),  # A and B
        (6.5, 9.75, "mixed", 8, 1),  # C, and the last token of A
        (9.75, 12.0, "decode", 0, 1),  # C
    ]
    assert of(record, A) == {"ttft": 4.0, "itl": [2.5, 3.25], "e2e": 9.75}
    assert of(record, B) == {"ttft": 4.0, "itl": [2.5], "e2e": 6.5}
    assert of(record, C) == {"ttft": 5.75, "itl": [2.25], "e2e": 8.0}
    assert record.requests["id"].tolist() == [B, A, C], "in the order in which they ended"
    assert record.requests["admitted"].tolist() == [0.0, 0.0, 6.5]
    assert record.iterations["slots"].tolist() == [2, 2, 2, 1]
    assert record.iterations["waiting"].tolist() == [0, 1, 0, 0]
    # A holds 8, B 16; each decode adds one token. The last token of a request is never in KV.
    assert record.iterations["kv_used"].tolist() == [24, 26, 18, 9]
    assert record.decisions == [(0.0, Decision("mixed", None, 2))]


def test_exclusive_with_k_1() -> None:
    """One free slot is enough: C is prefilled as soon as B has left, while A stands still."""
    _, record = serve("exclusive:k=1", Limits(kv_capacity=1000, slots=2))
    assert iterations(record) == [
        (0.0, 4.0, "prefill", 24, 0),
        (4.0, 6.5, "decode", 0, 2),
        (6.5, 8.5, "prefill", 8, 0),
        (8.5, 11.0, "decode", 0, 2),
    ]
    assert of(record, A) == {"ttft": 4.0, "itl": [2.5, 4.5], "e2e": 11.0}
    assert of(record, C) == {"ttft": 4.5, "itl": [2.5], "e2e": 7.0}


def test_exclusive_with_k_2() -> None:
    """C has to wait until both slots are free."""
    _, record = serve("exclusive:k=2,max_hold=none", Limits(kv_capacity=1000, slots=2))
    assert iterations(record) == [
        (0.0, 4.0, "prefill", 24, 0),
        (4.0, 6.5, "decode", 0, 2),
        (6.5, 8.75, "decode", 0, 1),
        (8.75, 10.75, "prefill", 8, 0),
        (10.75, 13.0, "decode", 0, 1),
    ]
    assert of(record, A) == {"ttft": 4.0, "itl": [2.5, 2.25], "e2e": 8.75}
    assert of(record, C) == {"ttft": 6.75, "itl": [2.25], "e2e": 9.0}
    assert record.decisions == [(0.0, Decision("exclusive", 2, 2))]


def test_exclusive_with_k_2_and_a_guard() -> None:
    """C has a slot from 6.5 s on; a guard of 2 s runs out at 8.5 s, within an iteration."""
    table = RequestTable.of(prompt=[8, 16, 8], output=[9, 2, 2], arrival=[0.0, 0.0, 4.0])
    _, record = serve("exclusive:k=2,max_hold=2", Limits(kv_capacity=1000, slots=2), table)
    assert iterations(record)[:5] == [
        (0.0, 4.0, "prefill", 24, 0),
        (4.0, 6.5, "decode", 0, 2),
        (6.5, 8.75, "decode", 0, 1),
        (8.75, 10.75, "prefill", 8, 0),
        (10.75, 13.25, "decode", 0, 2),
    ]


def test_static() -> None:
    """Three slots and a batch of two: C waits for both although there is a third slot."""
    _, record = serve("static:n=2", Limits(kv_capacity=1000, slots=3))
    assert [kind for _, _, kind, _, _ in iterations(record)] == [
        "prefill",
        "decode",
        "decode",
        "prefill",
        "decode",
    ]
    assert of(record, C) == {"ttft": 6.75, "itl": [2.25], "e2e": 9.0}


def test_chunked_prefill() -> None:
    """A budget of 10 tokens: A and 2 tokens of B; then the decode of A leaves 9 for B."""
    _, record = serve("mixed", Limits(kv_capacity=1000, slots=2, token_budget=10))
    assert iterations(record)[:4] == [
        (0.0, 2.25, "prefill", 10, 0),
        (2.25, 5.625, "mixed", 9, 1),
        (5.625, 8.5, "mixed", 5, 1),  # the rest of B; A is done
        (8.5, 11.75, "mixed", 8, 1),  # C has come meanwhile; B is done
    ]
    assert of(record, A) == {"ttft": 2.25, "itl": [3.375, 2.875], "e2e": 8.5}
    assert of(record, B) == {"ttft": 8.5, "itl": [3.25], "e2e": 11.75}


def test_a_preempted_request_has_one_long_gap() -> None:
    """KV of 20 tokens for two requests of 8 + 6 tokens, of which all but the last one need KV.

    Both are admitted: 16 tokens. Two decodes later 20 are used and both want to grow: the later
    one, B, is preempted after its third token. A holds 13 tokens in the end, so B, which now
    needs 8 + 3 tokens, waits for its end. Then these 11 are prefilled again, which yields the
    fourth token.
    """
    table = RequestTable.of(prompt=[8, 8], output=[6, 6], arrival=[0.0, 0.0])
    engine, record = serve("mixed", Limits(kv_capacity=20, slots=2, page=1), table)
    assert iterations(record) == [
        (0.0, 3.0, "prefill", 16, 0),
        (3.0, 5.5, "decode", 0, 2),
        (5.5, 8.0, "decode", 0, 2),
        (8.0, 10.25, "decode", 0, 1),
        (10.25, 12.5, "decode", 0, 1),
        (12.5, 14.75, "decode", 0, 1),
        (14.75, 17.125, "prefill", 11, 0),
        (17.125, 19.375, "decode", 0, 1),
        (19.375, 21.625, "decode", 0, 1),
    ]
    assert of(record, A) == {"ttft": 3.0, "itl": [2.5, 2.5, 2.25, 2.25, 2.25], "e2e": 14.75}
    assert of(record, B) == {
        "ttft": 3.0,
        "itl": [2.5, 2.5, 17.125 - 8.0, 2.25, 2.25],
        "e2e": 21.625,
    }
    assert record.requests["preemptions"].tolist() == [0, 1]
    assert record.requests["recomputed"].tolist() == [0, 10], "its third token was not in KV yet"
    assert record.iterations["kv_used"].tolist() == [16, 18, 20, 11, 12, 13, 11, 12, 13]
    assert engine.token_times[B] == [3.0, 5.5, 8.0, 17.125, 19.375, 21.625]


def test_an_aborted_request_leaves_what_it_had() -> None:
    """B is aborted after its first decode; its slot and its KV go to C at once."""
    limits = Limits(kv_capacity=64, slots=2)
    engine = checked_simulation(build_policy("mixed", COST, limits), limits, COST)
    for request in OpenSource(RequestTable.of([8, 16, 8], [3, 9, 2], arrival=[0, 0, 0])).take(0.0):
        engine.submit(request)
    engine.step()
    engine.step(until=4.0)  # one iteration, although nothing would change in the next
    assert engine.abort(B)
    assert not engine.abort(B), "it has ended already"
    while engine.step():
        pass
    engine.check_drained()
    record = record_of(engine)
    check_record(record)
    check_itl(engine, record)
    assert iterations(record)[2] == (6.5, 9.75, "mixed", 8, 1)
    assert of(record, B) == {"ttft": 4.0, "itl": [2.5], "e2e": 6.5}
    assert record.counts == {"finished": 2, "rejected": 0, "aborted": 1}


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "reason"),
    [
        (64, 2, "prompt 64 + max_tokens 2 needs 65 KV tokens, the cache holds 64; "),
        (0, 2, "prompt 0 and max_tokens 2 must be at least 1"),
        (2, 0, "prompt 2 and max_tokens 0 must be at least 1"),
    ],
)
def test_a_request_that_cannot_run_is_rejected_with_the_numbers(
    prompt: int, max_tokens: int, reason: str
) -> None:
    limits = Limits(kv_capacity=70, slots=2)  # four whole pages
    engine = checked_simulation(build_policy("mixed", COST, limits), limits, COST)
    request = Request(0, prompt, max_tokens)
    assert not engine.submit(request)
    assert request.state is State.REJECTED
    assert request.reason.startswith(reason)
    assert engine.submit(Request(1, 64, 1)), "this one just fits"
