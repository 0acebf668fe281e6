"""phasegate inside an unmodified vLLM: `vllm serve MODEL --scheduler-cls phasegate.vllm.Scheduler`.

Importing this package imports nothing of vLLM, and installing it changes nothing by itself.
"""

from __future__ import annotations

from typing import Any


class Scheduler:
    """What `--scheduler-cls` names. Calling it builds vLLM's own scheduler with a phase gate.

    vLLM has one scheduler class for synchronous and one for asynchronous scheduling, and decides
    late which one it needs; the right one is built here. A class and not a function, because
    `LLM(scheduler_cls=...)` takes only a class or its name.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Build the scheduler; arguments are those that vLLM passes to its own."""
        from phasegate.vllm.scheduler import build

        return build(*args, **kwargs)


__all__ = ["Scheduler"]
