"""From spec to requests: the same seed, the same requests, whatever else changes (I6)."""

import math

import numpy as np
import pytest

from phasegate.errors import WorkloadError
from phasegate.workload.arrivals import ClosedLoop
from phasegate.workload.draw import draw
from phasegate.workload.spec import WorkloadSpec

RANDOM = "prompt=512,output=256,prompt_dist=uniform:0.5,output_dist=geometric"


def table(text, seed=0, **arguments):
    return draw(WorkloadSpec.parse(text).resolve(**arguments), seed)


def columns(t):
    return [c.tolist() for c in (t.prompt, t.output, t.max_tokens, t.priority)]


def test_the_same_seed_gives_the_same_requests_and_another_seed_gives_others():
    full = RANDOM + ",long=0.1:9000-9999,priority=0.2:-1"
    a, b, c = (table(full, seed, rate=5.0) for seed in (7, 7, 8))
    assert columns(a) == columns(b)
    assert a.arrival.tolist() == b.arrival.tolist()
    assert columns(a) != columns(c)
    assert a.arrival.tolist() != c.arrival.tolist()


def test_lengths_depend_on_neither_rate_nor_concurrency_nor_burst():
    a = table(RANDOM, rate=5.0)
    b = table(RANDOM + ",burst=3", rate=80.0)
    c = table(RANDOM, concurrency=4)
    assert columns(a) == columns(b) == columns(c)


def test_a_short_run_is_the_beginning_of_a_long_one():
    long = table(RANDOM + ",burst=2,long=0.1:9000-9999", rate=3.0, requests=9000)
    short = table(RANDOM + ",burst=2,long=0.1:9000-9999", rate=3.0, requests=5000)
    assert columns(long.first(5000)) == columns(short)
    assert long.arrival[:5000].tolist() == short.arrival.tolist()


def test_a_key_changes_only_what_it_says():
    plain = table(RANDOM, rate=5.0)
    mixed = table(RANDOM + ",long=0.25:9000-9999,priority=0.5:3", rate=5.0)
    is_long = mixed.prompt >= 9000
    assert np.array_equal(plain.prompt[~is_long], mixed.prompt[~is_long])
    assert np.array_equal(plain.output, mixed.output)
    assert np.array_equal(plain.arrival, mixed.arrival)


def test_shares_come_out_as_asked():
    t = table(RANDOM + ",long=0.05:16384-32768,priority=0.1:-1/0.2:5", rate=1.0, requests=40_000)
    is_long = t.prompt >= 16384
    assert is_long.mean() == pytest.approx(0.05, abs=0.005)
    assert t.prompt[is_long].min() < 16500
    assert 32600 < t.prompt.max() <= 32768
    shares = [(t.priority == p).mean() for p in (-1, 5, 0)]
    assert shares == pytest.approx([0.1, 0.2, 0.7], abs=0.01)


def test_max_tokens_is_what_the_client_declares_and_cuts_outputs():
    t = table(RANDOM + ",max_tokens=300", rate=1.0)
    free = table(RANDOM, rate=1.0)
    assert set(t.max_tokens) == {300}
    assert np.array_equal(t.output, np.minimum(free.output, 300))
    assert np.array_equal(free.max_tokens, free.output)


def test_phases_follow_each_other_open_loop():
    t = table(
        "prompt=1024,output=128,requests=300,rate=10,burst=0;prompt=512,output=512,rate=100,burst=0",
        requests=400,
    )
    assert t.prompt.tolist() == [1024] * 300 + [512] * 100
    assert t.arrival[299] == pytest.approx(30.0)
    assert t.arrival[-1] == pytest.approx(31.0)
    assert np.all(np.diff(t.arrival) >= 0.0)


def test_phases_follow_each_other_closed_loop():
    t = table(
        "prompt=8,output=4,requests=30,concurrency=2;prompt=9,output=4,requests=20", concurrency=64
    )
    assert t.loop == ClosedLoop(((0, 2), (30, 64)))
    assert t.arrival is None
    assert t.label == "8/4 > 9/4 tokens, 2 > 64 concurrent, 50 requests"


def test_two_equal_phases_are_not_copies_of_each_other():
    t = table(f"{RANDOM},requests=100;{RANDOM},requests=100", rate=1.0)
    assert t.prompt[:100].tolist() != t.prompt[100:].tolist()


def test_an_infinite_rate_sends_everything_at_once():
    assert set(table(RANDOM, rate=math.inf).arrival) == {0.0}


def test_empirical_lengths_come_from_a_file(tmp_path):
    file = tmp_path / "lengths.txt"
    file.write_text("100\n200\n\n400\n")
    t = table(f"prompt_dist=empirical:{file},output=4", rate=1.0)
    assert set(t.prompt) == {100, 200, 400}


def test_empirical_lengths_come_from_a_trace(tmp_path):
    file = tmp_path / "trace.csv"
    file.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n0,11,7\n1,22,8\n")
    law = f"empirical:{file}"
    t = table(f"prompt_dist={law},output_dist={law}", rate=1.0)
    assert (set(t.prompt), set(t.output)) == ({11, 22}, {7, 8})


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("1\ntwo\n3\nfour\n", r"f: line 2: the length is 'two', not a whole number \(1 more bad"),
        ("1\n0\n", "f: line 2: the length is 0; a length is at least 1"),
        ("hello\n", "f: no known trace format begins with 'hello'"),
    ],
)
def test_a_broken_file_of_lengths_is_named(tmp_path, content, complaint):
    (tmp_path / "f").write_text(content)
    with pytest.raises(WorkloadError, match=complaint):
        table(f"prompt_dist=empirical:{tmp_path / 'f'},output=4", rate=1.0)


def test_a_missing_file_of_lengths_is_named():
    with pytest.raises(WorkloadError, match="/nowhere/f: cannot be read"):
        table("prompt_dist=empirical:/nowhere/f,output=4", rate=1.0)


def test_seeds_are_not_negative():
    with pytest.raises(WorkloadError, match="seed=-1"):
        table(RANDOM, seed=-1, rate=1.0)


def test_a_spec_has_to_be_resolved_before_it_is_drawn():
    with pytest.raises(WorkloadError, match="resolve"):
        draw(WorkloadSpec.parse(RANDOM))
