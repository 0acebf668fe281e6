"""The KV tensors: one pair per layer, addressed by the arena."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from phasegate.errors import ModelError
from phasegate.model.host_memory import use_huge_pages
from phasegate.scheduler.arena import Move

_COPY_TOKENS = 4096  # tokens copied in one go when the ranges of a move overlap


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Attention of one layer: heads of queries and of keys/values, and their widths.

    Attributes:
        plain: the weights are a plain softmax of the scores (no soft cap, no sinks).
    """

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    plain: bool = True

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return self.heads // self.kv_heads

    def bytes_per_token(self, dtype: torch.dtype) -> int:
        """KV bytes of one token in this layer."""
        return self.kv_heads * (self.key_dim + self.value_dim) * dtype.itemsize


def bytes_per_token(shapes: Iterable[LayerShape], dtype: torch.dtype) -> int:
    """KV bytes of one token in all layers."""
    return sum(shape.bytes_per_token(dtype) for shape in shapes)


class KVMemory:
    """Keys [kv_heads, tokens + 1, key_dim] and values of every layer.

    Heads come first: decode attention streams the tokens of one head, and streams are fastest
    from consecutive addresses.

    The one token more than `tokens` is a place to write to for rows that stand for nobody
    (padding of captured decode graphs).
    """

    def __init__(
        self,
        shapes: Sequence[LayerShape],
        tokens: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Raises ModelError if the memory cannot be had."""
        self.shapes = list(shapes)
        self.tokens = tokens
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        try:
            for shape in shapes:
                size = (shape.kv_heads, tokens + 1)
                self.keys.append(torch.empty(*size, shape.key_dim, dtype=dtype, device=device))
                self.values.append(torch.empty(*size, shape.value_dim, dtype=dtype, device=device))
                use_huge_pages(self.keys[-1])
                use_huge_pages(self.values[-1])
        except (RuntimeError, MemoryError) as error:
            need = bytes_per_token(shapes, dtype) * tokens / 2**30
            raise ModelError(
                f"kv_tokens is {tokens}: the KV cache needs {need:.1f} GiB, more than there is "
                f"on {device}; lower kv_tokens"
            ) from error

    def fill(self, start: int, length: int) -> None:
        """Write keys and values that stand for `length` tokens from `start`.

        For measurements with contexts that were never computed: memory nobody wrote to is not
        really there yet, and may hold numbers that are slow to compute with.
        """
        for tensor in (*self.keys, *self.values):
            tensor[:, start : start + length].fill_(0.01)

    def move(self, moves: Iterable[Move]) -> None:
        """Carry out moves in order; overlapping ranges are handled like memmove."""
        for move in moves:
            for tensor in (*self.keys, *self.values):
                _move_tokens(tensor, move)


def _move_tokens(tensor: torch.Tensor, move: Move) -> None:
    source, target, length = move
    distance = abs(target - source)
    if distance >= length:
        tensor[:, target : target + length].copy_(tensor[:, source : source + length])
        return
    # The ranges overlap: copy piece by piece, starting at the end that is not overwritten first.
    piece = max(distance, _COPY_TOKENS)
    offsets = range(0, length, piece)
    for offset in offsets if target < source else reversed(offsets):
        n = min(piece, length - offset)
        old = tensor[:, source + offset : source + offset + n]
        new = tensor[:, target + offset : target + offset + n]
        new.copy_(old.clone() if n > distance else old)
