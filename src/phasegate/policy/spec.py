"""Policy spec strings: `name` or `name:option=value,option=value`.

    mixed    mixed:n=safe    exclusive:k=16    exclusive:theta=0.3,max_hold=1    static:n=8

One table names every policy with its options; parsing, checking, help texts and building follow
from it.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass

from phasegate.cost.model import CostModel
from phasegate.cost.online import Prior
from phasegate.errors import PolicyError
from phasegate.policy.auto import Auto
from phasegate.policy.base import NEVER, UNLIMITED, Policy
from phasegate.policy.capacity import Capacity, CheaperCapacity, FixedCapacity, MemorySafeCapacity
from phasegate.policy.exclusive import Exclusive
from phasegate.policy.hybrid import Hybrid
from phasegate.policy.mixed import Mixed
from phasegate.policy.options import Options
from phasegate.policy.paper import PaperHybrid, PaperThreshold
from phasegate.policy.slo import LatencyTargets, parse_targets
from phasegate.policy.static import Static
from phasegate.policy.threshold import Threshold
from phasegate.policy.traffic import TrafficMonitor
from phasegate.scheduler.limits import Limits

Value = int | float | str
Values = dict[str, Value]

SAFE = "safe"


@dataclass(frozen=True)
class Option:
    """One option: its help text, its default in words, and how to read its value."""

    help: str
    default: str
    read: Callable[[str], Value]


@dataclass(frozen=True)
class PolicyKind:
    """One policy: what it does, its own options, and how it is built."""

    summary: str
    options: dict[str, Option]
    build: Callable[[Values, CostModel | None, Limits, str], Policy]


def _count(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise ValueError("must be a whole number of at least 1")
    return value


def _slots(text: str) -> Value:
    return SAFE if text == SAFE else _count(text)


def _share(text: str) -> float:
    value = float(text)
    if not 0.0 < value <= 1.0:
        raise ValueError("must be above 0 and at most 1")
    return value


def _probability(text: str) -> float:
    value = float(text)
    if not 0.0 < value < 0.5:
        raise ValueError("must be above 0 and below 0.5")
    return value


def _seconds(text: str) -> float:
    if text == "none":
        return NEVER
    value = float(text)
    if not value >= 0.0 or value == NEVER:
        raise ValueError("must be a number of seconds, or none")
    return value


def _targets(text: str) -> str:
    parse_targets(text)
    return text


def _rule(text: str) -> str:
    if text not in ("ours", "paper"):
        raise ValueError("must be ours or paper")
    return text


MAX_HOLD = 2.0
"""Default guard of the exclusive policies, seconds."""

MAX_STALL = 2.0
"""Default bound on how long a refill keeps decoding requests waiting, seconds."""

_N = "the most running requests, or `safe`: as many as fit KV by the traffic seen"
_HELD = "longest time a request is held back although it has room, seconds, or none"
SHARED = {
    "n": Option(_N, "the engine's slots", _slots),
    "token_budget": Option("the most tokens in one iteration", "the engine's budget", _count),
    "chunk": Option("longest prompt slice of one request per iteration", "no limit", _count),
    "max_hold": Option(_HELD, f"{MAX_HOLD:g}", _seconds),
}
_STALL = {
    "max_stall": Option(
        "seconds after which a refill lets those that decode go on, once its current iteration has "
        "ended, or none",
        f"{MAX_STALL:g}",
        _seconds,
    )
}
_EPS = {"eps": Option("accepted probability that KV overflows (with n=safe)", "0.01", _probability)}
_RULE = {"rule": Option("`ours`, or `paper` for arXiv 2606.00516 to the letter", "ours", _rule)}
_CLASSES = "seconds, or by priority class as in 0:0.05/5:0.5/9:none"
_SAFE_N = {"n": Option(_N, SAFE, _slots)}
_CHEAPER_N = {"n": Option(_N, "safe, but the engine's slots where that is faster", _slots)}


def _options(values: Values) -> Options:
    n = values.get("n", UNLIMITED)
    return Options(
        n=UNLIMITED if n == SAFE else int(n),
        token_budget=int(values.get("token_budget", UNLIMITED)),
        chunk=int(values.get("chunk", UNLIMITED)),
        max_hold=float(values.get("max_hold", MAX_HOLD)),
        max_stall=float(values.get("max_stall", MAX_STALL)),
    )


def _check_eps(values: Values, spec: str) -> None:
    if "eps" in values and values.get("n") != SAFE:
        raise PolicyError(f"{spec!r}: option eps belongs to n=safe; add that, or leave eps out")


def _capacity(
    values: Values, options: Options, limits: Limits, monitor: TrafficMonitor | None
) -> Capacity:
    if monitor is not None and values.get("n") == SAFE:
        return MemorySafeCapacity(monitor, limits.page, float(values.get("eps", 0.01)))
    return FixedCapacity(options.n)


def _learned_capacity(
    values: Values, cost: CostModel, options: Options, limits: Limits, monitor: TrafficMonitor
) -> Capacity:
    """As asked for; memory-safe where that is not slower, if nothing was."""
    if "n" in values or "eps" in values:
        return _capacity({"n": SAFE, **values}, options, limits, monitor)
    return CheaperCapacity(cost, monitor, limits.page, 0.01)


def _known(cost: CostModel | None, spec: str) -> CostModel:
    if cost is None:
        raise PolicyError(f"policy {spec!r} needs to know what iterations cost; give a profile")
    return cost


def _build_static(values: Values, cost: CostModel | None, limits: Limits, spec: str) -> Policy:
    return Static(_options({"max_hold": NEVER, **values}), spec)


def _build_mixed(values: Values, cost: CostModel | None, limits: Limits, spec: str) -> Policy:
    _check_eps(values, spec)
    options = _options(values)
    monitor = TrafficMonitor() if values.get("n") == SAFE else None
    return Mixed(options, _capacity(values, options, limits, monitor), monitor, spec)


def _build_exclusive(values: Values, cost: CostModel | None, limits: Limits, spec: str) -> Policy:
    if "k" in values and "theta" in values:
        raise PolicyError(f"{spec!r}: options k and theta contradict each other; give one of them")
    _check_eps(values, spec)
    options = _options(values)
    k = int(values["k"]) if "k" in values else None if "theta" in values else 1
    if k is not None and k > options.n:
        raise PolicyError(f"{spec!r}: k={k} is more than n={options.n}; lower k or raise n")
    theta = float(values["theta"]) if "theta" in values else None
    monitor = TrafficMonitor() if values.get("n") == SAFE else None
    capacity = _capacity(values, options, limits, monitor)
    return Exclusive(options, capacity, monitor, k, theta, spec)


def _build_threshold(values: Values, cost: CostModel | None, limits: Limits, spec: str) -> Policy:
    cost = _known(cost, spec)
    _check_eps({"n": SAFE, **values}, spec)
    options = _options({"n": SAFE, **values})
    if values.get("rule") == "paper":
        options = _options({"n": SAFE, "max_stall": NEVER, **values})
        n = None if values.get("n", SAFE) == SAFE else options.n
        return PaperThreshold(options, cost, n, float(values.get("eps", 0.01)), spec)
    monitor = TrafficMonitor()
    capacity = _learned_capacity(values, cost, options, limits, monitor)
    return Threshold(options, cost, capacity, monitor, spec)


def _build_hybrid(values: Values, cost: CostModel | None, limits: Limits, spec: str) -> Policy:
    cost = _known(cost, spec)
    _check_eps({"n": SAFE, **values}, spec)
    options = _options({"n": SAFE, **values})
    if values.get("rule") == "paper":
        options = _options({"n": SAFE, "max_stall": NEVER, **values})
        n = None if values.get("n", SAFE) == SAFE else options.n
        return PaperHybrid(options, cost, n, float(values.get("eps", 0.01)), spec)
    monitor = TrafficMonitor()
    capacity = _learned_capacity(values, cost, options, limits, monitor)
    return Hybrid(options, cost, capacity, monitor, spec)


def _build_auto(values: Values, cost: CostModel | None, limits: Limits, spec: str) -> Policy:
    itl, ttft = (parse_targets(str(values.get(name, "none"))) for name in ("itl", "ttft"))
    hold = values.get("max_hold")
    return Auto(
        _options({"n": SAFE, **values}),
        Prior.unknown() if cost is None else Prior.of(cost),
        limits.page,
        spec,
        targets=LatencyTargets(itl, ttft),
        max_hold=None if hold is None else float(hold),
    )


POLICIES: dict[str, PolicyKind] = {
    "static": PolicyKind(
        "n requests are bound together until the last of them has finished",
        {
            **SHARED,
            "n": Option("requests per batch", "the engine's slots", _count),
            "max_hold": Option(_HELD, "none", _seconds),
        },
        _build_static,
    ),
    "mixed": PolicyKind(
        "decode first, chunked prefill in what is left of the token budget (every engine's "
        "default)",
        {
            **SHARED,
            "max_hold": Option("any value holds: mixed batching never holds back", "0", _seconds),
            **_EPS,
        },
        _build_mixed,
    ),
    "exclusive": PolicyKind(
        "EB(k): decode until k of N slots are free, then prefill alone",
        {
            "k": Option("freed slots that start a refill", "1", _count),
            "theta": Option("the same as a share of N", "unset", _share),
            **SHARED,
            **_STALL,
            **_EPS,
        },
        _build_exclusive,
    ),
    "threshold": PolicyKind(
        "EB(k*): exclusive, with k* and a memory-safe N from the traffic as it comes",
        {**SHARED, **_CHEAPER_N, **_STALL, **_EPS, **_RULE},
        _build_threshold,
    ),
    "hybrid": PolicyKind(
        "EB+: mixed or EB(k*), whichever the cost model says is faster for the traffic seen",
        {**SHARED, **_CHEAPER_N, **_STALL, **_EPS, **_RULE},
        _build_hybrid,
    ),
    "auto": PolicyKind(
        "at every refill whatever costs least, on costs learned while serving; keeps latency "
        "targets; needs no profile",
        {
            "itl": Option(
                f"target for P99 of the time between tokens, {_CLASSES}", "none", _targets
            ),
            "ttft": Option(f"target for the time to first token, {_CLASSES}", "none", _targets),
            **SHARED,
            **_SAFE_N,
            "max_hold": Option(_HELD, "0.1, or 2 if clients wait for answers", _seconds),
            **_STALL,
        },
        _build_auto,
    ),
}
"""Every policy by name."""


def parse_spec(spec: str) -> tuple[str, Values]:
    """Split a spec string into the policy's name and its option values.

    Raises PolicyError, in one line, for an unknown policy or option, a value that cannot be read,
    or an option given twice.
    """
    name, _, rest = spec.strip().partition(":")
    name = name.strip()
    if name not in POLICIES:
        raise PolicyError(
            f"policy {name!r} is unknown;{_guess(name, POLICIES)} choose from {', '.join(POLICIES)}"
        )
    if spec.strip().endswith(":"):
        raise PolicyError(f"policy {spec!r}: no option behind the colon; leave it out")
    options = POLICIES[name].options
    values: Values = {}
    for item in rest.split(",") if rest.strip() else ():
        key, equals, text = (part.strip() for part in item.partition("="))
        if not equals or not key or not text:
            raise PolicyError(f"policy {spec!r}: {item.strip()!r} is not option=value")
        if key not in options:
            raise PolicyError(
                f"policy {spec!r}: option {key!r} is unknown;{_guess(key, options)} "
                f"{name} takes {', '.join(options)}"
            )
        if key in values:
            raise PolicyError(f"policy {spec!r}: option {key!r} is given twice; keep one")
        try:
            values[key] = options[key].read(text)
        except ValueError as error:
            reason = str(error)
            if not reason.startswith("must"):
                reason = "is not a number"
            raise PolicyError(
                f"policy {spec!r}: {key}={text} {reason} ({options[key].help})"
            ) from None
    return name, values


def check_within(spec: str, limits: Limits) -> None:
    """Raise PolicyError if a spec asks for more than the engine has. `build_policy` takes what
    there is; a person who asks for more is mistaken about one of the two."""
    values = parse_spec(spec)[1]
    for option, most, what in (
        ("n", limits.running, "slots"),
        ("k", limits.running, "slots"),
        ("token_budget", limits.token_budget, "tokens per iteration"),
    ):
        value = values.get(option, 0)
        if isinstance(value, int) and value > most:
            raise PolicyError(
                f"policy {spec!r}: {option}={value} is more than the engine's {most} {what}; "
                f"lower {option} or give the engine more"
            )


def build_policy(spec: str, cost: CostModel | None, limits: Limits) -> Policy:
    """Build a fresh policy from its spec string.

    Args:
        spec: see `parse_spec`.
        cost: what an iteration costs; the policies that choose by cost read it. None if that
            is not known: `auto` learns it, `threshold` and `hybrid` cannot do without.
        limits: of the engine it will drive.

    Raises PolicyError, in one line, if the spec is wrong or contradicts itself.
    """
    name, values = parse_spec(spec)
    return POLICIES[name].build(values, cost, limits, spec.strip())


def _guess(word: str, known: dict[str, PolicyKind] | dict[str, Option]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f" did you mean {close[0]}?" if close else ""
