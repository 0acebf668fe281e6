"""Workloads: synthetic specs, recorded traces, and the sources that feed them to the engine."""

from phasegate.workload.build import make_source
from phasegate.workload.source import ClosedSource, OpenSource, Source, source_of
from phasegate.workload.spec import WorkloadSpec
from phasegate.workload.table import RequestTable

__all__ = [
    "ClosedSource",
    "OpenSource",
    "RequestTable",
    "Source",
    "WorkloadSpec",
    "make_source",
    "source_of",
]
