# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False, disallow-untyped-defs=False
"""Decode attention on the GPU: one Triton launch per layer for all requests.

It reads where each request's keys and values lie from tensors, so it can be part of a captured
graph. Few requests with long contexts are split along the context (flash decoding) to keep the
GPU's processors busy, and the parts merged by their sums.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

try:
    import triton
    import triton.language as tl
except ImportError:  # PyTorch for GPUs brings it along; without it there is no kernel
    triton = None

_BLOCK = 64  # context tokens per step of a program
_MOST_SPLITS = 16


def _define() -> tuple[Any, Any]:
    """The two kernels (a function, so that the module can be imported without Triton)."""

    @triton.jit
    def attend(
        q_ptr, new_k_ptr, new_v_ptr, k_ptr, v_ptr, starts_ptr, lengths_ptr, out_ptr, sums_ptr,
        scale, window,
        KV_HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr,
        GROUP_PADDED: tl.constexpr, DIM_PADDED: tl.constexpr,
        BLOCK: tl.constexpr, SPLITS: tl.constexpr,
    ):  # fmt: skip
        """One request, one KV head, one part of the context."""
        row, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
        start, n = tl.load(starts_ptr + row), tl.load(lengths_ptr + row)
        g, d = tl.arange(0, GROUP_PADDED), tl.arange(0, DIM_PADDED)
        in_dim = d < DIM
        q_rows = (row * KV_HEADS + head) * GROUP + g
        q_mask = (g < GROUP)[:, None] & in_dim[None, :]
        q = tl.load(q_ptr + q_rows[:, None] * DIM + d[None, :], mask=q_mask, other=0.0)

        # The new token: one program stores it, all of them take it from where it comes from.
        new = (row * KV_HEADS + head) * DIM + d
        new_k = tl.load(new_k_ptr + new, mask=in_dim, other=0.0)
        new_v = tl.load(new_v_ptr + new, mask=in_dim, other=0.0)
        if split == 0:
            last = ((start + n - 1) * KV_HEADS + head) * DIM + d
            tl.store(k_ptr + last, new_k, mask=in_dim)
            tl.store(v_ptr + last, new_v, mask=in_dim)

        first = tl.where(window > 0, tl.maximum(n - window, 0), 0)
        part = tl.cdiv(tl.cdiv(n - first, SPLITS), BLOCK) * BLOCK
        low = first + split * part
        high = tl.minimum(low + part, n)
        top = tl.full([GROUP_PADDED], float("-inf"), tl.float32)
        total = tl.zeros([GROUP_PADDED], tl.float32)
        values = tl.zeros([GROUP_PADDED, DIM_PADDED], tl.float32)
        for at in range(low, high, BLOCK):
            t = at + tl.arange(0, BLOCK)
            inside, fresh = t < high, (t == n - 1)[:, None]
            place = ((start + t) * KV_HEADS + head)[:, None] * DIM + d[None, :]
            mask = inside[:, None] & in_dim[None, :]
            k = tl.load(k_ptr + place, mask=mask, other=0.0)
            k = tl.where(fresh, new_k[None, :], k)
            s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
            s = tl.where(inside[None, :], s, float("-inf"))
            high_score = tl.maximum(top, tl.max(s, axis=1))
            p = tl.exp(s - high_score[:, None])
            shrink = tl.exp(top - high_score)
            v = tl.load(v_ptr + place, mask=mask, other=0.0)
            v = tl.where(fresh, new_v[None, :], v)
            values = values * shrink[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
            total = total * shrink + tl.sum(p, axis=1)
            top = high_score
        empty = total == 0.0
        values = values / tl.where(empty, 1.0, total)[:, None]
        if SPLITS == 1:
            tl.store(out_ptr + q_rows[:, None] * DIM + d[None, :], values, mask=q_mask)
        else:
            place = q_rows * SPLITS + split
            sums = tl.where(empty, float("-inf"), top + tl.log(tl.where(empty, 1.0, total)))
            tl.store(out_ptr + place[:, None] * DIM + d[None, :], values, mask=q_mask)
            tl.store(sums_ptr + place, sums, mask=g < GROUP)

    @triton.jit
    def merge(
        parts_ptr, sums_ptr, out_ptr,
        DIM: tl.constexpr, DIM_PADDED: tl.constexpr, SPLITS: tl.constexpr,
    ):  # fmt: skip
        """One query head of one request: its parts, weighted by their sums."""
        row = tl.program_id(0)
        s, d = tl.arange(0, SPLITS), tl.arange(0, DIM_PADDED)
        sums = tl.load(sums_ptr + row * SPLITS + s)
        weights = tl.exp(sums - tl.max(sums, axis=0))
        weights = weights / tl.sum(weights, axis=0)
        place = (row * SPLITS + s)[:, None] * DIM + d[None, :]
        parts = tl.load(parts_ptr + place, mask=(d < DIM)[None, :], other=0.0)
        out = tl.sum(parts * weights[:, None], axis=0)
        tl.store(out_ptr + row * DIM + d, out, mask=d < DIM)

    return attend, merge


class GpuDecode:
    """Decode attention for one shape of heads; called as `cpu_attention.CpuDecode` is."""

    def __init__(self, head_dim: int, group: int, processors: int) -> None:
        """`processors`: streaming multiprocessors to keep busy."""
        self._dim, self._group, self._processors = head_dim, group, processors
        self._attend, self._merge = _define()

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
        kv_heads = k.shape[1]
        splits = self.splits(rows, kv_heads)
        parts, sums = out, out
        if splits > 1:
            shape = (rows, heads, splits)
            parts = torch.empty(*shape, dim, dtype=torch.float32, device=q.device)
            sums = torch.empty(shape, dtype=torch.float32, device=q.device)
        dim_padded = max(16, triton.next_power_of_2(dim))
        self._attend[(rows, kv_heads, splits)](
            q, new_k, new_v, k, v, starts, lengths, parts, sums, scale, window,
            KV_HEADS=kv_heads, GROUP=self._group, DIM=dim,
            GROUP_PADDED=max(16, triton.next_power_of_2(self._group)), DIM_PADDED=dim_padded,
            BLOCK=_BLOCK, SPLITS=splits,
        )  # fmt: skip
        if splits > 1:
            self._merge[(rows * heads,)](
                parts, sums, out, DIM=dim, DIM_PADDED=dim_padded, SPLITS=splits
            )


def decode_kernel(head_dim: int, group: int, device: torch.device) -> Callable[..., None] | None:
    """The kernel for `group` query heads per KV head; None without Triton."""
    if triton is None:
        return None
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    return GpuDecode(head_dim, group, processors)
