"""Clocks. The engine never reads time from anywhere else."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Time in seconds from an arbitrary start; never goes back."""

    def now(self) -> float:
        """Current time, seconds."""
        ...

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass."""
        ...

    def wait_until(self, time: float) -> None:
        """Let time pass until `time` (nothing if that is in the past)."""
        ...


class VirtualClock:
    """Time that passes only when told to. Simulation and tests run on this."""

    __slots__ = ("_now",)

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        """Current virtual time, seconds."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move forward by `seconds`; raises ValueError if that would go back."""
        if not seconds >= 0.0:
            raise ValueError(f"a clock cannot advance by {seconds} s")
        self._now += seconds

    def wait_until(self, time: float) -> None:
        """Move to `time`, exactly; never back."""
        if time > self._now:
            self._now = time


class WallClock:
    """Real time since creation. `advance` sleeps: with a cost-model runner this makes the engine
    a GPU-free emulator of a server."""

    __slots__ = ("_start",)

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def now(self) -> float:
        """Seconds since this clock was made."""
        return time.perf_counter() - self._start

    def advance(self, seconds: float) -> None:
        """Sleep for `seconds` (nothing if <= 0)."""
        if seconds > 0.0:
            time.sleep(seconds)

    def wait_until(self, time: float) -> None:
        """Sleep until `time`."""
        self.advance(time - self.now())
