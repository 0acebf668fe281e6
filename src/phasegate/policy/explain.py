"""The last decision of `auto` in words and numbers, for `phasegate simulate --explain`."""

from __future__ import annotations

from phasegate.policy.base import NEVER
from phasegate.policy.guard import Guard
from phasegate.policy.marginal import Choice, MarginalRule

_ACTIONS = {
    "decode": "went on decoding",
    "exclusive": "began an exclusive refill",
    "mixed": "began a mixed refill",
}


def explain(rule: MarginalRule, guard: Guard) -> list[str]:
    """What `rule` did last and why, one statement per line."""
    choice = rule.choice
    lines = [
        f"at {choice.time:.3f} s auto {_ACTIONS[choice.action]}: {choice.reason}",
        f"{choice.running} running with {choice.context:,} tokens of context, "
        f"{choice.waiting} waiting",
        _admission(rule, choice),
    ]
    if choice.refill is not None:
        lines += _costs(choice)
    lines.append(_traffic(rule, choice))
    lines.append(_learned(rule))
    if rule.targets.limits_slices:
        lines.append(
            f"prefill between two tokens: up to {rule.targets.exclusive.trim:.0%} (exclusive) or "
            f"{rule.targets.mixed.trim:.0%} (mixed) of the ITL target of {_ms(rule.targets.itl)}"
        )
    lines.append(_guard(guard))
    return lines


def _admission(rule: MarginalRule, choice: Choice) -> str:
    if not choice.waiting:
        return "nobody waits to be admitted"
    peak = max(rule.admission.peak, choice.context)
    return (
        f"{choice.fit} of those waiting can be admitted; KV of the running ones is expected to "
        f"peak at {peak:,.0f} tokens, the last one takes a risk of {rule.admission.risk:.1%} to be "
        "preempted"
    )


def _costs(choice: Choice) -> list[str]:
    refill = choice.refill
    assert refill is not None
    in_use = choice.running + choice.fit
    lines = [
        f"a refill of {choice.fit} ({choice.tokens:,} prompt tokens) costs "
        f"{_ms(refill.exclusive)} exclusive, {_ms(refill.mixed)} mixed, beyond the work itself",
        f"worth waiting for: {choice.share * in_use:.1f} free of the {in_use} slots that all who "
        f"fit would fill ({choice.share:.1%}); {choice.fit} are free; idle slots have cost "
        f"{_ms(choice.loss)} since the last refill",
    ]
    if choice.hold < NEVER:
        lines.append(
            f"the oldest has waited {_ms(choice.held)}; held for at most {_ms(choice.hold)}"
        )
    return lines


def _traffic(rule: MarginalRule, choice: Choice) -> str:
    monitor = rule.monitor
    outputs = f"outputs of {monitor.mean_output:.0f} tokens on average"
    if not monitor.completions:
        outputs = (
            f"outputs are taken to have {monitor.mean_output:.0f} tokens, since none ended yet"
        )
    loop = "clients wait for answers (closed loop)" if choice.closed else "requests come freely"
    return f"traffic: prompts of {monitor.mean_prompt:.0f} tokens on average, {outputs}; {loop}"


def _learned(rule: MarginalRule) -> str:
    c = rule.cost.constants
    prefill, decode, mixed, flips = rule.cost.rows
    kappa = c["k_m"] / c["k_d"] if c["k_d"] > 0 else 1.0
    return (
        f"learned from {prefill} prefill, {decode + flips} decode and {mixed} mixed iterations: "
        f"fixed cost {_ms(c['alpha_p'])} prefill, {_ms(c['alpha_d'])} decode (after a prefill "
        f"{_ms(c['flip'])} more), {_ms(c['alpha_m'])} mixed; {c['beta_p'] * 1e6:.1f} us/prompt "
        f"token, {c['b_d'] * 1e6:.1f} us/decode, {c['k_d'] * 1e9:.1f} ns/context token "
        f"(x{kappa:.2f} when mixed)"
    )


def _guard(guard: Guard) -> str:
    if guard.checking:
        return "safety net: comparing with mixed batching just now"
    if not guard.checks:
        return "safety net: not compared with mixed batching yet"
    gain = sum(guard.gains) / len(guard.gains) if guard.gains else 0.0
    verdict = "mixed batching stays" if guard.tripped else "the rule stays"
    return f"safety net: {gain:+.1%} against mixed batching in the last check; {verdict}"


def _ms(seconds: float) -> str:
    if seconds >= NEVER:
        return "any time"
    if abs(seconds) < 5e-7:
        return "0 ms"
    return f"{seconds * 1e3:.3g} ms" if abs(seconds) < 0.9995 else f"{seconds:,.2f} s"
