# mypy: ignore-errors
# (compiled by numba from bytecode: its types are not Python's)
"""The decode attention kernel itself: numba, no Python at run time. See `cpu_attention`."""

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

_BLOCK = 128  # keys per block of the running softmax: scores and keys of a block stay in L1/L2

# Places in the kernel's int64 arguments; TICKET is the shared counter of work taken.
TICKET, ROWS, KV_HEADS, TOKENS, K, V, Q, OUT, NEW_K, NEW_V, STARTS, LENGTHS = range(12)
SCALE, WINDOW, Q_STRIDE, NEW_K_STRIDE, NEW_V_STRIDE, ARGUMENTS = range(12, 18)


@njit(fastmath=True)
def _exp(x: Any) -> Any:
    """e**x for x <= 0 to about 1 ulp, in plain arithmetic so that loops over it vectorise.

    Range reduction by ln 2 in two parts and a polynomial of degree 6 (Cephes' expf).
    """
    x = max(x, f32(-87.0))
    n = np.floor(x * f32(1.4426950408889634) + f32(0.5))
    r = x - n * f32(0.693359375) - n * f32(-2.12194440e-4)
    p = f32(1.9875691500e-4)
    p = p * r + f32(1.3981999507e-3)
    p = p * r + f32(8.3334519073e-3)
    p = p * r + f32(4.1665795894e-2)
    p = p * r + f32(1.6666665459e-1)
    p = p * r + f32(5.0000001201e-1)
    return (p * r * r + r + f32(1.0)) * float_of((i32(n) + i32(127)) << i32(23))


@lru_cache(maxsize=16)
def compile_kernel(head_dim: int, group: int, half: bool) -> Any:
    """The kernel for these sizes; `half`: memory holds bfloat16. Takes 1-3 s the first time."""
    D, G = head_dim, group  # constants for the compiler: it unrolls and vectorises over them

    @njit(fastmath=True)
    def dot(a: Any, b: Any) -> Any:
        total = f32(0)
        for d in range(D):
            total += a[d] * b[d]
        return total

    @njit(fastmath=True)
    def row_of(memory: Any, at: Any, wide: Any) -> Any:
        row = memory[at : at + D]
        if not half:
            return row
        for d in range(D):
            wide[d] = from_bfloat16(row[d])
        return wide

    @njit(fastmath=True, error_model="numpy")  # NaN in, NaN out; no exceptions
    def attend(q: Any, k: Any, v: Any, out: Any, p: Any, wide: Any, first: Any, n: Any) -> None:
        """Softmax attention of G scaled queries over n tokens from `first`, block by block with
        a running maximum (Milakov & Gimelshein 2018, arXiv 1805.02867)."""
        top = np.full(G, f32(-1e30))
        total = np.zeros(G, np.float32)
        out[:] = f32(0)
        done = 0
        while done < n:
            count = min(_BLOCK, n - done)
            base = (first + done) * D
            for t in range(count):
                key = row_of(k, base + t * D, wide)
                for g in range(G):
                    p[g, t] = dot(q[g], key)
            for g in range(G):
                weights, values = p[g], out[g]
                high = top[g]
                for t in range(count):
                    high = max(high, weights[t])
                part = f32(0)
                for t in range(count):
                    weights[t] = _exp(weights[t] - high)
                    part += weights[t]
                shrink = _exp(top[g] - high)
                total[g] = total[g] * shrink + part
                top[g] = high
                if done > 0:
                    for d in range(D):
                        values[d] *= shrink
            for t in range(count):
                value = row_of(v, base + t * D, wide)
                for g in range(G):
                    weight, values = p[g, t], out[g]
                    for d in range(D):
                        values[d] += weight * value[d]
            done += count
        for g in range(G):
            inverse, values = f32(1) / total[g], out[g]
            for d in range(D):
                values[d] *= inverse

    element = types.uint16 if half else types.float32

    @cfunc(types.void(types.CPointer(types.int64)))
    def kernel(a: Any) -> None:
        rows, heads, window = a[ROWS], a[KV_HEADS], a[WINDOW]
        head_size = a[TOKENS] * D
        k = carray(pointer(a[K], element), (ANY,))
        v = carray(pointer(a[V], element), (ANY,))
        q = carray(pointer(a[Q], element), (ANY,))
        out = carray(pointer(a[OUT], element), (rows * heads, G, D))
        new_k = carray(pointer(a[NEW_K], element), (ANY,))
        new_v = carray(pointer(a[NEW_V], element), (ANY,))
        starts = carray(pointer(a[STARTS], types.int64), (rows,))
        lengths = carray(pointer(a[LENGTHS], types.int64), (rows,))
        scale = float_of(i32(a[SCALE]))
        p = np.empty((G, _BLOCK), np.float32)
        query = np.empty((G, D), np.float32)
        result = np.empty((G, D), np.float32)
        wide = np.empty(D, np.float32)
        while True:
            item = take_ticket(a)
            if item >= rows * heads:
                break
            row, head = item // heads, item % heads
            first, n = starts[row], lengths[row]
            head_k, head_v = k[head * head_size :], v[head * head_size :]
            at = (first + n - 1) * D
            key, value = head_k[at : at + D], head_v[at : at + D]
            fresh_key = new_k[row * a[NEW_K_STRIDE] + head * D :][:D]
            fresh_value = new_v[row * a[NEW_V_STRIDE] + head * D :][:D]
            for d in range(D):
                key[d] = fresh_key[d]
                value[d] = fresh_value[d]
            if window > 0 and n > window:
                first, n = first + n - window, window
            for g in range(G):
                source = q[row * a[Q_STRIDE] + (head * G + g) * D :][:D]
                target = query[g]
                for d in range(D):
                    if half:
                        target[d] = from_bfloat16(source[d]) * scale
                    else:
                        target[d] = source[d] * scale
            attend(query, head_k, head_v, result, p, wide, first, n)
            for g in range(G):
                source_row, target_row = result[g], out[item, g]
                for d in range(D):
                    if half:
                        target_row[d] = to_bfloat16(source_row[d])
                    else:
                        target_row[d] = source_row[d]

    return kernel
