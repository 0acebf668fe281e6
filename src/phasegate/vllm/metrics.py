"""phasegate_* metrics, from the engine core's process to vLLM's `/metrics` in the API server's.

With PROMETHEUS_MULTIPROC_DIR set (vLLM does so for several API servers) prometheus_client carries
them. Otherwise a small file does: named after the API server's process, written once a second,
read when somebody scrapes. `vllm.general_plugins` is vLLM's official way into that process.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import tempfile
from collections.abc import Iterator
from multiprocessing import parent_process
from pathlib import Path
from time import monotonic
from typing import Any

from prometheus_client import REGISTRY, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

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
    "phasegate_mean_prompt_tokens": "Estimated mean prompt length of the traffic (mu_L)",
    "phasegate_mean_output_tokens": "Estimated mean output length of the traffic (mu_O)",
    "phasegate_cost_seconds": "Learned: an iteration (alpha_*), a prompt token (beta_p), a decode "
    "(b_d), a context token (k_d), a squared prompt token (beta_q)",
    "phasegate_kappa": "Learned: what context costs in mixed iterations, relative to decode-only",
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
    rows += [(f"phasegate_{name}_total", {}, float(n)) for name, n in gate.counts.items()]
    if (learned := gate.learned) is None:
        return rows
    if (traffic := learned.traffic) is not None and traffic.version:
        rows.append(("phasegate_mean_prompt_tokens", {}, traffic.mean_prompt))
        rows.append(("phasegate_mean_output_tokens", {}, traffic.mean_output))
    if (known := learned.constants()) is not None:
        constants = known.model_dump(exclude={"kind", "host"})
        rows.append(("phasegate_kappa", {}, constants.pop("kappa")))
        rows += [("phasegate_cost_seconds", {"constant": c}, v) for c, v in constants.items()]
    return rows


def _folder() -> Path:
    return Path(tempfile.gettempdir())


class Publisher:
    """Publishes a gate's samples once a second. Errors end the metrics, not the gate."""

    def __init__(self, config: Any) -> None:
        self._rank = config.parallel_config.data_parallel_index
        server = parent_process()  # None: the engine runs in the server's own process
        pid = os.getpid() if server is None else server.pid
        self._file = _folder() / f"phasegate-{pid}-{self._rank}.json"
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
    """Reads the files of this process's engines when Prometheus scrapes."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self.clear()  # another process may have had this number
        atexit.register(self.clear)  # vLLM may kill the engine's process

    def _files(self) -> Iterator[Path]:
        return _folder().glob(f"phasegate-{self._pid}-*.json")

    def clear(self) -> None:
        """Remove the files."""
        if os.getpid() == self._pid:  # not in a fork
            for file in self._files():
                file.unlink(missing_ok=True)

    def collect(self) -> Iterator[Metric]:
        """The samples of the engines; none while they have not published yet."""
        families: dict[str, Metric] = {}
        for file in sorted(self._files()):
            rank = file.stem.rsplit("-", 1)[1]
            with contextlib.suppress(OSError, ValueError):
                for name, labels, value in json.loads(file.read_text()):
                    family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
                    if name not in families:
                        families[name] = family(name, HELP[name], labels=["engine", *labels])
                    families[name].add_metric([rank, *labels.values()], value)
        yield from families.values()


def register() -> None:
    """Entry point of the group `vllm.general_plugins`: runs in every process of vLLM, and does
    nothing there but offer what our schedulers have published, if there are any."""
    REGISTRY.register(Collector())
