"""Workload specs: one line of text that says what a synthetic workload looks like.

    prompt=512,output=256,prompt_dist=uniform:0.5,output_dist=geometric,concurrency=64
    prompt=1024,output=128,requests=2000;prompt=512,output=512,requests=2000

Keys are separated by commas, phases by semicolons. A phase stands alone: what it does not say
has its default, not the value of the phase before. docs/workloads.md lists the keys.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

from phasegate.errors import WorkloadError
from phasegate.workload.phase import MAX_REQUESTS, Phase, value_text

DEFAULT_REQUESTS = 2000
"""Requests of a run when nobody says how many."""

MAX_MESSAGE = 400
"""Longest message about a phase: it may quote what somebody pasted by mistake."""


@dataclass(frozen=True)
class WorkloadSpec:
    """A synthetic workload: one or more phases, either all open loop or all closed loop.

    `str(spec)` is canonical: it parses back to an equal spec, and equal specs give equal text.
    """

    phases: tuple[Phase, ...]

    def __post_init__(self) -> None:
        if not self.phases:
            raise WorkloadError("workload: it has no phase")
        _check_one_kind(self.phases)
        for number, phase in enumerate(self.phases[:-1], 1):
            if phase.requests is None:
                raise WorkloadError(
                    f"workload phase {number}: requests= is missing; only the last phase may go"
                    " without"
                )
        total = sum(phase.requests or 0 for phase in self.phases)
        if total > MAX_REQUESTS:
            raise WorkloadError(f"workload: {total} requests in all are more than {MAX_REQUESTS}")

    @classmethod
    def parse(cls, text: str) -> WorkloadSpec:
        """The spec written as `text`.

        Raises:
            WorkloadError: one line that names the phase, the key, the value and the remedy.
        """
        parts = text.split(";")
        phases = []
        for number, part in enumerate(parts, 1):
            try:
                phases.append(Phase.of(**_split(part)))
            except WorkloadError as error:
                where = f"workload phase {number}" if len(parts) > 1 else "workload"
                line = " ".join(str(error).split())  # it may quote line breaks of the text
                raise WorkloadError(f"{where}: {line[:MAX_MESSAGE]}") from None
        return cls(tuple(phases))

    def resolve(
        self,
        *,
        rate: float | None = None,
        concurrency: int | None = None,
        requests: int | None = None,
    ) -> WorkloadSpec:
        """The same workload with nothing left open: how requests arrive and how many.

        Args:
            rate: requests per second of the phases that say neither rate nor concurrency.
            concurrency: the same for a closed loop.
            requests: of the whole run. The last phase takes what the others leave, if it does
                not say; if it does, a smaller number ends the run early.

        Raises:
            WorkloadError: arguments that contradict each other or the spec, or a phase for which
                neither a rate nor a concurrency is known.
        """
        if rate is not None and concurrency is not None:
            raise WorkloadError("a rate (open loop) and a concurrency (closed loop): give only one")
        given = {"rate": rate} if concurrency is None else {"concurrency": concurrency}
        silent = [phase.rate is None and phase.concurrency is None for phase in self.phases]
        for name, value in given.items():
            if value is None and any(silent):
                raise WorkloadError(
                    "workload: give a rate (requests/s, open loop) or a concurrency (requests in"
                    " the system, closed loop)"
                )
            if value is not None and not any(silent):
                raise WorkloadError(
                    f"{name}={value} has no use: every phase of the workload says its own rate or"
                    " concurrency; change it there"
                )
        phases = [
            phase.changed(**given) if open_ else phase
            for phase, open_ in zip(self.phases, silent, strict=True)
        ]
        return WorkloadSpec(tuple(_share_out(phases, requests)))

    @property
    def files(self) -> list[Path]:
        """The files that its length laws are read from."""
        laws = [law for phase in self.phases for law in (phase.prompt_dist, phase.output_dist)]
        parts = [law.partition(":") for law in laws]
        return [Path(file) for name, _, file in parts if name == "empirical"]

    @property
    def closed(self) -> bool:
        """Whether requests come when others end (a resolved workload; one kind throughout)."""
        return self.phases[0].concurrency is not None

    @property
    def label(self) -> str:
        """A few words for a person, e.g. "1024/128 > 512/512 tokens, 64 concurrent"."""
        words = [" > ".join(_distinct([phase.label for phase in self.phases])) + " tokens"]
        for field, unit in (("concurrency", "concurrent"), ("rate", "requests/s")):
            values = [getattr(phase, field) for phase in self.phases]
            if None not in values:
                words.append(" > ".join(_distinct([value_text(v) for v in values])) + f" {unit}")
        return ", ".join(words)

    def __str__(self) -> str:
        return ";".join(map(str, self.phases))


def _split(text: str) -> dict[str, str]:
    """The key=value pairs of one phase."""
    values: dict[str, str] = {}
    known = list(Phase.model_fields)
    for item in text.split(","):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not item.strip():
            raise WorkloadError(f"an empty item in {text.strip()!r}; write key=value,key=value")
        if not equals or not value:
            raise WorkloadError(f"{item.strip()!r} is not of the form key=value")
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"
            raise WorkloadError(f"unknown key {key!r}; {hint}")
        if key in values:
            raise WorkloadError(f"{key} is given twice, as {values[key]} and as {value}")
        values[key] = value
    return values


def _check_one_kind(phases: tuple[Phase, ...]) -> None:
    rate = [n for n, phase in enumerate(phases, 1) if phase.rate is not None]
    concurrency = [n for n, phase in enumerate(phases, 1) if phase.concurrency is not None]
    if rate and concurrency:
        raise WorkloadError(
            f"workload: phase {rate[0]} has a rate (open loop) and phase {concurrency[0]} a"
            " concurrency (closed loop); use one kind throughout"
        )


def _share_out(phases: list[Phase], requests: int | None) -> list[Phase]:
    """Give every phase its number of requests, `requests` in all (see WorkloadSpec.resolve)."""
    if requests is not None and not 1 <= requests <= MAX_REQUESTS:
        raise WorkloadError(f"requests={requests}: has to be from 1 to {MAX_REQUESTS}")
    left = requests
    shared = []
    for phase in phases:
        count = phase.requests
        if count is None:
            count = DEFAULT_REQUESTS if left is None else left
        if left is not None:
            count = min(count, left)
            left -= count
        if count:
            shared.append(phase.changed(requests=count))
    if left:
        raise WorkloadError(
            f"requests={requests}, but the workload says that it sends {(requests or 0) - left};"
            " lower the former or raise the latter"
        )
    return shared


def _distinct(texts: list[str]) -> list[str]:
    """The texts without repetitions if they are all the same."""
    return texts[:1] if len(set(texts)) == 1 else texts
