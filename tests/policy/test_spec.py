"""Policy spec strings: what they build, and what is said about those that make no sense."""

from __future__ import annotations

import pytest

from phasegate.cost.profile import load_profile
from phasegate.errors import PolicyError
from phasegate.policy.base import NEVER
from phasegate.policy.spec import POLICIES, build_policy, parse_spec
from phasegate.scheduler.limits import Limits

COST = load_profile("rtx-pro-6000/qwen3-8b").cost_model()
LIMITS = Limits(100_000)


@pytest.mark.parametrize(
    ("spec", "name", "values"),
    [
        ("mixed", "mixed", {}),
        (" exclusive : k = 16 , n=64 ", "exclusive", {"k": 16, "n": 64}),
        ("exclusive:theta=0.3,max_hold=none", "exclusive", {"theta": 0.3, "max_hold": NEVER}),
        ("exclusive:max_hold=0", "exclusive", {"max_hold": 0.0}),
        ("threshold:rule=paper,eps=0.05", "threshold", {"rule": "paper", "eps": 0.05}),
        ("mixed:n=safe,token_budget=512,chunk=256", "mixed",
         {"n": "safe", "token_budget": 512, "chunk": 256}),
        ("static:n=8", "static", {"n": 8}),
    ],
)  # fmt: skip
def test_read(spec: str, name: str, values: dict[str, object]) -> None:
    assert parse_spec(spec) == (name, values)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("mixd", "policy 'mixd' is unknown; did you mean mixed? choose from static, mixed, "),
        ("", "policy '' is unknown; choose from static, "),
        ("mixed:k=3", "policy 'mixed:k=3': option 'k' is unknown;"),
        ("exclusive:kk=3", "policy 'exclusive:kk=3': option 'kk' is unknown; did you mean k? "),
        ("exclusive:k", "policy 'exclusive:k': 'k' is not option=value"),
        ("exclusive:k=", "policy 'exclusive:k=': 'k=' is not option=value"),
        ("exclusive:k=1,,n=2", "policy 'exclusive:k=1,,n=2': '' is not option=value"),
        ("exclusive:k=1,k=2", "policy 'exclusive:k=1,k=2': option 'k' is given twice; keep one"),
        ("exclusive:k=0", "policy 'exclusive:k=0': k=0 must be a whole number of at least 1"),
        ("exclusive:k=1.5", "policy 'exclusive:k=1.5': k=1.5 "),
        ("static:n=safe", "policy 'static:n=safe': n=safe "),
        ("exclusive:theta=1.5", "policy 'exclusive:theta=1.5': theta=1.5 must be above 0"),
        ("exclusive:max_hold=-1", "policy 'exclusive:max_hold=-1': max_hold=-1 must be a number"),
        ("exclusive:max_hold=nan", "policy 'exclusive:max_hold=nan': max_hold=nan must be a"),
        ("threshold:eps=0.7", "policy 'threshold:eps=0.7': eps=0.7 must be above 0 and below 0.5"),
        ("threshold:rule=mine", "policy 'threshold:rule=mine': rule=mine must be ours or paper"),
    ],
)
def test_refused_in_one_line(spec: str, message: str) -> None:
    with pytest.raises(PolicyError) as refused:
        parse_spec(spec)
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("exclusive:k=3,theta=0.5", "options k and theta contradict each other; give one"),
        ("exclusive:k=9,n=4", "k=9 is more than n=4; lower k or raise n"),
    ],
)
def test_contradictions(spec: str, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        build_policy(spec, COST, LIMITS)


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_can_be_built_again_from_its_spec(name: str) -> None:
    policy = build_policy(name, COST, LIMITS)
    assert policy.spec == name
    assert type(build_policy(policy.spec, COST, LIMITS)) is type(policy)
    assert build_policy(f" {name}:n=32,chunk=100 ", COST, LIMITS).spec == f"{name}:n=32,chunk=100"
    assert POLICIES[name].summary
