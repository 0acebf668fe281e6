"""Normalisation, rotation and gating: each one kernel instead of half a dozen.

A decode iteration has little to compute per layer, and then what surrounds the matrix products
counts. The CPU versions run on PyTorch's threads (`openmp`), the GPU versions are Triton's.
"""

from __future__ import annotations

import importlib.util
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from phasegate.model.openmp import launcher

_WORTH_SHARING = 1 << 15  # numbers in a tensor from which more than one thread helps


class SmallOps(Protocol):
    """The operations on one device and dtype."""

    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """RMS norm over the last dimension of x."""
        ...

    def rotate(
        self, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> None:
        """Rotary embedding of q and k [tokens, heads, dim] in place; cos, sin [tokens, dim].
        Heads must lie densely, tokens may have any stride."""
        ...


class CpuOps:
    """Numba kernels; see `small_ops`."""

    def __init__(self, dtype: torch.dtype) -> None:
        from phasegate.model import cpu_small_kernels as kernels

        launch = launcher()
        if launch is None:
            raise RuntimeError("no OpenMP threads to run on")
        half = dtype is torch.bfloat16
        self._launch, self._at = launch, kernels
        self._norm, self._rotate = kernels.compile_norm(half), kernels.compile_rotate(half)
        self._norm_arguments = np.zeros(kernels.NORM_ARGUMENTS, np.int64)
        self._rotate_arguments = np.zeros(kernels.ROTATE_ARGUMENTS, np.int64)
        self._eps: dict[float, int] = {}

    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """See SmallOps."""
        x = x.contiguous()
        out = torch.empty_like(x)
        width = x.shape[-1]
        size = x.numel()
        if eps not in self._eps:
            self._eps[eps] = int(np.float32(eps).view(np.int32))
        self._norm_arguments[:] = (
            0, size // width, width, x.data_ptr(), weight.data_ptr(), out.data_ptr(),
            self._eps[eps],
        )  # fmt: skip
        self._run(self._norm, self._norm_arguments, size)
        return out

    def rotate(
        self, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> None:
        """See SmallOps."""
        self._rotate_arguments[:] = (
            0, q.shape[0], q.shape[2], cos.data_ptr(), sin.data_ptr(),
            q.data_ptr(), q.shape[1], q.stride(0), k.data_ptr(), k.shape[1], k.stride(0),
        )  # fmt: skip
        self._run(self._rotate, self._rotate_arguments, q.numel())

    def _run(self, kernel: Any, arguments: npt.NDArray[np.int64], size: int) -> None:
        threads = torch.get_num_threads() if size >= _WORTH_SHARING else 1
        self._launch(kernel.address, arguments.ctypes.data, threads)


class GpuOps:
    """PyTorch's fused norm and a Triton kernel; see `small_ops`."""

    def __init__(self) -> None:
        from phasegate.model import gpu_kernel

        self._kernels = gpu_kernel

    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """See SmallOps."""
        return torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, eps)

    def rotate(
        self, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> None:
        """See SmallOps."""
        tokens, heads, dim = q.shape
        self._kernels.rotate[(tokens, heads + k.shape[1])](
            q, k, cos, sin, q.stride(0), k.stride(0), heads,
            HALF=dim // 2, HALF_PADDED=1 << (dim // 2 - 1).bit_length(), num_warps=1,
        )  # fmt: skip

    def gate(self, x: torch.Tensor) -> torch.Tensor:
        """silu(first half) * second half of the last dimension."""
        width = x.shape[-1] // 2
        out = x.new_empty(*x.shape[:-1], width)
        block = 1024
        self._kernels.silu_gate[(x.numel() // (2 * width), -(-width // block))](
            x, out, width, BLOCK=block
        )
        return out


def small_ops(dtype: torch.dtype, device: torch.device) -> CpuOps | GpuOps | None:
    """The operations for a device; None where PyTorch's own have to do."""
    if device.type == "cuda":
        return GpuOps() if importlib.util.find_spec("triton") is not None else None
    if importlib.util.find_spec("numba") is None or launcher() is None:
        return None
    return CpuOps(dtype) if dtype in (torch.float32, torch.bfloat16) else None
