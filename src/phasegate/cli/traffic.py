"""From the traffic options of a command to a table of requests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from phasegate.errors import InputError
from phasegate.workload.draw import draw
from phasegate.workload.spec import DEFAULT_REQUESTS, WorkloadSpec
from phasegate.workload.table import RequestTable
from phasegate.workload.traces import read_trace

DEFAULT_WORKLOAD = "prompt=512,output=256,prompt_dist=uniform:0.5,output_dist=geometric"
DEFAULT_CONCURRENCY = 256


@dataclass(frozen=True, slots=True)
class Traffic:
    """The options; None is what was not given."""

    workload: str | None = None
    trace: Path | None = None
    concurrency: int | None = None
    rate: float | None = None
    rate_scale: float | None = None
    requests: int | None = None
    seed: int | None = None

    def check(self, queue_limit: int | None = None) -> None:
        """Raise InputError if options contradict each other, or if one of them would do nothing."""
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
        if self.seed is not None and self.trace is not None and self.rate is None:
            raise InputError(
                f"--seed {self.seed} has no use: a trace is replayed as it is; leave it out, or "
                "give --rate for random arrivals"
            )
        if queue_limit is not None and self._closed:
            raise InputError(
                f"--queue-limit {queue_limit} has no use in a closed loop, where each rejection "
                "brings the next request; give --rate or a trace"
            )

    @property
    def is_default(self) -> bool:
        """Nobody said what the traffic is."""
        return self.workload is None and self.trace is None

    @property
    def files(self) -> list[Path]:
        """The files that the traffic is read from. Raises InputError if the options are wrong."""
        if self.trace is not None:
            return [self.trace]
        return [] if self.workload is None else WorkloadSpec.parse(self.workload).files

    @property
    def defaults(self) -> list[str]:
        """The options that nobody gave, with the values they have then."""
        options = []
        if self.is_default:
            options.append(f"--workload {DEFAULT_WORKLOAD}")
            if self.rate is None and self.concurrency is None:
                options.append(f"--concurrency {DEFAULT_CONCURRENCY}")
        open_end = self.trace is None and any(p.requests is None for p in self._spec.phases)
        if open_end and self.requests is None:
            options.append(f"--requests {DEFAULT_REQUESTS}")
        return options

    @property
    def _spec(self) -> WorkloadSpec:
        return WorkloadSpec.parse(DEFAULT_WORKLOAD if self.workload is None else self.workload)

    @property
    def _closed(self) -> bool:
        if self.concurrency is not None:
            return True
        return self.trace is None and self.rate is None and (self.is_default or self._spec.closed)

    def table(self) -> RequestTable:
        """All requests of the run. Raises InputError if the options make no sense."""
        self.check()
        if self.trace is not None:
            return self._recorded(self.trace)
        concurrency = self.concurrency
        if self.is_default and self.rate is None and concurrency is None:
            concurrency = DEFAULT_CONCURRENCY
        resolved = self._spec.resolve(
            rate=self.rate, concurrency=concurrency, requests=self.requests
        )
        return draw(resolved, self.seed or 0)

    def _recorded(self, trace: Path) -> RequestTable:
        table = read_trace(trace, limit=self.requests)
        if self.concurrency is not None:
            return table.closed(self.concurrency)
        if self.rate is not None:
            return table.at_rate(self.rate, seed=self.seed or 0)
        if self.rate_scale is not None:
            return table.scaled(self.rate_scale)
        return table
