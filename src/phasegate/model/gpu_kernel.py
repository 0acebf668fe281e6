# mypy: ignore-errors
# (compiled by Triton from source: its types are not Python's)
"""The decode attention kernels themselves, in Triton. See `gpu_attention`."""

import triton
import triton.language as tl


# Where the rows' starts and lengths lie in their tensor varies from step to step, and with it their
# alignment; the kernel would be compiled anew for it, in the middle of serving.
@triton.jit(do_not_specialize_on_alignment=["starts_ptr", "lengths_ptr"])
def attend(
    q_ptr, new_k_ptr, new_v_ptr, k_ptr, v_ptr, starts_ptr, lengths_ptr, out_ptr, sums_ptr,
    scale, window, tokens, q_stride, new_k_stride, new_v_stride,
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
    q_place = row * q_stride + (head * GROUP + g)[:, None] * DIM + d[None, :]
    q = tl.load(q_ptr + q_place, mask=q_mask, other=0.0)

    # The new token: one program stores it, all of them take it from where it comes from.
    new = head * DIM + d
    new_k = tl.load(new_k_ptr + row * new_k_stride + new, mask=in_dim, other=0.0)
    new_v = tl.load(new_v_ptr + row * new_v_stride + new, mask=in_dim, other=0.0)
    if split == 0:
        last = (head * tokens + start + n - 1) * DIM + d
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
        place = (head * tokens + start + t)[:, None] * DIM + d[None, :]
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


@triton.jit
def rotate(
    q_ptr, k_ptr, cos_ptr, sin_ptr, q_stride, k_stride, q_heads,
    HALF: tl.constexpr, HALF_PADDED: tl.constexpr,
):  # fmt: skip
    """Rotary embedding in place: one token, one head of q or k."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = tl.arange(0, HALF_PADDED)
    mask = i < HALF
    angles = token * 2 * HALF + i
    cos_low = tl.load(cos_ptr + angles, mask=mask, other=0.0).to(tl.float32)
    cos_high = tl.load(cos_ptr + angles + HALF, mask=mask, other=0.0).to(tl.float32)
    sin_low = tl.load(sin_ptr + angles, mask=mask, other=0.0).to(tl.float32)
    sin_high = tl.load(sin_ptr + angles + HALF, mask=mask, other=0.0).to(tl.float32)
    if head < q_heads:
        place = q_ptr + token * q_stride + head * 2 * HALF + i
    else:
        place = k_ptr + token * k_stride + (head - q_heads) * 2 * HALF + i
    low = tl.load(place, mask=mask, other=0.0).to(tl.float32)
    high = tl.load(place + HALF, mask=mask, other=0.0).to(tl.float32)
    tl.store(place, low * cos_low - high * sin_low, mask=mask)
    tl.store(place + HALF, high * cos_high + low * sin_high, mask=mask)


@triton.jit
def silu_gate(x_ptr, out_ptr, width, BLOCK: tl.constexpr):
    """silu(gate) * up for one row of [gate | up], one block of columns."""
    row = tl.program_id(0).to(tl.int64)  # rows x width can be more than 2**31
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = i < width
    gate = tl.load(x_ptr + row * 2 * width + i, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + row * 2 * width + width + i, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * width + i, gate / (1.0 + tl.exp(-gate)) * up, mask=mask)
