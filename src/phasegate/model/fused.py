"""Put fused building blocks into a model that transformers made.

The model code stays transformers'; what is exchanged are the blocks that almost every decoder is
made of, and only in this instance of the model:

- RMS norms become one kernel;
- projections of the same input (queries, keys, values) become one matrix product;
- rotary embeddings are applied in place by one kernel;
- in gated MLPs on GPUs gate and up become one product and silu(gate) * up one kernel (on CPUs this
  gains nothing: the products take all the time).

A block is exchanged only if the new one gives the same numbers as the old one on a sample; after
all, the whole model is compared with what it computed before (`architecture.verify`).
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from phasegate.model.small_ops import GpuOps, SmallOps, small_ops

_ROTARY = "apply_rotary_pos_emb"


class FusedNorm(nn.Module):
    """RMS norm in one kernel."""

    def __init__(self, ops: SmallOps, weight: torch.Tensor, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.contiguous(), requires_grad=False)
        self._ops, self._eps = ops, eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., width] -> the same shape."""
        return self._ops.norm(x, self.weight, self._eps)


class SharedProjection(nn.Module):
    """Several linear layers of the same input, computed as one when the first is called."""

    def __init__(self, layers: list[nn.Linear]) -> None:
        super().__init__()
        first = layers[0]
        sizes = [layer.out_features for layer in layers]
        self.merged = nn.Linear(
            first.in_features,
            sum(sizes),
            bias=first.bias is not None,
            dtype=first.weight.dtype,
            device="meta",
        )
        self.merged.weight = nn.Parameter(
            torch.cat([layer.weight.detach() for layer in layers]), requires_grad=False
        )
        if first.bias is not None:
            biases = torch.cat([layer.bias.detach() for layer in layers])
            self.merged.bias = nn.Parameter(biases, requires_grad=False)
        self._sizes = sizes
        self._input: torch.Tensor | None = None
        self._outputs: list[torch.Tensor | None] = []

    def part(self, index: int, x: torch.Tensor) -> torch.Tensor:
        """Output of layer `index`. Outputs are kept until each has been asked for once."""
        if x is not self._input or self._outputs[index] is None:
            self._input = x
            self._outputs = list(torch.split(self.merged(x), self._sizes, dim=-1))
        output = self._outputs[index]
        assert output is not None
        self._outputs[index] = None
        if all(part is None for part in self._outputs):
            self._input = None
        return output


class ProjectionPart(nn.Module):
    """One of the layers of a `SharedProjection`, in the place of the original."""

    def __init__(self, shared: SharedProjection, index: int) -> None:
        super().__init__()
        self._shared, self._index = [shared], index  # in a list: only one part owns the weights
        if index == 0:
            self.shared = shared

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., in_features] -> [..., out_features]."""
        return self._shared[0].part(self._index, x)


class GatedMLP(nn.Module):
    """down(silu(gate(x)) * up(x)) with one product for gate and up."""

    def __init__(self, ops: GpuOps, gate: nn.Linear, up: nn.Linear, down: nn.Linear) -> None:
        super().__init__()
        self.gate_up = SharedProjection([gate, up]).merged
        self.down_proj = down
        self._ops = ops

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., hidden] -> the same shape."""
        output: torch.Tensor = self.down_proj(self._ops.gate(self.gate_up(x)))
        return output


@torch.inference_mode()
def fuse(model: nn.Module) -> None:
    """Exchange what can be exchanged in `model`, on its device and for its dtype."""
    parameter = next(model.parameters())
    ops = small_ops(parameter.dtype, parameter.device)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if ops is not None and type(child).__name__.endswith("RMSNorm"):
                norm = _fused_norm(ops, child)
                if norm is not None:
                    setattr(module, name, norm)
            if isinstance(ops, GpuOps):
                mlp = _gated_mlp(ops, child)
                if mlp is not None:
                    setattr(module, name, mlp)
        _share_projections(module, ("q_proj", "k_proj", "v_proj"))
        if ops is not None:
            _fuse_rotation(module, ops)


def _sample(width: int, like: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(width)
    return torch.randn(1, 3, width, generator=generator).to(like)


def _same(old: nn.Module, new: nn.Module, width: int) -> bool:
    x = _sample(width, next(old.parameters()))
    expected = old(x).float()
    close = 1e-5 if x.dtype is torch.float32 else 3e-2
    difference = (new(x).float() - expected).abs().max()
    return bool(difference <= close * max(1.0, float(expected.abs().max())))


def _fused_norm(ops: SmallOps, old: nn.Module) -> FusedNorm | None:
    weight = getattr(old, "weight", None)
    eps = getattr(old, "variance_epsilon", getattr(old, "eps", None))
    if not isinstance(weight, torch.Tensor) or weight.dim() != 1 or not isinstance(eps, float):
        return None
    for candidate in (weight, 1.0 + weight):  # Gemma stores the difference from one
        new = FusedNorm(ops, candidate.detach(), eps)
        if _same(old, new, weight.shape[0]):
            return new
    return None


def _gated_mlp(ops: GpuOps, old: nn.Module) -> GatedMLP | None:
    parts = dict(old.named_children())
    layers = [parts.pop(name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    gate, up, down = (layer if type(layer) is nn.Linear else None for layer in layers)
    if gate is None or up is None or down is None or parts.keys() > {"act_fn"}:
        return None
    new = GatedMLP(ops, gate, up, down)
    return new if _same(old, new, gate.in_features) else None


def _share_projections(module: nn.Module, names: tuple[str, ...]) -> None:
    layers = [getattr(module, name, None) for name in names]
    linear = [layer for layer in layers if type(layer) is nn.Linear]
    if len(linear) < len(names):
        return
    alike = {(x.in_features, x.bias is None, x.weight.dtype, x.weight.device) for x in linear}
    if len(alike) > 1:
        return
    shared = SharedProjection(linear)
    for index, name in enumerate(names):
        setattr(module, name, ProjectionPart(shared, index))


# ---------------------------------------------------------------- rotary embeddings
def _fuse_rotation(module: nn.Module, ops: SmallOps) -> None:
    """Give an attention module a forward function that calls our rotation.

    The function is the class's own with one global name exchanged; the class and the module it
    comes from stay as they are.
    """
    forward = type(module).forward
    if not isinstance(forward, types.FunctionType) or forward.__closure__:
        return
    own = forward.__globals__.get(_ROTARY)
    if own is None or _ROTARY not in forward.__code__.co_names:
        return
    rotate = _rotation(ops, own)
    if not _rotates_alike(own, rotate, next(module.parameters())):
        return
    names = {**forward.__globals__, _ROTARY: rotate}
    exchanged = types.FunctionType(
        forward.__code__, names, forward.__name__, forward.__defaults__, None
    )
    exchanged.__kwdefaults__ = forward.__kwdefaults__
    module.forward = types.MethodType(exchanged, module)


def _rotation(ops: SmallOps, own: Callable[..., Any]) -> Callable[..., Any]:
    def rotate(
        q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *rest: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """q, k [1, heads, tokens, dim], cos, sin [1, tokens, dim]; in place where possible."""
        dim = q.shape[-1]
        dense = all(x.stride(-1) == 1 and x.stride(1) == dim and x.shape[0] == 1 for x in (q, k))
        tables = cos.shape == sin.shape == (1, q.shape[2], dim) and cos.dtype == q.dtype
        if rest or not dense or not tables or not cos.is_contiguous() or not sin.is_contiguous():
            result: tuple[torch.Tensor, torch.Tensor] = own(q, k, cos, sin, *rest)
            return result
        ops.rotate(q[0].transpose(0, 1), k[0].transpose(0, 1), cos[0], sin[0])
        return q, k

    return rotate


def _rotates_alike(own: Callable[..., Any], new: Callable[..., Any], like: torch.Tensor) -> bool:
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 5, heads, 16, generator=generator).to(like) for heads in (4, 2))
    cos, sin = (torch.randn(1, 5, 16, generator=generator).to(like) for _ in range(2))
    try:
        expected = own(q.transpose(1, 2).clone(), k.transpose(1, 2).clone(), cos, sin)
    except (TypeError, ValueError, RuntimeError):
        return False
    got = new(q.transpose(1, 2), k.transpose(1, 2), cos, sin)
    close = 1e-5 if like.dtype is torch.float32 else 5e-2
    return all(
        a.shape == b.shape and bool((a.float() - b.float()).abs().max() <= close)
        for a, b in zip(got, expected, strict=True)
    )
