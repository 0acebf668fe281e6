"""Linear layers with their weights laid out for oneDNN once, instead of at every call.

With few rows (a decode iteration has as many as there are requests) PyTorch's float32 linear
spends a good part of its time rearranging the weight. `benchmarks/cpu_kernels.py` measures what
this gains, layer by layer and for whole iterations.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import nn

_WIDEST = 4096
"""Output features per piece: wider layers (vocabulary projections) run faster in pieces."""

_EXACT = 32


def padded_rows(rows: int) -> int:
    """The number of rows to compute so that few distinct ones occur.

    oneDNN compiles code for every number of rows, which takes milliseconds and memory per layer
    shape, and keeps the last 1,024 of them. Above 32 rows there are eight sizes per power of two:
    80 in all up to 2,048, at most 12 % and on average 3 % more than is needed.
    """
    if rows <= _EXACT:
        return rows
    step = 1 << ((rows - 1).bit_length() - 4)
    return -(-rows // step) * step


class PackedLinear(nn.Module):
    """`nn.Linear` for inference on the CPU, float32 or bfloat16. Keeps no unpacked weight."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight = linear.weight.detach()
        wide = self.out_features > 2 * _WIDEST
        pieces = torch.split(weight, _WIDEST) if wide else (weight,)
        self._weights = [torch.ops.mkldnn._reorder_linear_weight(w.contiguous()) for w in pieces]
        self._biases: list[torch.Tensor | None] = [None] * len(pieces)
        if linear.bias is not None:
            self._biases = [*torch.split(linear.bias.detach(), len(pieces[0]))]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., in_features] -> [..., out_features]."""
        parts: list[torch.Tensor] = [
            torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
            for weight, bias in zip(self._weights, self._biases, strict=True)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


@lru_cache(maxsize=8)
def packing_works(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether this PyTorch packs weights for this device and dtype, and computes what nn.Linear
    computes."""
    if device.type != "cpu" or dtype not in (torch.float32, torch.bfloat16):
        return False
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    linear = nn.Linear(48, 40).to(dtype)
    x = torch.linspace(-1.0, 1.0, 3 * 48).view(3, 48).to(dtype)
    with torch.no_grad():
        try:
            difference = PackedLinear(linear)(x) - linear(x)
        except (RuntimeError, AttributeError, NotImplementedError):
            return False
    return bool(difference.abs().max() <= (1e-5 if dtype is torch.float32 else 3e-2))


@torch.no_grad()
def pack_linear_layers(model: nn.Module) -> int:
    """Replace every plain `nn.Linear` of a CPU model; returns how many were replaced.

    Nothing changes where packing does not work, or for layers that are subclasses of nn.Linear
    (quantised ones, adapters).
    """
    parameter = next(model.parameters())
    if not packing_works(parameter.device, parameter.dtype):
        return 0
    replaced = 0
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear and child.weight.dtype == parameter.dtype:
                setattr(module, name, PackedLinear(child))
                replaced += 1
    return replaced
