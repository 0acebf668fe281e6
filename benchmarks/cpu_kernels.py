"""Our own CPU kernels against PyTorch's way of doing the same, on the demo model's shapes.

    python benchmarks/cpu_kernels.py            # about 2 minutes
    python benchmarks/cpu_kernels.py --quick    # single operations only

An operation of our own has to be at least 1.5 times as fast as PyTorch's to stay (issue 4), or to
make the whole iteration faster. The first table has single operations; the second one whole
iterations of the engine with one part at a time taken out. Both ways run alternately, and the
fastest of many runs counts. On a busy machine use `--threads 1`: the thread's own time is counted
then.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

import numpy as np
import torch
from harness import markdown, parser, publish
from torch import nn
from torch.nn import functional
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb

from phasegate.engine.step import Slice
from phasegate.model import attention, fused, packed_linear, runner
from phasegate.model.attention import Piece
from phasegate.model.cpu_attention import decode_kernel
from phasegate.model.demo import demo_model
from phasegate.model.loading import load_model
from phasegate.model.measured import random_generation
from phasegate.model.packed_linear import PackedLinear
from phasegate.model.small_ops import small_ops
from phasegate.model.threads import set_threads
from phasegate.scheduler.request import Request

HIDDEN, INNER, VOCABULARY = 576, 1536, 49_152
HEADS, KV_HEADS, DIM = 9, 3, 64
WANTED = 1.5

Way = Callable[[], object]


def fastest(ways: dict[str, Way], seconds: float) -> dict[str, float]:
    """Shortest time of each way, taking turns for so long, seconds. With one thread, what others
    take of the processor meanwhile does not count."""
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    best = dict.fromkeys(ways, float("inf"))
    for way in ways.values():
        way()
    end = time.perf_counter() + seconds
    turns = 0
    while time.perf_counter() < end or turns < 5:
        for name, way in ways.items():
            begin = clock()
            way()
            best[name] = min(best[name], clock() - begin)
        turns += 1
    return best


# ---------------------------------------------------------------- single operations
def attention_ways(rows: int, context: int) -> dict[str, Way]:
    """Decode attention of `rows` requests over their regions; PyTorch: a call per request, or one
    for all over a padded copy of KV that is there already (making it is not counted)."""
    kernel = decode_kernel(DIM, HEADS // KV_HEADS, torch.float32)
    assert kernel is not None, "the CPU kernels need numba and a PyTorch with GNU OpenMP"
    lengths = torch.from_numpy(np.random.default_rng(0).integers(context // 2, context + 1, rows))
    starts = torch.arange(rows) * context
    keys, values = (torch.randn(KV_HEADS, rows * context, DIM) for _ in range(2))
    q = torch.randn(rows, HEADS, DIM)
    new_k, new_v = (torch.randn(rows, KV_HEADS, DIM) for _ in range(2))
    out, scale = torch.empty_like(q), DIM**-0.5
    spans = [slice(s, s + n) for s, n in zip(starts.tolist(), lengths.tolist(), strict=True)]
    apart = (KV_HEADS, rows, context, DIM)
    padded = [x.view(apart).transpose(0, 1).contiguous() for x in (keys, values)]
    mask = (torch.arange(context) < lengths[:, None])[:, None, None]

    def ours() -> None:
        kernel(q, new_k, new_v, keys, values, starts, lengths, scale, 0, out)

    def one_by_one() -> None:
        at = starts + lengths - 1
        keys.index_copy_(1, at, new_k.transpose(0, 1))
        values.index_copy_(1, at, new_v.transpose(0, 1))
        for i, span in enumerate(spans):
            out[i] = functional.scaled_dot_product_attention(
                q[i, None, :, None], keys[None, :, span], values[None, :, span], enable_gqa=True
            )[0, :, 0]

    def at_once() -> None:
        functional.scaled_dot_product_attention(
            q[:, :, None], *padded, attn_mask=mask, enable_gqa=True
        )

    return {"ours": ours, "a call each": one_by_one, "padded": at_once}


def linear_ways(rows: int, inputs: int, outputs: int) -> dict[str, Way]:
    """A layer with packed weights, and nn.Linear."""
    linear = nn.Linear(inputs, outputs, bias=False)
    packed, x = PackedLinear(linear), torch.randn(1, rows, inputs)
    return {"ours": lambda: packed(x), "nn.Linear": lambda: linear(x)}


def projection_ways(rows: int) -> dict[str, Way]:
    """Queries, keys and values in one product, or three (packed both)."""
    sizes = (HEADS * DIM, KV_HEADS * DIM, KV_HEADS * DIM)
    layers = [nn.Linear(HIDDEN, size, bias=False) for size in sizes]
    one = PackedLinear(fused.SharedProjection(layers).merged)
    three, x = [PackedLinear(layer) for layer in layers], torch.randn(1, rows, HIDDEN)
    return {
        "ours": lambda: torch.split(one(x), sizes, dim=-1),
        "three": lambda: [layer(x) for layer in three],
    }


def norm_ways(rows: int) -> dict[str, Way]:
    """RMS norm."""
    ops, norm = small_ops(torch.float32, torch.device("cpu")), LlamaRMSNorm(HIDDEN)
    assert ops is not None
    x, weight = torch.randn(1, rows, HIDDEN), norm.weight.detach()
    return {
        "ours": lambda: ops.norm(x, weight, 1e-5),
        "rms_norm": lambda: functional.rms_norm(x, (HIDDEN,), weight, 1e-5),
        "the model's own": lambda: norm(x),
    }


def rotation_ways(rows: int) -> dict[str, Way]:
    """Rotary embedding of queries and keys."""
    ops = small_ops(torch.float32, torch.device("cpu"))
    assert ops is not None
    q, k = torch.randn(rows, HEADS, DIM), torch.randn(rows, KV_HEADS, DIM)
    cos, sin = torch.randn(rows, DIM), torch.randn(rows, DIM)
    q4, k4 = q.transpose(0, 1)[None], k.transpose(0, 1)[None]
    return {
        "ours": lambda: ops.rotate(q, k, cos, sin),
        "the model's own": lambda: apply_rotary_pos_emb(q4, k4, cos[None], sin[None]),
    }


def single_operations(seconds: float) -> Iterator[list[str]]:
    """Rows of the first table."""
    cases: dict[str, dict[str, Way]] = {}
    for rows, context in ((1, 512), (16, 128), (16, 1024), (32, 512)):
        cases[f"decode attention, {rows} requests at {context}"] = attention_ways(rows, context)
    for inputs, outputs in ((HIDDEN, INNER), (INNER, HIDDEN), (HIDDEN, VOCABULARY)):
        for rows in (1, 16, 32, 256):
            if outputs < VOCABULARY or rows <= 32:
                name = f"linear {inputs} x {outputs}, {rows} rows"
                cases[name] = linear_ways(rows, inputs, outputs)
    for title, ways in (
        ("q, k, v", projection_ways),
        ("RMS norm", norm_ways),
        ("rotation", rotation_ways),
    ):
        for rows in (1, 16, 32, 256):
            cases[f"{title}, {rows} rows"] = ways(rows)
    for name, case in cases.items():
        best = fastest(case, seconds)
        ours = best.pop("ours")
        way, other = min(best.items(), key=lambda item: item[1])
        ratio = other / ours
        yield [
            name,
            f"{ours * 1e6:.0f}",
            f"{other * 1e6:.0f} ({way})",
            f"{ratio:.2f}x" + ("" if ratio >= WANTED else " !"),
        ]


# ---------------------------------------------------------------- whole iterations
@contextmanager
def without(part: str) -> Iterator[None]:
    """Engines made in here do without a part of ours."""
    nothing = mock.MagicMock(return_value=None)
    patches = {
        "nothing": [],
        "decode attention": [mock.patch.object(attention, "cpu_decode_kernel", nothing)],
        "packed weights": [mock.patch.object(packed_linear, "packing_works", nothing)],
        "q, k, v in one": [mock.patch.object(fused, "_share_projections", nothing)],
        "RMS norm": [mock.patch.object(fused, "_fused_norm", nothing)],
        "rotation": [mock.patch.object(fused, "_fuse_rotation", nothing)],
    }[part]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()


PARTS = (
    "nothing",
    "decode attention",
    "packed weights",
    "q, k, v in one",
    "RMS norm",
    "rotation",
)
ITERATIONS = {  # decoding requests at 128, prompt tokens
    "16 decodes at 128": (16, 0),
    "32 decodes at 128": (32, 0),
    "256 prompt tokens": (0, 256),
}


def iteration(engine: runner.TorchRunner, decodes: int, prompt: int) -> Way:
    """A forward pass of the engine, the same every time."""
    engine._memory.fill(
        0, engine.kv_tokens
    )  # what was never written to may be slow to compute with
    rows, context = engine._rows, 128
    rows.tokens = np.arange(decodes, dtype=np.int64) + 100
    rows.lengths = np.full(decodes, context, np.int64)
    rows.starts = np.arange(decodes, dtype=np.int64) * 256
    request = Request(0, max(prompt, 1), 1, payload=random_generation(0, max(prompt, 1), 1, 1000))
    slices, pieces = [], []
    if prompt:
        engine.arena.allocate(0, prompt, prompt)
        slices = [Slice(request, 0, prompt, True)]
        pieces = [Piece(0, prompt, engine.arena.start(0), 0)]
    kept = [rows.tokens, rows.lengths, rows.starts]

    @torch.inference_mode()
    def run() -> None:
        rows.tokens, rows.lengths, rows.starts = kept
        engine._forward(slices, pieces, decodes)

    return run


def whole_iterations(seconds: float) -> Iterator[list[str]]:
    """Rows of the second table."""
    for name, (decodes, prompt) in ITERATIONS.items():
        ways: dict[str, Way] = {}
        for part in PARTS:
            with without(part):
                loaded = load_model(demo_model(), device="cpu", dtype="float32")
                engine = runner.TorchRunner(loaded, kv_tokens=16 * 1024, slots=32)
            ways[part] = iteration(engine, decodes, prompt)
        best = fastest(ways, seconds)
        base = best["nothing"]
        yield [
            name,
            f"{base * 1e3:.1f} ms",
            *(f"{100 * (best[part] / base - 1):+.1f} %" for part in PARTS[1:]),
        ]


def main() -> None:
    """Run and print."""
    options = parser(__doc__ or "")
    options.add_argument("--threads", type=int, help="CPU threads (default: all usable cores)")
    arguments = options.parse_args()
    threads = set_threads(arguments.threads)
    with torch.inference_mode():
        first = list(single_operations(0.3 if arguments.quick else 1.0))
    head = [f"float32, {threads} threads", "ours, us", "PyTorch, us", f"faster by (! < {WANTED})"]
    text = markdown(head, first)
    if not arguments.quick:
        second = list(whole_iterations(20.0))
        head = ["whole iteration", "with all", *(f"without {part}" for part in PARTS[1:])]
        text += "\n\n" + markdown(head, second)
    publish("cpu_kernels", sys.argv[1:], text, arguments.write)


if __name__ == "__main__":
    main()
