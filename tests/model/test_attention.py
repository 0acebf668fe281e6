"""Attention over regions of the KV memory, against attention written out in full."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from phasegate.model.attention import DecodeKernels, Scores, attend_slice
from phasegate.model.cpu_attention import decode_kernel
from phasegate.model.gpu_attention import block_tokens
from phasegate.model.kv_memory import KVMemory, LayerShape
from phasegate.scheduler.arena import Move

SCALE = 0.3


def attend_in_full(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, before: int, scores: Scores
) -> torch.Tensor:
    """q [tokens, heads, dim], k and v [kv_heads, total, dim], in float64."""
    group = q.shape[1] // k.shape[0]
    k, v = (x.repeat_interleave(group, 0).double() for x in (k, v))
    s = q.double().transpose(0, 1) @ k.transpose(1, 2) * scores.scale
    if scores.softcap:
        s = torch.tanh(s / scores.softcap) * scores.softcap
    row = torch.arange(before, before + q.shape[0])[:, None]
    key = torch.arange(k.shape[1])
    hidden = key > row
    if scores.window:
        hidden |= key <= row - scores.window
    s = s.masked_fill(hidden, float("-inf"))
    if scores.sinks is not None:
        sinks = scores.sinks.double().view(-1, 1, 1).expand(-1, s.shape[1], 1)
        s = torch.cat([s, sinks], -1)
    weights = torch.softmax(s, -1)[..., : k.shape[1]]
    return (weights @ v).transpose(0, 1)


@pytest.mark.parametrize(
    "scores",
    [
        Scores(SCALE),
        Scores(SCALE, window=7),
        Scores(SCALE, window=1000),
        Scores(SCALE, softcap=2.0),
        Scores(SCALE, window=9, sinks=torch.linspace(-1, 1, 6)),
    ],
    ids=["plain", "window", "wide window", "soft cap", "sinks and window"],
)
@pytest.mark.parametrize(("before", "tokens"), [(0, 1), (0, 300), (40, 1), (5, 290), (600, 20)])
def test_a_slice_sees_what_came_before_and_itself(scores: Scores, before: int, tokens: int) -> None:
    torch.manual_seed(0)
    q = torch.randn(tokens, 6, 16)
    k, v = torch.randn(2, before + tokens, 16), torch.randn(2, before + tokens, 16)
    expected = attend_in_full(q, k, v, before, scores)
    torch.testing.assert_close(
        attend_slice(q, k, v, before, scores).double(), expected, atol=2e-5, rtol=0
    )


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(9, 3, 64), (4, 4, 80), (8, 1, 16)])
def test_the_cpu_kernel(
    dtype: torch.dtype, tolerance: float, heads: int, kv_heads: int, dim: int
) -> None:
    kernel = decode_kernel(dim, heads // kv_heads, dtype)
    if kernel is None:
        pytest.skip("needs numba and a PyTorch with GNU OpenMP")
    torch.manual_seed(0)
    lengths = torch.tensor([1, 2, 127, 128, 129, 300])
    starts = torch.arange(6) * 320
    keys, values = (torch.randn(kv_heads, 2048, dim).to(dtype) for _ in range(2))
    q = torch.randn(6, heads, dim).to(dtype)
    new_k, new_v = (torch.randn(6, kv_heads, dim).to(dtype) for _ in range(2))
    for window in (0, 100):
        out = torch.empty_like(q)
        kernel(q, new_k, new_v, keys, values, starts, lengths, SCALE, window, out)
        at = starts + lengths - 1
        assert torch.equal(keys[:, at], new_k.transpose(0, 1))
        assert torch.equal(values[:, at], new_v.transpose(0, 1))
        for row, (start, n) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
            k, v = keys[:, start : start + n].float(), values[:, start : start + n].float()
            one = attend_in_full(
                q[row : row + 1].float(), k, v, n - 1, Scores(SCALE, window=window)
            )
            torch.testing.assert_close(out[row].double(), one[0], atol=tolerance, rtol=0)


def test_layers_without_a_kernel_are_known_before_anything_runs() -> None:
    """Their decodes ask the host where to read, which a captured graph cannot."""
    plain, capped = LayerShape(6, 2, 16, 16), LayerShape(6, 2, 16, 16, plain=False)
    cpu = torch.device("cpu")
    kernels = DecodeKernels([plain, capped], torch.float32, cpu)
    assert kernels.of(capped) is None
    assert not kernels.complete
    if decode_kernel(16, 3, torch.float32) is not None:
        assert DecodeKernels([plain], torch.float32, cpu).complete


@pytest.mark.parametrize(("dim", "size", "tokens"), [(128, 2, 64), (128, 4, 32), (256, 4, 16)])
def test_gpu_tiles_fit_shared_memory(dim: int, size: int, tokens: int) -> None:
    """Keys and values of two steps on their way, and one in work, in 99 KiB."""
    assert block_tokens(dim, size) == tokens
    assert 3 * 2 * tokens * dim * size <= 99 << 10


def test_the_gpu_kernel_in_tritons_interpreter() -> None:
    """On the CPU, in a process of its own: the interpreter has to be chosen before the import."""
    pytest.importorskip("triton", reason="triton is not installed (it comes with PyTorch for GPUs)")
    script = Path(__file__).with_name("gpu_kernel_check.py")
    subprocess.run(
        [sys.executable, str(script)], check=True, env={**os.environ, "TRITON_INTERPRET": "1"}
    )


@pytest.mark.parametrize(("source", "target"), [(0, 90), (60, 0), (10, 13), (13, 10), (0, 5000)])
@pytest.mark.parametrize("length", [1, 7, 50, 4900])
def test_moving_tokens_keeps_them(source: int, target: int, length: int) -> None:
    memory = KVMemory([LayerShape(4, 2, 3, 5)], 10_000, torch.float32, torch.device("cpu"))
    for tensor in (*memory.keys, *memory.values):
        tensor.copy_(torch.arange(tensor.numel()).view(tensor.shape))
    before = [t[:, source : source + length].clone() for t in (*memory.keys, *memory.values)]
    memory.move([Move(source, target, length)])
    after = [t[:, target : target + length] for t in (*memory.keys, *memory.values)]
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))
