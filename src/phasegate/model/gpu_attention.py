"""Decode attention on the GPU: one Triton launch per layer for all requests.

It reads where each request's keys and values lie from tensors, so it can be part of a captured
graph. Few requests with long contexts are split along the context (flash decoding) to keep the
GPU's processors busy, and the parts merged by their sums.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import torch

_MOST_TOKENS = 64  # context tokens per step of a program
_TILE_BYTES = 16 << 10  # keys, and as much for values, per step: several steps are on their way at
# once, and small GPUs have 99 KiB of shared memory per block
_MOST_SPLITS = 16


class GpuDecode:
    """Decode attention for one shape of heads; called as `cpu_attention.CpuDecode` is."""

    def __init__(self, head_dim: int, group: int, processors: int) -> None:
        """`processors`: streaming multiprocessors to keep busy."""
        self._dim, self._group, self._processors = head_dim, group, processors
        from phasegate.model import gpu_kernel

        self._kernels = gpu_kernel

    def splits(self, rows: int, kv_heads: int) -> int:
        """Parts per context: enough for two programs per processor, a power of two."""
        wanted = 2 * self._processors // max(1, rows * kv_heads)
        return min(_MOST_SPLITS, 1 << max(0, wanted.bit_length() - 1))

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
        """Store the new keys and values, then attend; arguments as in `CpuDecode.__call__`."""
        rows, heads, dim = q.shape
        kv_heads, tokens = k.shape[0], k.shape[1]
        splits = self.splits(rows, kv_heads)
        parts, sums = out, out
        if splits > 1:
            shape = (rows, heads, splits)
            parts = torch.empty(*shape, dim, dtype=torch.float32, device=q.device)
            sums = torch.empty(shape, dtype=torch.float32, device=q.device)
        dim_padded = max(16, _power_of_2(dim))
        self._kernels.attend[(rows, kv_heads, splits)](
            q, new_k, new_v, k, v, starts, lengths, parts, sums, scale, window, tokens,
            q.stride(0), new_k.stride(0), new_v.stride(0),
            KV_HEADS=kv_heads, GROUP=self._group, DIM=dim,
            GROUP_PADDED=max(16, _power_of_2(self._group)), DIM_PADDED=dim_padded,
            BLOCK=block_tokens(dim_padded, k.element_size()), SPLITS=splits,
        )  # fmt: skip
        if splits > 1:
            self._kernels.merge[(rows * heads,)](
                parts, sums, out, DIM=dim, DIM_PADDED=dim_padded, SPLITS=splits
            )


def block_tokens(dim: int, bytes_per_number: int) -> int:
    """Context tokens per step of a program for heads `dim` wide, a power of two."""
    return max(16, min(_MOST_TOKENS, _TILE_BYTES // (dim * bytes_per_number)))


def _power_of_2(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << (n - 1).bit_length()


def decode_kernel(head_dim: int, group: int, device: torch.device) -> Callable[..., None] | None:
    """The kernel for `group` query heads per KV head; None without Triton."""
    if importlib.util.find_spec("triton") is None:
        return None
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    return GpuDecode(head_dim, group, processors)
