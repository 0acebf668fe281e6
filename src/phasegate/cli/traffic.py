"""From the traffic options of a command to a table of requests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from phasegate.errors import InputError
from phasegate.workload.draw import draw
from phasegate.workload.spec import WorkloadSpec
from phasegate.workload.table import RequestTable
from phasegate.workload.traces import read_trace

DEFAULT_WORKLOAD = "prompt=512,output=256,prompt_dist=uniform:0.5,output_dist=geometric"
DEFAULT_CONCURRENCY = 256
DEFAULT_REQUESTS = 2000


@dataclass(frozen=True, slots=True)
class Traffic:
    """The options; None is what was not given."""

    workload: str | None = None
    trace: Path | None = None
    concurrency: int | None = None
    rate: float | None = None
    rate_scale: float | None = None
    requests: int | None = None
    seed: int = 0

    def check(self) -> None:
        """Raise InputError if options contradict each other."""
        if self.workload is not None and self.trace is not None:
            raise InputError("--workload and --trace contradict each other; give one of them")
        given = [
            name
            for name, value in (
                ("--concurrency", self.concurrency),
                ("--rate", self.rate),
                ("--rate-scale", self.rate_scale),
            )
            if value is not None
        ]
        if len(given) > 1:
            raise InputError(f"{' and '.join(given)} contradict each other; give one of them")
        if self.rate_scale is not None and self.trace is None:
            raise InputError("--rate-scale speeds up a trace; give --trace, or use --rate")

    @property
    def is_default(self) -> bool:
        """Nobody said what the traffic is."""
        return self.workload is None and self.trace is None

    def table(self) -> RequestTable:
        """All requests of the run. Raises InputError if the options make no sense."""
        self.check()
        if self.trace is not None:
            return self._recorded(self.trace)
        concurrency, requests = self.concurrency, self.requests
        if self.is_default:
            requests = requests or DEFAULT_REQUESTS
            if self.rate is None and concurrency is None:
                concurrency = DEFAULT_CONCURRENCY
        spec = WorkloadSpec.parse(self.workload or DEFAULT_WORKLOAD)
        resolved = spec.resolve(rate=self.rate, concurrency=concurrency, requests=requests)
        return draw(resolved, self.seed)

    def _recorded(self, trace: Path) -> RequestTable:
        table = read_trace(trace, limit=self.requests)
        if self.concurrency is not None:
            return table.closed(self.concurrency)
        if self.rate is not None:
            return table.at_rate(self.rate, seed=self.seed)
        if self.rate_scale is not None:
            return table.scaled(self.rate_scale)
        return table
