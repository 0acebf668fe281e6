"""Our attention, plugged into transformers' model code.

transformers looks the attention function up by name and hands it queries, keys and values of
all packed tokens of a step; no mask is registered under this name, so none is built. What the
tokens are - which request, which positions, where its KV lies - is in the `step` object that
travels as a keyword argument of the forward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch.nn.attention.bias import causal_lower_right
from transformers import AttentionInterface

from phasegate.model.cpu_attention import decode_kernel as cpu_decode_kernel
from phasegate.model.kv_memory import KVMemory, LayerShape

NAME = "phasegate"
"""The attention implementation's name in transformers."""

_ROWS = 256  # query rows per block where scores or masks are materialised


@dataclass(frozen=True, slots=True)
class Scores:
    """How a layer turns scores into weights.

    Attributes:
        scale: factor on query x key.
        window: a token sees only the last so many tokens, itself included (0: all).
        softcap: scores become softcap * tanh(scores / softcap) (0: they stay).
        sinks: one learned score per head that takes weight but gives no value, or None.
    """

    scale: float
    window: int = 0
    softcap: float = 0.0
    sinks: torch.Tensor | None = None

    @property
    def plain(self) -> bool:
        """Whether the weights are a plain softmax of the scores."""
        return not self.softcap and self.sinks is None


class AttentionStep(Protocol):
    """What the packed tokens of a forward pass are."""

    def attend(
        self,
        layer: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        scores: Scores,
        extra: dict[str, Any],
    ) -> torch.Tensor:
        """Attention output [tokens, heads, value_dim] for q [tokens, heads, key_dim] and new
        k, v [tokens, kv_heads, ...]; `extra` holds what else the model passed."""
        ...


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    step: AttentionStep | None = None,
    **extra: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function in the shape that transformers calls."""
    if step is None:
        raise RuntimeError(f"{type(module).__name__} does not pass `step` on to its attention")
    q, k, v = (x.squeeze(0).transpose(0, 1) for x in (query, key, value))
    scores = Scores(
        q.shape[-1] ** -0.5 if scaling is None else float(scaling),
        int(sliding_window or 0),
        float(softcap or 0.0),
        s_aux,
    )
    extra["attention_mask"] = attention_mask
    extra["is_causal"] = extra.get("is_causal", getattr(module, "is_causal", True))
    layer: int = module.layer_idx  # type: ignore[assignment]
    return step.attend(layer, q, k, v, scores, extra).unsqueeze(0), None


AttentionInterface.register(NAME, _attention)


class Piece(NamedTuple):
    """A prompt slice among the packed tokens.

    `length` rows from `row` are the tokens `before` ... of a request whose region begins at
    `start` in the KV memory.
    """

    row: int
    length: int
    start: int
    before: int


DecodeKernel = Callable[..., None]


class DecodeKernels:
    """The decode kernel of each layer shape, compiled once. None where PyTorch has to do."""

    def __init__(self, shapes: list[LayerShape], dtype: torch.dtype, device: torch.device) -> None:
        self._kernels = {shape: _find_kernel(shape, dtype, device) for shape in set(shapes)}

    def of(self, shape: LayerShape) -> DecodeKernel | None:
        """The kernel for layers of this shape."""
        return self._kernels[shape]

    @property
    def complete(self) -> bool:
        """Whether there is one for every layer: decodes then need nothing from the host."""
        return None not in self._kernels.values()


def _find_kernel(
    shape: LayerShape, dtype: torch.dtype, device: torch.device
) -> DecodeKernel | None:
    if shape.key_dim != shape.value_dim or not shape.plain:
        return None
    if device.type == "cpu":
        return cpu_decode_kernel(shape.key_dim, shape.group, dtype)
    if device.type == "cuda":
        from phasegate.model.gpu_attention import decode_kernel as gpu_decode_kernel

        return gpu_decode_kernel(shape.key_dim, shape.group, device)
    return None


@dataclass(slots=True)
class PackedStep:
    """The tokens of one iteration: `decodes` rows that decode, then prompt slices. Rows beyond
    them are padding.

    Attributes:
        memory, kernels: where KV lies and how decodes read it.
        decodes: number of decoding requests; they are the first rows.
        starts, lengths: int64 [decodes] on the model's device: region and context length of
            each, the token decoded now included.
        pieces: the prompt slices.
    """

    memory: KVMemory
    kernels: DecodeKernels
    decodes: int
    starts: torch.Tensor
    lengths: torch.Tensor
    pieces: list[Piece]

    def attend(
        self,
        layer: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        scores: Scores,
        extra: dict[str, Any],
    ) -> torch.Tensor:
        """See `AttentionStep.attend`. Stores the new keys and values first."""
        keys, values = self.memory.keys[layer], self.memory.values[layer]
        out = torch.empty((q.shape[0], q.shape[1], v.shape[-1]), dtype=q.dtype, device=q.device)
        n = self.decodes
        if n:
            kernel = self.kernels.of(self.memory.shapes[layer])
            if kernel is None:
                self._decode_one_by_one(q[:n], k[:n], v[:n], keys, values, scores, out)
            else:
                kernel(
                    _dense(q[:n]),
                    _dense(k[:n]),
                    _dense(v[:n]),
                    keys,
                    values,
                    self.starts,
                    self.lengths,
                    scores.scale,
                    scores.window,
                    out[:n],
                )
        used = n + sum(piece.length for piece in self.pieces)
        if used < out.shape[0]:
            out[used:] = 0.0
        for row, length, start, before in self.pieces:
            rows = slice(row, row + length)
            end = start + before + length
            keys[:, end - length : end] = k[rows].transpose(0, 1)
            values[:, end - length : end] = v[rows].transpose(0, 1)
            span = slice(start, end)
            out[rows] = attend_slice(q[rows], keys[:, span], values[:, span], before, scores)
        return out

    def _decode_one_by_one(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        scores: Scores,
        out: torch.Tensor,
    ) -> None:
        at = self.starts + self.lengths - 1
        keys.index_copy_(1, at, k.transpose(0, 1))
        values.index_copy_(1, at, v.transpose(0, 1))
        spans = zip(self.starts.tolist(), self.lengths.tolist(), strict=True)
        for i, (start, length) in enumerate(spans):
            span = slice(start, start + length)
            row = q[i : i + 1]
            out[i] = attend_slice(row, keys[:, span], values[:, span], length - 1, scores)[0]


def _dense(x: torch.Tensor) -> torch.Tensor:
    """x [rows, heads, dim] with its heads one after another; rows may be further apart."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()


def attend_slice(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, before: int, scores: Scores
) -> torch.Tensor:
    """Causal attention of tokens `before` ... of one request over all its tokens so far.

    Args:
        q: [tokens, heads, key_dim].
        k, v: [kv_heads, before + tokens, ...].

    Returns:
        [tokens, heads, value_dim].
    """
    total = k.shape[1]
    window = scores.window if 0 < scores.window < total else 0
    if not scores.plain:
        return _attend_in_blocks(q, k, v, before, window, scores)
    if window:
        return _attend_masked(q, k, v, before, window, scores.scale)
    if q.shape[0] == 1 or before == 0:
        return _sdpa(q, k, v, scores.scale, causal=q.shape[0] > 1)
    if q.is_cuda:
        if q.dtype in (torch.float16, torch.bfloat16):
            return _sdpa(q, k, v, scores.scale, mask=causal_lower_right(q.shape[0], total))
        return _attend_masked(q, k, v, before, 0, scores.scale)
    return _attend_in_two_parts(q, k, v, before, scores.scale)


def _heads_first(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(0, 1).unsqueeze(0)


def _sdpa(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    causal: bool = False,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    out = torch.nn.functional.scaled_dot_product_attention(
        _heads_first(q),
        k.unsqueeze(0),
        v.unsqueeze(0),
        attn_mask=mask,
        is_causal=causal,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[0],
    )
    return out.squeeze(0).transpose(0, 1)


def _attend_in_two_parts(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, before: int, scale: float
) -> torch.Tensor:
    """What came before without a mask, the slice itself with the causal one; then merged by the
    weights' sums. PyTorch's CPU kernel knows the causal mask only for squares, and a mask of
    tokens x context would be large."""
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    q4, k4, v4 = _heads_first(q), k.unsqueeze(0), v.unsqueeze(0)
    part = [
        flash(q4, k4[:, :, :before], v4[:, :, :before], 0.0, False, scale=scale),
        flash(q4, k4[:, :, before:], v4[:, :, before:], 0.0, True, scale=scale),
    ]
    (past, past_sum), (own, own_sum) = part
    # sums are log sum exp of the scores, [1, heads, tokens]
    share = torch.sigmoid(past_sum - own_sum).unsqueeze(-1).to(own.dtype)
    return torch.lerp(own, past, share).squeeze(0).transpose(0, 1)


def _attend_masked(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, before: int, window: int, scale: float
) -> torch.Tensor:
    """Causal attention within a window (0: none), in blocks of rows with a small mask each."""
    out = []
    for i in range(0, q.shape[0], _ROWS):
        rows = q[i : i + _ROWS]
        first, end, visible = _visible(before + i, rows.shape[0], window, q.device)
        out.append(_sdpa(rows, k[:, first:end], v[:, first:end], scale, mask=visible))
    return torch.cat(out)


def _visible(
    position: int, rows: int, window: int, device: torch.device
) -> tuple[int, int, torch.Tensor]:
    """Keys [first, end) that rows at `position` ... may see, and the mask [rows, keys] of it."""
    first = max(0, position - window + 1) if window else 0
    end = position + rows
    row = torch.arange(position, end, device=device).unsqueeze(1)
    key = torch.arange(first, end, device=device)
    visible = key <= row
    if window:
        visible &= key > row - window
    return first, end, visible


def _attend_in_blocks(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, before: int, window: int, scores: Scores
) -> torch.Tensor:
    """Attention written out, for soft-capped scores and attention sinks."""
    group = q.shape[1] // k.shape[0]
    out = []
    for i in range(0, q.shape[0], _ROWS):
        rows = q[i : i + _ROWS]
        first, end, visible = _visible(before + i, rows.shape[0], window, q.device)
        keys = k[:, first:end].repeat_interleave(group, dim=0)
        values = v[:, first:end].repeat_interleave(group, dim=0)
        s = torch.matmul(rows.transpose(0, 1), keys.transpose(1, 2)) * scores.scale
        if scores.softcap:
            s = torch.tanh(s / scores.softcap) * scores.softcap
        s = s.masked_fill(~visible, float("-inf")).float()
        if scores.sinks is not None:
            sink = scores.sinks.float().view(-1, 1, 1).expand(-1, s.shape[1], 1)
            s = torch.cat([s, sink], dim=-1)
        weights = torch.softmax(s, dim=-1)[..., : end - first].to(values.dtype)
        out.append(torch.matmul(weights, values).transpose(0, 1))
    return torch.cat(out)
