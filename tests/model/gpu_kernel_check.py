"""Compares the Triton kernel with attention written out (run by test_attention.py).

float16 stands for both half formats: the interpreter does not multiply bfloat16.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from test_attention import SCALE, attend_in_full

from phasegate.model.attention import Scores
from phasegate.model.gpu_attention import GpuDecode

for dtype, tolerance in ((torch.float32, 1e-5), (torch.float16, 2e-3)):
    for heads, kv_heads, dim, processors in ((6, 2, 16, 1), (8, 1, 80, 132), (9, 3, 64, 132)):
        torch.manual_seed(0)
        kernel = GpuDecode(dim, heads // kv_heads, processors)
        lengths, starts = torch.tensor([1, 64, 65, 200]), torch.arange(4) * 256
        keys, values = (torch.randn(kv_heads, 1024, dim).to(dtype) for _ in range(2))
        q = torch.randn(4, heads, dim).to(dtype)
        new_k, new_v = (torch.randn(4, kv_heads, dim).to(dtype) for _ in range(2))
        for window in (0, 50):
            out = torch.empty_like(q)
            kernel(q, new_k, new_v, keys, values, starts, lengths, SCALE, window, out)
            at = starts + lengths - 1
            assert torch.equal(keys[:, at], new_k.transpose(0, 1))
            for row, (start, n) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
                k, v = (x[:, start : start + n].float() for x in (keys, values))
                scores = Scores(SCALE, window=window)
                one = attend_in_full(q[row : row + 1].float(), k, v, n - 1, scores)
                torch.testing.assert_close(out[row].double(), one[0], atol=tolerance, rtol=0)
