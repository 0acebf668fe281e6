"""Run a compiled function on the threads that PyTorch already has.

PyTorch's CPU kernels run on a pool of GNU OpenMP threads that spin for a while after every
parallel region. A second pool (numba's own, say) would fight with it for the same cores. So our
CPU kernels are started on PyTorch's pool, through the library that PyTorch ships.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import torch

Launch = Callable[[int, int, int], None]
"""launch(function address, argument address, threads): all threads call function(argument)."""


@lru_cache(maxsize=1)
def launcher() -> Launch | None:
    """The way to start a function on PyTorch's threads; None where there is none.

    None on anything but Linux with a PyTorch that uses GNU OpenMP: callers need another way.
    """
    if not sys.platform.startswith("linux") or "OpenMP" not in torch.__config__.parallel_info():
        return None
    package = Path(torch.__file__).parent
    shipped = [*package.glob("lib/libgomp*.so*"), *package.parent.glob("torch.libs/libgomp*.so*")]
    if not shipped:
        return None
    try:
        # Loaded already: this only finds it, and cannot bring in a second copy.
        library = ctypes.CDLL(str(shipped[0]), mode=ctypes.RTLD_GLOBAL)
        parallel = library.GOMP_parallel
    except (OSError, AttributeError):
        return None
    parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    parallel.restype = None

    def launch(function: int, argument: int, threads: int) -> None:
        parallel(function, argument, threads, 0)

    return launch
