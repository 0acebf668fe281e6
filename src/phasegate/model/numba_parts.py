# mypy: ignore-errors
# (compiled by numba from bytecode: its types are not Python's)
"""What our numba kernels share: raw memory, bfloat16, and work shared out among threads."""

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

ANY = 1 << 40
"""numba wants a length for arrays that stand for raw memory."""

f32, i32, u16 = np.float32, np.int32, np.uint16


@intrinsic
def pointer(context: Any, address: Any, dtype: Any) -> Any:
    """Memory at an address, as a C pointer."""
    signature = types.CPointer(dtype.dtype)(types.int64, dtype)

    def code(cg: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], cg.get_value_type(sig.return_type))

    return signature, code


@intrinsic
def float_of(context: Any, bits: Any) -> Any:
    """The float with these 32 bits."""

    def code(cg: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.bitcast(args[0], cg.get_value_type(types.float32))

    return types.float32(types.int32), code


@intrinsic
def bits_of(context: Any, value: Any) -> Any:
    """The 32 bits of a float."""

    def code(cg: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.bitcast(args[0], cg.get_value_type(types.int32))

    return types.int32(types.float32), code


@intrinsic
def take_ticket(context: Any, counter: Any) -> Any:
    """Atomically add one; returns the value before. Threads share out the work with it."""

    def code(cg: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", args[0], cg.get_constant(types.int64, 1), "monotonic")

    return types.int64(types.CPointer(types.int64)), code


@njit
def from_bfloat16(x: Any) -> Any:
    """The float32 with the same value."""
    return float_of(i32(x) << i32(16))


@njit
def to_bfloat16(x: Any) -> Any:
    """Round to nearest even, as PyTorch does."""
    bits = bits_of(x)
    return u16((bits + i32(0x7FFF) + ((bits >> i32(16)) & i32(1))) >> i32(16))
