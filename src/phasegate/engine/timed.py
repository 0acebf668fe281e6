"""Records of runs that were timed from outside, one request at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from phasegate.engine.record import ITERATION_COLUMNS, REQUEST_COLUMNS, Array, RunRecord


class TimedRecord(RunRecord):
    """A record whose token times were taken per request: by who drives another engine, or by a
    client, who sees nothing of iterations, KV cache and preemptions."""

    def __init__(
        self,
        gaps: Sequence[Sequence[float]],
        requests: Sequence[Sequence[float]],
        iterations: Sequence[Sequence[float]] | None,
        **fields: Any,
    ) -> None:
        """
        Args:
            gaps: inter-token latencies of each request, seconds.
            requests: one row per request that ended, columns as in `RunRecord`.
            iterations: one row each, columns as in `RunRecord`; None: not known.
            fields: the others of `RunRecord`.
        """
        none = np.empty(0, dtype=np.int64)
        super().__init__(
            requests=_columns(REQUEST_COLUMNS, requests),
            iterations=_columns(ITERATION_COLUMNS, iterations or ()),
            stays={},
            ticks=np.empty(0),
            tick_decodes=none,
            tick_joined=none,
            **fields,
        )
        self.sees_inside = iterations is not None
        self._gaps = [np.array(row, dtype=np.float64) for row in gaps]

    def itl(self) -> tuple[Array, npt.NDArray[np.int64]]:
        """All inter-token latencies of the run: values in seconds, and how often each occurred."""
        values = np.concatenate(self._gaps) if self._gaps else np.empty(0)
        return values, np.ones(len(values), dtype=np.int64)

    def itl_values(self, row: int) -> Array:
        """The inter-token latencies of one request, in order, seconds."""
        return self._gaps[row]


def _columns(names: Sequence[str], rows: Sequence[Sequence[float]]) -> dict[str, Array]:
    table = np.array(rows, dtype=np.float64).reshape(len(rows), len(names))
    return {name: table[:, i] for i, name in enumerate(names)}
