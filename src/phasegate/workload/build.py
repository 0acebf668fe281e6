"""The short way from a spec or a trace to a source."""

from __future__ import annotations

from phasegate.workload.draw import draw
from phasegate.workload.source import ClosedSource, OpenSource, source_of
from phasegate.workload.spec import WorkloadSpec


def make_source(
    spec: WorkloadSpec | str,
    *,
    rate: float | None = None,
    concurrency: int | None = None,
    requests: int | None = None,
    seed: int = 0,
) -> OpenSource | ClosedSource:
    """The source of a synthetic workload.

    Args:
        spec: a spec or its text.
        rate, concurrency, requests: what the spec leaves open, see WorkloadSpec.resolve.
        seed: the same seed gives the same requests.

    Raises:
        WorkloadError: the spec or an argument makes no sense.
    """
    if isinstance(spec, str):
        spec = WorkloadSpec.parse(spec)
    resolved = spec.resolve(rate=rate, concurrency=concurrency, requests=requests)
    return source_of(draw(resolved, seed))
