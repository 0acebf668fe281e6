"""How many CPU threads a model should run on."""

from __future__ import annotations

import math
import os
from pathlib import Path

import torch


def usable_cores() -> int:
    """Physical cores this process may use: its CPU affinity, two hardware threads of a core
    counted once (they share the arithmetic units), and its cgroup's CPU quota."""
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    if cpus is None:
        return os.cpu_count() or 1
    cores = {_siblings(cpu) for cpu in cpus}
    return max(1, min(len(cores), math.floor(_quota())))


def _siblings(cpu: int) -> str:
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    try:
        return path.read_text().strip()
    except OSError:
        return str(cpu)


def _quota() -> float:
    """CPUs' worth of time that the control group allows (cgroup v2), or infinity."""
    try:
        limit, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1.0, int(limit) / int(period))
    except (OSError, ValueError):
        return 1e9


def set_threads(threads: int | None) -> int:
    """Use so many threads for CPU kernels; None: all usable cores, or OMP_NUM_THREADS if that is
    set. Returns the number in use."""
    if threads is None and not os.environ.get("OMP_NUM_THREADS"):
        threads = usable_cores()
    if threads is not None:
        torch.set_num_threads(threads)
    return torch.get_num_threads()
