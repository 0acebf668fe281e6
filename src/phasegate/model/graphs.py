"""Decode iterations as CUDA graphs: one launch instead of a thousand.

A captured graph has fixed shapes and addresses. So there is one graph per bucket of batch sizes,
they share static inputs, and rows beyond the batch stand for nobody: their region is the spare
token at the end of the KV memory.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

from phasegate.model.attention import DecodeKernels, PackedStep
from phasegate.model.kv_memory import KVMemory

_IDS, _POSITIONS, _STARTS, _LENGTHS = range(4)


def buckets(slots: int) -> list[int]:
    """Batch sizes to capture, up to `slots`: close together, so that little is computed for
    nobody (at most 8 rows, or an eighth of the batch)."""
    sizes = [1, 2, 4, 8]
    while sizes[-1] < slots:
        sizes.append(sizes[-1] + max(8, sizes[-1] // 64 * 8))
    return [size for size in sizes if size < slots] + [slots]


def capture(
    model: PreTrainedModel, memory: KVMemory, kernels: DecodeKernels, slots: int
) -> DecodeGraphs | None:
    """Graphs for batches of up to `slots`; None where decoding takes the host's help.

    That is so without a decode kernel for every layer, and for models that look at numbers on
    the device while they run (mixtures of experts, some rotary embeddings): with a warning.
    """
    if not kernels.complete:
        return None
    # Ends on this stream again, also if a capture breaks off.
    with torch.cuda.stream(torch.cuda.current_stream()):
        try:
            return DecodeGraphs(model, memory, kernels, slots)
        except RuntimeError as error:
            why = str(error).splitlines()[0]
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    warnings.warn(f"decodes run without CUDA graphs, which is slower: {why}", stacklevel=2)
    return None


class DecodeGraphs:
    """Captured decode iterations of a model on a GPU, replayed ever after."""

    # Inference mode: without it a capture would keep every activation for a backward pass.
    @torch.inference_mode()
    def __init__(
        self, model: PreTrainedModel, memory: KVMemory, kernels: DecodeKernels, slots: int
    ) -> None:
        """Captures. Raises RuntimeError if the model's forward pass cannot be captured."""
        self._model, self._memory, self._kernels = model, memory, kernels
        self._sizes = buckets(slots)
        self._graphs: dict[int, Any] = {}
        self._pool: Any = None
        self._logits: torch.Tensor | None = None
        # One stream for all: PyTorch keeps freed memory per stream.
        self._stream = torch.cuda.Stream(model.device)  # type: ignore[no-untyped-call]
        self._inputs = torch.zeros(4, slots, dtype=torch.int64, device=model.device)
        self._host = torch.zeros(4, slots, dtype=torch.int64).pin_memory()
        for size in reversed(self._sizes):  # the largest first: the others share its memory
            self._graphs[size] = self._capture(size)

    @property
    def largest(self) -> int:
        """The most rows that `run` takes."""
        return self._sizes[-1]

    def _clear(self, host: npt.NDArray[np.int64], n: int) -> None:
        """Rows from `n` on stand for nobody."""
        host[_IDS, n:] = host[_POSITIONS, n:] = 0
        host[_STARTS, n:] = self._memory.tokens
        host[_LENGTHS, n:] = 1

    def run(
        self,
        tokens: npt.NDArray[np.int64],
        starts: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int64],
    ) -> torch.Tensor:
        """Logits [rows, vocabulary] of one decode iteration; valid until the next call.

        Args:
            tokens, starts, lengths: [rows]: last token, region start, and context length with
                the token decoded now.
        """
        n = len(tokens)
        host = self._host.numpy()
        host[_IDS, :n], host[_POSITIONS, :n] = tokens, lengths - 1
        host[_STARTS, :n], host[_LENGTHS, :n] = starts, lengths
        self._clear(host, n)
        self._inputs.copy_(self._host, non_blocking=True)
        self._graphs[next(size for size in self._sizes if size >= n)].replay()
        assert self._logits is not None
        return self._logits[:n]

    def _capture(self, size: int) -> Any:
        nobody = torch.zeros(self._inputs.shape, dtype=torch.int64)
        self._clear(nobody.numpy(), 0)
        self._inputs.copy_(nobody)  # the forward passes below must not write into a region
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):  # kernels are compiled and chosen before the capture
            for _ in range(2):
                logits = self._forward(size)
        torch.cuda.current_stream().wait_stream(self._stream)
        if self._logits is None:  # one place for the results of all sizes: the first is the largest
            self._logits = torch.empty_like(logits)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            self._logits[:size].copy_(self._forward(size))
        if self._pool is None:
            self._pool = graph.pool()
        return graph

    def _forward(self, size: int) -> torch.Tensor:
        x = self._inputs
        step = PackedStep(
            self._memory, self._kernels, size, x[_STARTS, :size], x[_LENGTHS, :size], []
        )
        output = self._model(
            input_ids=x[_IDS, :size].unsqueeze(0),
            position_ids=x[_POSITIONS, :size].unsqueeze(0),
            use_cache=False,
            step=step,
        )
        logits: torch.Tensor = output.logits[0]
        return logits
