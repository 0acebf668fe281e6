"""Spec strings: what they mean, their canonical form, and the line each mistake gets."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasegate.errors import WorkloadError
from phasegate.workload.phase import LongPrompts, Phase, PriorityClass
from phasegate.workload.spec import DEFAULT_REQUESTS, WorkloadSpec

parse = WorkloadSpec.parse


def test_the_spec_of_the_readme():
    (phase,) = parse("prompt=512,output=256,prompt_dist=uniform:0.5,output_dist=geometric").phases
    assert (phase.prompt, phase.output) == (512, 256)
    assert (phase.prompt_dist, phase.output_dist) == ("uniform:0.5", "geometric")


def test_phases_stand_alone():
    first, second = parse(
        "prompt=1024,output=128,output_dist=geometric,requests=2000;prompt=512,output=512"
    ).phases
    assert (first.requests, second.requests) == (2000, None)
    assert second.output_dist == "fixed"


def test_every_key_at_once():
    (phase,) = parse(
        "prompt=512,output=256,prompt_dist=lognormal:1,output_dist=gamma:2,max_tokens=1024,"
        "long=0.05:16384-32768,priority=0.1:-1/0.2:5,requests=10,rate=2.5,burst=3"
    ).phases
    assert phase.long == LongPrompts(0.05, 16384, 32768)
    assert phase.priority == (PriorityClass(0.1, -1), PriorityClass(0.2, 5))
    assert (phase.max_tokens, phase.requests, phase.rate, phase.burst) == (1024, 10, 2.5, 3)


def test_blanks_order_and_ways_to_write_a_number_do_not_matter():
    text = "prompt=512,output=256,output_dist=uniform:0.5,long=0.5:9-9,rate=inf"
    assert (
        str(parse(" rate = INF, output=256.0 ,prompt=5.12e2,output_dist= Uniform:.5,long=.5:9"))
        == text
    )


means = st.integers(2, 100_000).map(float)
shares = st.floats(0.001, 0.4)
laws = st.one_of(
    st.sampled_from(["fixed", "geometric"]),
    st.floats(0.001, 1).map("uniform:{}".format),
    st.floats(0.001, 10).map("lognormal:{}".format),
    st.floats(0.0011, 1e6).map("gamma:{}".format),
)
longs = st.tuples(shares, st.integers(1, 1000), st.integers(1000, 10**8)).map(
    lambda t: LongPrompts(*t)
)
priorities = st.lists(
    st.tuples(shares, st.integers(-100, 100)), max_size=2, unique_by=lambda pair: pair[1]
).map(lambda pairs: tuple(PriorityClass(*pair) for pair in pairs))
maybe = st.none()
common = {
    "prompt": means,
    "output": means,
    "prompt_dist": laws,
    "output_dist": laws,
    "max_tokens": maybe | st.integers(100_000, 10**8),
    "long": maybe | longs,
    "priority": priorities,
    "requests": st.integers(1, 10**6),
}
rates = st.floats(1e-6, 1e6) | st.just(math.inf)
open_phases = st.fixed_dictionaries({**common, "rate": rates, "burst": maybe | st.floats(0, 100)})
closed_phases = st.fixed_dictionaries({**common, "concurrency": st.integers(1, 10**6)})
specs = st.one_of(
    *(st.lists(kind, min_size=1, max_size=3) for kind in (open_phases, closed_phases))
)


@given(specs)
def test_the_canonical_text_parses_back_to_an_equal_spec(phases):
    spec = WorkloadSpec(tuple(Phase.of(**phase) for phase in phases))
    assert parse(str(spec)) == spec
    assert str(parse(str(spec))) == str(spec)


OK = "prompt=8,output=4"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "workload: an empty item in ''; write key=value,key=value"),
        (OK + ",", "an empty item"),
        (OK + ";", "workload phase 2: an empty item"),
        ("prompt=8", "output= is missing; give the mean length in tokens"),
        ("prompt", "'prompt' is not of the form key=value"),
        ("prompt=,output=4", "'prompt=' is not of the form key=value"),
        (OK + ",promt=9", "unknown key 'promt'; did you mean prompt?"),
        (OK + ",colour=red", "unknown key 'colour'; known: prompt, output"),
        (OK + ",output=5", "output is given twice, as 4 and as 5"),
        ("prompt=many,output=4", "prompt=many: has to be a number"),
        ("prompt=0,output=4", "prompt=0: has to be at least 1"),
        ("prompt=nan,output=4", "prompt=nan: has to be"),
        ("prompt=1e99,output=4", "prompt=1e99: has to be at most 100000000"),
        ("prompt=8.5,output=4", "prompt_dist: a fixed length of 8.5 tokens is not a whole number"),
        (OK + ",output_dist=zipf", "output_dist: 'zipf' is no length law; known: fixed"),
        (OK + ",prompt_dist=uniform:2", "prompt_dist: uniform: the half-width 2.0"),
        (OK + ",prompt_dist=empirical:f", "prompt=8 contradicts prompt_dist=empirical:f"),
        (OK + ",requests=0", "requests=0: has to be at least 1"),
        (OK + ",requests=2.5", "requests=2.5: has to be a whole number"),
        (OK + ",requests=1e12", "requests=1e12: has to be a whole number"),
        (OK + ",requests=99999999999", "requests=99999999999: has to be at most 20000000"),
        (OK + ",concurrency=0", "concurrency=0: has to be at least 1"),
        (OK + ",rate=-1", "rate=-1: has to be from 1e-06 to 1e+09 requests/s"),
        (OK + ",rate=1e-300", "rate=1e-300: has to be from 1e-06"),
        (OK + ",rate=1e300", "rate=1e+300: has to be from 1e-06"),
        (OK + ",rate=nan", "rate=nan: has to be"),
        (OK + ",rate=2,burst=-1", "burst=-1: has to be at least 0"),
        (OK + ",rate=2,concurrency=8", "rate=2 (open loop) and concurrency=8"),
        (OK + ",burst=2,concurrency=8", "burst=2 has no meaning with concurrency=8"),
        (OK + ",max_tokens=3", "output=4 is above max_tokens=3; raise max_tokens or lower output"),
        (OK + ",long=5%", "long=5%: write SHARE:LOW-HIGH"),
        (OK + ",long=0.1:9-", "long=0.1:9-: write SHARE:LOW-HIGH"),
        (OK + ",long=2:16-32", "long=2:16-32: the share has to be above 0 and at most 1"),
        (OK + ",long=0.1:32-16", "long=0.1:32-16: the lengths have to be LOW-HIGH"),
        (OK + ",priority=high", "priority=high: write SHARE:PRIORITY"),
        (OK + ",priority=0.9:1/0.2:2", "the shares have to be above 0 and at most 1 in all"),
        (OK + ",priority=nan:1", "the shares have to be above 0"),
        (OK + ",priority=0.1:1/0.2:1", "a priority is named twice"),
        (OK + ",priority=0.1:9999999", "has to be from -1000000 to 1000000"),
        (f"{OK};{OK}", "workload phase 1: requests= is missing; only the last phase"),
        (f"{OK},requests=1,rate=1;{OK},concurrency=2", "phase 1 has a rate (open loop) and"),
        (f"{OK},requests=15000000;{OK},requests=15000000", "30000000 requests in all are more"),
    ],
)  # fmt: skip
def test_a_mistake_is_explained_in_one_line(text, line):
    with pytest.raises(WorkloadError) as error:
        parse(text)
    message = str(error.value)
    assert line in message
    assert message.startswith("workload")
    assert "\n" not in message


@pytest.mark.parametrize(
    "text", [OK + ",rate=1\n2", OK + ",x\n=1", "p" * 10_000, OK + ",rate=" + "9x" * 5000]
)
def test_whatever_is_pasted_the_message_stays_one_short_line(text):
    with pytest.raises(WorkloadError) as error:
        parse(text)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500


def test_resolve_fills_in_what_the_spec_leaves_open():
    spec = parse(f"{OK},requests=30;{OK}")
    assert str(spec.resolve(concurrency=16, requests=100)) == (
        f"{OK},requests=30,concurrency=16;{OK},requests=70,concurrency=16"
    )
    assert spec.resolve(rate=2.0).phases[1].requests == DEFAULT_REQUESTS
    assert [p.rate for p in spec.resolve(rate=2.0).phases] == [2.0, 2.0]


def test_a_phase_keeps_its_own_rate():
    spec = parse(f"{OK},requests=30,rate=5;{OK},long=0.1:5-9,priority=0.5:1")
    assert [p.rate for p in spec.resolve(rate=2.0).phases] == [5.0, 2.0]


def test_fewer_requests_end_the_run_early():
    spec = parse(f"{OK},requests=30;{OK},requests=30").resolve(rate=1.0, requests=40)
    assert [p.requests for p in spec.phases] == [30, 10]
    assert len(spec.resolve(requests=20).phases) == 1


@pytest.mark.parametrize(
    ("text", "arguments", "line"),
    [
        (OK, {}, "give a rate (requests/s, open loop) or a concurrency"),
        (OK, {"rate": 1.0, "concurrency": 2}, "give only one"),
        (OK, {"rate": -1.0}, "rate=-1: has to be from 1e-06"),
        (OK, {"concurrency": 0}, "concurrency=0: has to be at least 1"),
        (OK + ",burst=2", {"concurrency": 4}, "burst=2 has no meaning with concurrency=4"),
        (OK + ",rate=1", {"rate": 2.0}, "rate=2.0 has no use"),
        (f"{OK},requests=3,rate=1;{OK}", {"concurrency": 2}, "use one kind throughout"),
        (OK, {"rate": 1.0, "requests": 0}, "requests=0: has to be from 1"),
        (OK + ",requests=5", {"rate": 1.0, "requests": 9}, "requests=9, but the workload says"),
    ],
)  # fmt: skip
def test_arguments_that_contradict_are_explained(text, arguments, line):
    with pytest.raises(WorkloadError) as error:
        parse(text).resolve(**arguments)
    assert line in str(error.value)


def test_a_spec_without_phases_is_refused():
    with pytest.raises(WorkloadError, match="no phase"):
        WorkloadSpec(())


@pytest.mark.parametrize(
    ("text", "label"),
    [
        (f"{OK},concurrency=64", "8/4 tokens, 64 concurrent"),
        (f"{OK},rate=2.5,long=0.05:9-99", "8+5% long/4 tokens, 2.5 requests/s"),
        (
            f"prompt=1024,output=128,requests=9,concurrency=4;{OK},concurrency=8",
            "1024/128 > 8/4 tokens, 4 > 8 concurrent",
        ),
        ("prompt_dist=empirical:f,output=4", "empirical/4 tokens"),
    ],
)
def test_the_label_is_for_people(text, label):
    assert parse(text).label == label
