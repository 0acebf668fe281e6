"""TorchRunner: batches of the scheduler on a real model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from phasegate.engine.step import Batch, Slice, StepResult
from phasegate.errors import ModelError
from phasegate.model.architecture import inspect_model, own_logits, verify
from phasegate.model.attention import DecodeKernels, PackedStep, Piece
from phasegate.model.fused import fuse
from phasegate.model.generation import Generation
from phasegate.model.graphs import capture
from phasegate.model.host_memory import keep_freed_memory
from phasegate.model.kv_memory import KVMemory, bytes_per_token
from phasegate.model.loading import LoadedModel, free_memory
from phasegate.model.packed_linear import pack_linear_layers, padded_rows
from phasegate.model.sampler import Sampler
from phasegate.scheduler.arena import Arena, Move, Tidier
from phasegate.scheduler.request import Request

_TIDY_BYTES = {"cpu": 20 << 20, "cuda": 4 << 30}
"""What a device copies in about 5 ms, bytes: the most that compaction moves between iterations."""

_GPU_RESERVE = 2 << 30
"""Bytes that are never given to the KV cache on a GPU."""

_BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""PyTorch's attention without cuDNN's, which plans anew for every length of a prompt."""


class TorchRunner:
    """Runs any mix of prompt slices and decodes in one forward pass over packed tokens.

    Requests carry a `Generation` as payload. Each owns a contiguous region of KV memory that
    grows by pages; the scheduler's accounting with the same page size guarantees that there is
    always room, and regions move when it is in the wrong place.

    Attributes:
        loaded: the model and what belongs to it.
        arena: which request's KV lies where.
        kv_tokens: KV cache size, tokens (whole pages).
        page: tokens per page.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        kv_tokens: int | None = None,
        page: int = 256,
        slots: int = 256,
    ) -> None:
        """Takes over the model: packs its layers and replaces its attention.

        Args:
            loaded: from `load_model`.
            kv_tokens: KV cache size; None: half of the free memory on a CPU, nine tenths on a GPU,
                but no more than all slots can use.
            page: tokens per page of a region.
            slots: the most requests that run at once.

        Raises ModelError if the model is not supported or the KV cache does not fit.
        """
        self.loaded = loaded
        self._model = model = loaded.model
        self._device = torch.device(model.device)
        self._on_gpu = self._device.type == "cuda"
        if self._on_gpu:
            torch.cuda.set_device(self._device)
        else:
            keep_freed_memory()
        expected = own_logits(model, loaded.name)
        self._shapes = inspect_model(model, loaded.name)
        fuse(model)
        self._packed = pack_linear_layers(model) > 0
        self._kernels = DecodeKernels(self._shapes, model.dtype, self._device)
        verify(model, self._shapes, self._kernels, expected, loaded.name)
        if kv_tokens is None:
            kv_tokens = self._fitting_tokens(page, slots)
        if kv_tokens < page:
            raise ModelError(f"kv_tokens is {kv_tokens}, less than a page of {page}; raise it")
        self.arena = Arena(kv_tokens, page)
        self.kv_tokens, self.page = self.arena.capacity, page
        self._memory = KVMemory(self._shapes, self.kv_tokens, model.dtype, self._device)
        per_token = bytes_per_token(self._shapes, model.dtype)
        self._tidier = Tidier(_TIDY_BYTES[self._device.type] // per_token)
        self._arena_changed = False
        self._graphs = capture(model, self._memory, self._kernels, slots) if self._on_gpu else None
        self._rows = _Rows(self._device)

    def _fitting_tokens(self, page: int, slots: int) -> int:
        free = free_memory(self._device)
        per_token = bytes_per_token(self._shapes, self._model.dtype)
        if free is None:
            room = 1 << 16
        elif self._on_gpu:  # the rest is for activations, logits and captured graphs
            room = int(min(0.9 * free, free - _GPU_RESERVE)) // per_token
        else:
            room = free // 2 // per_token
        longest = -(-self.loaded.max_length // page) * page
        return max(0, min(room, slots * longest)) // page * page

    # ---------------------------------------------------------------- the Runner protocol
    @torch.inference_mode()
    def run(self, batch: Batch) -> StepResult:
        """See `Runner.run`. One iteration at a time; time has passed when it returns."""
        if self._on_gpu:
            torch.cuda.set_device(self._device)  # every thread has a current device of its own
        rows = self._rows
        n = batch.decodes
        if n:
            self._make_room(batch)
        pieces = [self._place(piece) for piece in batch.prefill]
        if n and rows.stale:
            rows.fill(batch.decoding, self.arena)
        ending = [piece.request for piece in batch.prefill if piece.last]
        graphs = self._graphs
        logits: torch.Tensor | None
        if graphs is not None and not pieces and n <= graphs.largest:
            logits = graphs.run(rows.tokens, rows.starts, rows.lengths + 1)
        elif self._on_gpu:
            with sdpa_kernel(_BACKENDS):
                logits = self._forward(batch.prefill, pieces, n)
        else:
            logits = self._forward(batch.prefill, pieces, n)
        finished: list[Request] = []
        if logits is not None:
            generations = [*rows.generations[:n], *(r.payload for r in ending)]
            sampler = Sampler(generations, self._device) if ending or not n else rows.sampler()
            picked = sampler.pick(logits).cpu().numpy()
            finished = self._take(picked, n, ending)
        elif self._on_gpu:
            torch.cuda.synchronize(self._device)
        if self._arena_changed:
            self._arena_changed = False
            self._moved(self._tidier.tidy(self.arena))
        return StepResult((), finished)

    def release(self, request: Request) -> None:
        """See `Runner.release`."""
        self.arena.release(request.id)
        self._arena_changed = True
        self._rows.stale = True

    # ---------------------------------------------------------------- KV regions
    def _make_room(self, batch: Batch) -> None:
        """Grow the regions of requests whose next token crosses into a new page."""
        rows = self._rows
        if rows.stale:
            rows.fill(batch.decoding, self.arena)
        for i in np.flatnonzero(rows.lengths >= rows.sizes):
            request = rows.requests[i]
            self._moved(self.arena.grow(request.id, int(rows.lengths[i]) + 1))
            rows.stale = True
        if rows.stale:
            rows.fill(batch.decoding, self.arena)

    def _place(self, piece: Slice) -> Piece:
        """Where a prompt slice goes; the request's region is made at its first slice."""
        request = piece.request
        if request.id not in self.arena:
            tokens = request.to_prefill
            longest = request.prompt + request.max_tokens - 1
            self._moved(self.arena.allocate(request.id, tokens, longest))
            if piece.start:  # declared present, not computed: give it a content all the same
                self._memory.fill(self.arena.start(request.id), piece.start)
        return Piece(0, piece.length, self.arena.start(request.id), piece.start)

    def _moved(self, moves: Sequence[Move]) -> None:
        if moves:
            self._memory.move(moves)
            self._rows.stale = True

    # ---------------------------------------------------------------- the forward pass
    def _forward(
        self, slices: Sequence[Slice], pieces: Sequence[Piece], n: int
    ) -> torch.Tensor | None:
        """Logits of the decoding rows and of the slices that end a prompt, in this order."""
        rows = self._rows
        ids = [rows.tokens[:n]]
        positions = [rows.lengths[:n]]
        wanted = list(range(n))
        packed = []
        row = n
        for piece, place in zip(slices, pieces, strict=True):
            generation: Generation = piece.request.payload
            ids.append(np.array(generation.tokens(piece.start, piece.length), np.int64))
            positions.append(np.arange(piece.start, piece.start + piece.length))
            # The region may have moved to make room for a later one.
            packed.append(place._replace(row=row, start=self.arena.start(piece.request.id)))
            row += piece.length
            if piece.last:
                wanted.append(row - 1)
        if self._packed and row > 0:  # rows that stand for nobody
            padding = np.zeros(padded_rows(row) - row, np.int64)
            ids.append(padding)
            positions.append(padding)
            row += len(padding)
        # One transfer for everything; one row of logits is computed even if none is wanted.
        parts = [*ids, *positions, rows.starts[:n], rows.lengths[:n] + 1, np.array(wanted or [0])]
        data = torch.from_numpy(np.concatenate(parts))
        if self._on_gpu:
            data = data.pin_memory().to(self._device, non_blocking=True)
        token, position, start, length, keep = torch.split(
            data, [row, row, n, n, max(1, len(wanted))]
        )
        output = self._model(
            input_ids=token.unsqueeze(0),
            position_ids=position.unsqueeze(0),
            use_cache=False,
            logits_to_keep=keep,
            step=PackedStep(self._memory, self._kernels, n, start, length, packed),
        )
        return output.logits[0] if wanted else None

    # ---------------------------------------------------------------- tokens
    def _take(self, picked: Any, n: int, ending: Sequence[Request]) -> list[Request]:
        """Hand the new tokens to their generations; returns the requests that are done."""
        rows, eos = self._rows, self.loaded.eos
        finished = []
        tokens = picked.tolist()
        for request, generation, token in zip(
            rows.requests[:n], rows.generations[:n], tokens[:n], strict=True
        ):
            if generation.add(token, eos, request.max_tokens):
                finished.append(request)
        if n:
            rows.advance(picked[:n])
        for request, token in zip(ending, tokens[n:], strict=True):
            if request.payload.add(token, eos, request.max_tokens):
                finished.append(request)
        if ending:
            rows.stale = True
        return finished


class _Rows:
    """The decoding requests as arrays, in the order of the batch.

    Rebuilt when requests join, leave or move (`stale`); otherwise an iteration only adds one.

    Attributes:
        tokens: last output token of each, not yet in KV.
        lengths: tokens in KV.
        starts, sizes: region in the KV memory, tokens.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._sampler: Sampler | None = None
        self.stale = True
        self.requests: list[Request] = []
        self.generations: list[Generation] = []
        self.tokens = self.lengths = self.starts = self.sizes = np.zeros(0, np.int64)

    def fill(self, decoding: Any, arena: Arena) -> None:
        """Read everything anew."""
        self.requests = list(decoding)
        self.generations = [request.payload for request in self.requests]
        g = self.generations
        self.tokens = np.array([x.output[-1] for x in g], np.int64)
        self.lengths = np.array([len(x.prompt) + len(x.output) - 1 for x in g], np.int64)
        self.starts = np.array([arena.start(r.id) for r in self.requests], np.int64)
        self.sizes = np.array([arena.size(r.id) for r in self.requests], np.int64)
        self._sampler = None
        self.stale = False

    def sampler(self) -> Sampler:
        """A sampler for these rows, kept while they stay."""
        if self._sampler is None:
            self._sampler = Sampler(self.generations, self._device)
        return self._sampler

    def advance(self, tokens: Any) -> None:
        """Every row got a token, and the one before it is in KV now."""
        self.tokens = tokens
        self.lengths += 1
