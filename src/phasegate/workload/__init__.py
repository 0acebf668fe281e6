"""Workloads: synthetic specs, recorded traces, and the sources that feed them to the engine."""

from phasegate.workload.build import make_source, trace_source
from phasegate.workload.describe import WorkloadStats, describe
from phasegate.workload.draw import draw
from phasegate.workload.source import ClosedSource, OpenSource, Source, source_of
from phasegate.workload.spec import WorkloadSpec
from phasegate.workload.table import RequestTable
from phasegate.workload.traces import read_trace

__all__ = [
    "ClosedSource",
    "OpenSource",
    "RequestTable",
    "Source",
    "WorkloadSpec",
    "WorkloadStats",
    "describe",
    "draw",
    "make_source",
    "read_trace",
    "source_of",
    "trace_source",
]
