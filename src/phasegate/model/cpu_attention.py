"""Decode attention on the CPU: one call per layer for all requests.

One query token per request makes attention a stream over the request's keys and values; what
PyTorch offers costs a call of 15-25 us per request and layer. This kernel handles all requests
of a layer in one parallel region, reads keys and values once for all query heads that share
them, and writes the new token's key and value on the way. It runs on PyTorch's own threads
(`openmp`).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import numpy as np
import torch

from phasegate.model.openmp import launcher


class CpuDecode:
    """Decode attention for one shape of heads; see `decode_kernel`."""

    def __init__(self, head_dim: int, group: int, dtype: torch.dtype) -> None:
        from phasegate.model import cpu_kernel

        launch = launcher()
        if launch is None:
            raise RuntimeError("no OpenMP threads to run on")
        self._launch = launch
        self._places = cpu_kernel
        self._kernel = cpu_kernel.compile_kernel(head_dim, group, dtype is torch.bfloat16)
        self._arguments = np.zeros(cpu_kernel.ARGUMENTS, np.int64)
        self._argument_address = self._arguments.ctypes.data

    def __call__(
        self,
        q: torch.Tensor,
        new_k: torch.Tensor,
        new_v: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        starts: torch.Tensor,
        lengths: torch.Tensor,
        scale: float,
        window: int,
        out: torch.Tensor,
    ) -> None:
        """Store the new keys and values, then attend.

        Args:
            q: [rows, heads, head_dim]; heads must lie densely, rows may have any stride.
            out: the same, contiguous.
            new_k, new_v: [rows, kv_heads, head_dim], as q; stored at starts + lengths - 1.
            k, v: the layer's memory, [kv_heads, tokens, head_dim], contiguous.
            starts, lengths: int64 [rows]; a row attends to lengths tokens from starts, its new
                token (the last of them) included, or to the last `window` of these if window > 0.
            scale: factor on the scores.
        """
        at, a = self._places, self._arguments
        a[at.TICKET] = 0
        a[at.ROWS], a[at.KV_HEADS], a[at.TOKENS] = q.shape[0], k.shape[0], k.shape[1]
        a[at.K], a[at.V] = k.data_ptr(), v.data_ptr()
        a[at.Q], a[at.OUT] = q.data_ptr(), out.data_ptr()
        a[at.NEW_K], a[at.NEW_V] = new_k.data_ptr(), new_v.data_ptr()
        a[at.STARTS], a[at.LENGTHS] = starts.data_ptr(), lengths.data_ptr()
        a[at.SCALE] = int(np.float32(scale).view(np.int32))
        a[at.WINDOW] = window
        a[at.Q_STRIDE] = q.stride(0)
        a[at.NEW_K_STRIDE], a[at.NEW_V_STRIDE] = new_k.stride(0), new_v.stride(0)
        self._launch(self._kernel.address, self._argument_address, torch.get_num_threads())


def decode_kernel(head_dim: int, group: int, dtype: torch.dtype) -> Callable[..., None] | None:
    """The kernel for `group` query heads per KV head; None where it cannot run.

    It needs numba, PyTorch on GNU OpenMP, and float32 or bfloat16.
    """
    if importlib.util.find_spec("numba") is None or launcher() is None:
        return None
    if dtype not in (torch.float32, torch.bfloat16):
        return None
    return CpuDecode(head_dim, group, dtype)
