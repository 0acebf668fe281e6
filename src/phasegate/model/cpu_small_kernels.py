# mypy: ignore-errors
# (compiled by numba from bytecode: its types are not Python's)
"""Normalisation and rotation on the CPU in one pass each, in numba. See `fused`."""

from functools import lru_cache
from typing import Any

import numpy as np
from numba import carray, cfunc, njit, types

from phasegate.model.numba_parts import (
    ANY,
    f32,
    float_of,
    from_bfloat16,
    i32,
    pointer,
    take_ticket,
    to_bfloat16,
)

TICKET = 0
"""Place of the shared counter of work taken, in the arguments of both kernels."""

# The other arguments, int64 each.
NORM_ROWS, NORM_WIDTH, NORM_X, NORM_WEIGHT, NORM_OUT, NORM_EPS, NORM_ARGUMENTS = range(1, 8)
TOKENS, HEAD_DIM, COS, SIN, Q, Q_HEADS, Q_STRIDE, K, K_HEADS, K_STRIDE, ROTATE_ARGUMENTS = range(
    1, 12
)

_ROWS_AT_ONCE = 8


def _element(half: bool) -> Any:
    return types.uint16 if half else types.float32


@lru_cache(maxsize=2)
def compile_norm(half: bool) -> Any:
    """out = x / sqrt(mean(x^2) + eps) * weight, row by row; `half`: bfloat16."""
    element = _element(half)

    @njit(fastmath=True)
    def norm(x: Any, weight: Any, out: Any, width: Any, eps: Any) -> None:
        squares = f32(0)
        for i in range(width):
            value = from_bfloat16(x[i]) if half else x[i]
            squares += value * value
        factor = f32(1) / np.sqrt(squares / f32(width) + eps)
        for i in range(width):
            if half:
                out[i] = to_bfloat16(from_bfloat16(x[i]) * factor * from_bfloat16(weight[i]))
            else:
                out[i] = x[i] * factor * weight[i]

    @cfunc(types.void(types.CPointer(types.int64)))
    def kernel(a: Any) -> None:
        rows, width = a[NORM_ROWS], a[NORM_WIDTH]
        x = carray(pointer(a[NORM_X], element), (ANY,))
        out = carray(pointer(a[NORM_OUT], element), (ANY,))
        weight = carray(pointer(a[NORM_WEIGHT], element), (width,))
        eps = float_of(i32(a[NORM_EPS]))
        while True:
            first = take_ticket(a) * _ROWS_AT_ONCE
            if first >= rows:
                break
            for row in range(first, min(first + _ROWS_AT_ONCE, rows)):
                at = row * width
                norm(x[at : at + width], weight, out[at : at + width], width, eps)

    return kernel


@lru_cache(maxsize=2)
def compile_rotate(half: bool) -> Any:
    """Rotary position embedding in place: pairs (i, i + dim/2) of every head are rotated."""
    element = _element(half)

    @njit(fastmath=True)
    def rotate(x: Any, cos: Any, sin: Any, middle: Any) -> None:
        low, high = x[:middle], x[middle:]
        cos_low, cos_high = cos[:middle], cos[middle:]
        sin_low, sin_high = sin[:middle], sin[middle:]
        for i in range(middle):
            if half:
                a, b = from_bfloat16(low[i]), from_bfloat16(high[i])
                low[i] = to_bfloat16(a * from_bfloat16(cos_low[i]) - b * from_bfloat16(sin_low[i]))
                high[i] = to_bfloat16(
                    b * from_bfloat16(cos_high[i]) + a * from_bfloat16(sin_high[i])
                )
            else:
                a, b = low[i], high[i]
                low[i] = a * cos_low[i] - b * sin_low[i]
                high[i] = b * cos_high[i] + a * sin_high[i]

    @cfunc(types.void(types.CPointer(types.int64)))
    def kernel(a: Any) -> None:
        tokens, dim = a[TOKENS], a[HEAD_DIM]
        cos = carray(pointer(a[COS], element), (tokens, dim))
        sin = carray(pointer(a[SIN], element), (tokens, dim))
        q = carray(pointer(a[Q], element), (ANY,))
        k = carray(pointer(a[K], element), (ANY,))
        while True:
            first = take_ticket(a) * _ROWS_AT_ONCE
            if first >= tokens:
                break
            for token in range(first, min(first + _ROWS_AT_ONCE, tokens)):
                for head in range(a[Q_HEADS]):
                    at = token * a[Q_STRIDE] + head * dim
                    rotate(q[at : at + dim], cos[token], sin[token], dim // 2)
                for head in range(a[K_HEADS]):
                    at = token * a[K_STRIDE] + head * dim
                    rotate(k[at : at + dim], cos[token], sin[token], dim // 2)

    return kernel
