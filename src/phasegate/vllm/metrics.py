"""phasegate_* metrics, from the engine core's process to vLLM's `/metrics` in the API server's.

With PROMETHEUS_MULTIPROC_DIR set (vLLM does so for several API servers) prometheus_client carries
them. Otherwise a small file does: named after the server's instance, written once a second, read
when somebody scrapes. `vllm.stat_logger_plugins` is vLLM's official way into the API server.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

from prometheus_client import REGISTRY, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from vllm.v1.metrics.loggers import StatLoggerBase

from phasegate.files import write_atomic
from phasegate.vllm.gate import Gate

PERIOD = 1.0
"""Seconds between two publications."""
Sample = tuple[str, dict[str, str], float]

HELP = {
    "phasegate_mode": "1 for the mode the policy is in",
    "phasegate_k": "Freed slots that start a refill (0: the mode has none)",
    "phasegate_n": "Most requests that may run at once",
    "phasegate_fallback": "1 after an error in phasegate: stock scheduling since then",
    "phasegate_iterations_total": "Iterations by what they held",
    "phasegate_iteration_seconds_total": "Time spent in them, host time included",
    "phasegate_switches_total": "Changes of mode",
    "phasegate_blocked_admissions_total": "Admissions stopped because KV had no room",
    "phasegate_preemptions_total": "Requests preempted",
}


def samples(gate: Gate) -> list[Sample]:
    """What is to be known of this gate: (name, labels, value)."""
    mode, k, n = gate.policy.decision
    gate.modes.add(mode)
    rows: list[Sample] = [("phasegate_mode", {"mode": m}, float(m == mode)) for m in gate.modes]
    rows += [("phasegate_k", {}, float(k or 0)), ("phasegate_n", {}, float(n))]
    rows.append(("phasegate_fallback", {}, float(gate.failed is not None)))
    for kind, count in gate.iterations.items():
        rows.append(("phasegate_iterations_total", {"kind": kind}, float(count)))
        rows.append(("phasegate_iteration_seconds_total", {"kind": kind}, gate.seconds[kind]))
    return rows + [(f"phasegate_{name}_total", {}, float(n)) for name, n in gate.counts.items()]


def _file(config: Any, rank: int) -> Path:
    return Path(tempfile.gettempdir()) / f"phasegate-{config.instance_id}-{rank}.json"


class Publisher:
    """Publishes a gate's samples once a second. Errors end the metrics, not the gate."""

    def __init__(self, config: Any) -> None:
        self._rank = config.parallel_config.data_parallel_index
        self._file = _file(config, self._rank)
        atexit.register(self._file.unlink, missing_ok=True)
        self._due = 0.0
        self._metrics: dict[str, Any] = {}
        self._last: dict[Any, float] = {}

    def __call__(self, gate: Gate) -> None:
        """Publish if it is time, or if the gate has failed."""
        if monotonic() < self._due and gate.failed is None:
            return
        self._due = monotonic() + PERIOD
        try:
            if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
                self._set(samples(gate))
            else:
                write_atomic(self._file, json.dumps(samples(gate)))
        except Exception as error:
            self._due = float("inf")
            logging.getLogger("vllm.phasegate").warning("phasegate: no metrics (%s)", error)

    def _set(self, rows: list[Sample]) -> None:
        for name, labels, value in rows:
            counts = name.endswith("_total")
            labels = {"engine": str(self._rank), **labels}
            if name not in self._metrics:
                self._metrics[name] = (
                    Counter(name, HELP[name], list(labels))
                    if counts
                    else Gauge(name, HELP[name], list(labels), multiprocess_mode="livemostrecent")
                )
            metric, key = self._metrics[name].labels(**labels), (name, *labels.values())
            if counts:
                metric.inc(value - self._last.get(key, 0.0))
                self._last[key] = value
            else:
                metric.set(value)


class Collector:
    """Reads the file of an engine when Prometheus scrapes."""

    def __init__(self, file: Path, rank: int) -> None:
        self._file, self._rank = file, str(rank)
        atexit.register(file.unlink, missing_ok=True)  # vLLM may kill the engine's process

    def collect(self) -> Iterator[Metric]:
        """The samples of the engine; none while it has not published yet."""
        families: dict[str, Metric] = {}
        with contextlib.suppress(OSError, ValueError):
            for name, labels, value in json.loads(self._file.read_text()):
                family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
                if name not in families:
                    families[name] = family(name, HELP[name], labels=["engine", *labels])
                families[name].add_metric([self._rank, *labels.values()], value)
        yield from families.values()


class PhasegateStatLogger(StatLoggerBase):
    """Entry point of the group `vllm.stat_logger_plugins`; idle unless our scheduler is chosen."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        chosen = str(vllm_config.scheduler_config.scheduler_cls)
        if "phasegate" in chosen and "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            REGISTRY.register(Collector(_file(vllm_config, engine_index), engine_index))

    def record(self, *args: Any, **kwargs: Any) -> None:
        """Nothing per iteration."""

    def log_engine_initialized(self) -> None:
        """Nothing to say."""
