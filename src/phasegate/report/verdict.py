"""What to choose and why, in words."""

from __future__ import annotations

from collections.abc import Sequence

from phasegate.errors import PolicyError
from phasegate.policy.spec import parse_spec
from phasegate.report.metrics import BY_PATH, duration, figures
from phasegate.report.summary import RunSummary

SAME = 0.01
"""Throughputs within 1 % count as equal: then latency decides."""

BASELINES = ("stock", "mixed")
"""What others are compared with, the first that was run: another engine's own scheduler, or what
most servers do today."""

_CLEARLY = 0.9
"""Another policy is named if its latency is below this share of the choice's ..."""

_COMPARABLE = 0.9
"""... and its throughput above this share: an empty server is quick, but no alternative."""

_KEEPS_UP = 0.9
"""Below this share of the offered rate there is overload (the last answers take their time)."""

_LATENCIES = (("mean E2E", "e2e_s.mean"), ("mean TTFT", "ttft_s.mean"), ("ITL P99", "itl_s.p99"))


def best_run(runs: Sequence[RunSummary]) -> RunSummary:
    """The run to choose: of those with the highest throughput (within `SAME`), the one that ends
    requests soonest."""
    top = max(_throughput(run) for run in runs)
    equal = [run for run in runs if _throughput(run) >= top * (1 - SAME)]
    return min(equal, key=lambda run: run["e2e_s"]["mean"] or 0.0)


def compared_with(best: RunSummary, runs: Sequence[RunSummary]) -> RunSummary:
    """What `best` is held against: the first of `BASELINES`, with the fewest options, else the
    next best in throughput."""
    rest = [run for run in runs if run is not best]
    for name in BASELINES:
        plain = [run for run in rest if run["policy"].split(":")[0] == name]
        if plain:
            return min(plain, key=lambda run: len(run["policy"]))
    return max(rest, key=_throughput)


def verdict(runs: Sequence[RunSummary], offered: float | None = None) -> str:
    """What to choose and why; compares with one of `BASELINES` if it is among the runs.

    `offered` is the rate at which requests arrive, requests/s (None: closed loop or unknown).
    """
    served = [run for run in runs if run["requests"]["finished"] and _throughput(run)]
    if not served:
        return (
            "No request finished: prompt and output do not fit into the KV cache, or all aborted."
        )
    best = best_run(served)
    if len(served) == 1:
        text = f"{best['policy']} serves {_rate(best)}: {_latencies(best)}."
        return text + _caveats(best) + _overload(best, offered)
    other = compared_with(best, served)
    top = max(_throughput(run) for run in served)
    equal = [run for run in served if _throughput(run) >= top * (1 - SAME)]
    if len(equal) == 1:
        gain = _more(_throughput(best) / _throughput(other))
        text = f"{best['policy']} serves most: {_rate(best)}, {gain} {other['policy']}; "
    elif len(equal) == len(served):
        same = f"All serve {_rate(best)} within {SAME * 100:.0f} %"
        text = f"{same}; {best['policy']} ends requests soonest: "
    else:
        names = [run["policy"] for run in equal]
        who = _join(names) if len(names) <= 3 else f"{len(names)} of {len(served)} policies"
        text = f"{who} serve most: {_rate(best)}; {best['policy']} ends requests sooner: "
    text += f"{_latencies(best, other)}."
    return text + _others(best, served) + _caveats(best) + _overload(best, offered)


def _throughput(run: RunSummary) -> float:
    return run["throughput"]["requests_s"] or 0.0


def _rate(run: RunSummary) -> str:
    tokens = run["throughput"]["total_tokens_s"] or 0.0
    return f"{figures(_throughput(run))} requests/s ({figures(tokens)} tokens/s)"


def _latencies(run: RunSummary, other: RunSummary | None = None) -> str:
    """The latencies that matter; with those of `other` in brackets."""
    parts: list[str] = []
    for name, path in _LATENCIES:
        mine = BY_PATH[path].read(run)
        if mine is None:
            continue
        part = f"{name} {duration(mine)}"
        if other and (theirs := BY_PATH[path].read(other)) is not None:
            whose = "" if parts else f"{other['policy']} "
            part += f" ({whose}{duration(theirs)})"
        parts.append(part)
    return ", ".join(parts)


def _others(best: RunSummary, runs: Sequence[RunSummary]) -> str:
    """Policies that are clearly better than the choice in one respect."""
    text = ""
    for words, name, path in (
        ("Quickest first token", "mean TTFT", "ttft_s.mean"),
        ("Steadiest tokens", "ITL P99", "itl_s.p99"),
    ):
        read = BY_PATH[path].read
        mine = read(best)
        if mine is None:
            continue
        lead = min(
            (
                run
                for run in runs
                if read(run) is not None and _throughput(run) >= _COMPARABLE * _throughput(best)
            ),
            key=read,
        )
        if read(lead) < _CLEARLY * mine:
            text += f" {words}: {lead['policy']} ({name} {duration(read(lead))})."
    return text


def _caveats(run: RunSummary) -> str:
    requests = run["requests"]
    text = ""
    for word, count in (("rejected", requests["rejected"]), ("aborted", requests["aborted"])):
        if count:
            were = "was" if count == 1 else "were"
            text += f" {count:,} of {requests['submitted']:,} requests {were} {word}."
    text += _missed(run)
    if run["preemptions"] and run["preemptions"] > 0.01 * requests["submitted"]:
        text += f" It preempted {run['preemptions']:,} times: the KV cache is short."
    return text


def _missed(run: RunSummary) -> str:
    """Says so when a latency target of the policy was not kept."""
    try:
        targets = parse_spec(run["policy"])[1]
    except PolicyError:  # another engine's own scheduler
        return ""
    text = ""
    for option, name, path in (("itl", "ITL P99", "itl_s.p99"), ("ttft", "TTFT P99", "ttft_s.p99")):
        reached = BY_PATH[path].read(run)
        try:
            target = float(str(targets.get(option)))
        except ValueError:  # none, or one for each priority class
            continue
        if reached is not None and reached > target:
            text += f" It misses its target: {name} {duration(reached)}, wanted {duration(target)}."
    return text


def _overload(best: RunSummary, offered: float | None) -> str:
    """Says so when the queue grows without end: then latencies tell the length of the run."""
    if offered is None:
        return ""
    requests = best["requests"]
    accepted = offered * (1 - requests["rejected"] / requests["submitted"])
    if _throughput(best) > _KEEPS_UP * accepted:
        return ""
    end = "up to the queue limit" if requests["rejected"] else "as long as that lasts"
    return (
        f" Overload: {figures(offered)} requests/s arrive, more than are served; the queue and "
        f"TTFT grow {end}."
    )


def _more(ratio: float) -> str:
    if ratio >= 2:
        return f"{ratio:.1f}x"
    percent = (ratio - 1) * 100
    return f"{percent:.0f} % more than" if percent >= 10 else f"{percent:.1f} % more than"


def _join(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"
