"""Picking tokens from logits.

A sampled token depends on the request's logits, its parameters, its seed and how many tokens it
has - not on the batch it is in. So sampling is repeatable under every policy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from phasegate.model.generation import Generation
from phasegate.model.params import SamplingParams

_HEAD = 256
"""Candidates tried first for top-p on the CPU, where sorting a whole vocabulary is slow."""


def uniforms(
    seeds: npt.NDArray[np.uint64], counts: npt.NDArray[np.uint64]
) -> npt.NDArray[np.float64]:
    """One number in [0, 1) per (seed, count), from SplitMix64 (Steele, Lea & Flood 2014)."""
    with np.errstate(over="ignore"):
        z = _mix(seeds) + (counts + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        # 52 bits: u * x < x then holds in float64 for every x > 0.
        return (_mix(z) >> np.uint64(12)).astype(np.float64) * 2.0**-52


def _mix(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


class Sampler:
    """Picks the next token of each row for a fixed list of generations.

    Build a new one when the rows change; what does not change from token to token is prepared
    here.
    """

    def __init__(self, rows: Sequence[Generation], device: torch.device) -> None:
        free = [i for i, row in enumerate(rows) if _kind(row.params) == "free"]
        limited = [i for i, row in enumerate(rows) if _kind(row.params) == "limited"]
        # The two draw in a different order of tokens: a row must not change sides with the batch.
        self._groups = [_Group(rows, at, device) for at in (free, limited) if at]
        self._greedy = len(free) + len(limited) < len(rows)

    def pick(self, logits: torch.Tensor) -> torch.Tensor:
        """Token ids int64 [rows] for logits [rows, vocabulary], on the logits' device."""
        if self._greedy:
            picked = _most_likely(logits)
        else:
            picked = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
        for group in self._groups:
            picked[group.at] = group.sample(logits[group.at].float())
        return picked


def _most_likely(logits: torch.Tensor) -> torch.Tensor:
    if logits.is_cuda:
        return logits.argmax(dim=-1)
    # NumPy's argmax is vectorised, PyTorch's is slow on one row.
    return torch.from_numpy(logits.float().numpy().argmax(axis=-1))


def _kind(params: SamplingParams) -> str:
    if params.greedy:
        return "greedy"
    return "limited" if params.top_k > 0 or params.top_p < 1.0 else "free"


class _Group:
    """Rows that are sampled together: all with top-k or top-p, or all without."""

    def __init__(self, rows: Sequence[Generation], at: list[int], device: torch.device) -> None:
        self._rows = [rows[i] for i in at]
        self._device = device
        self.at = torch.tensor(at, device=device)
        params = [row.params for row in self._rows]
        self._seeds = np.array([row.seed for row in self._rows], np.uint64)
        self._temperature = self._column([p.temperature for p in params])
        self._limits_p = any(p.top_p < 1.0 for p in params)
        self._top_p = self._column([max(p.top_p, 1e-6) for p in params])
        ks = [max(p.top_k, 0) for p in params]
        self._limits_k = any(ks)
        self._largest_k = max(ks) if all(ks) else 0
        self._top_k = self._column([k or 1 << 30 for k in ks], torch.int64)

    def _column(self, values: Sequence[float], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=self._device).unsqueeze(1)

    def sample(self, logits: torch.Tensor) -> torch.Tensor:
        """Token ids [rows] for logits [rows, vocabulary]."""
        counts = np.array([len(row.output) for row in self._rows], np.uint64)
        u = torch.from_numpy(uniforms(self._seeds, counts)).to(self._device, non_blocking=True)
        logits = logits / self._temperature
        if not self._limits_k and not self._limits_p:
            return _draw(torch.softmax(logits, dim=-1), u)
        total = torch.logsumexp(logits, dim=-1, keepdim=True)
        values, ids = self._candidates(logits, total)
        if self._limits_k:
            rank = torch.arange(values.shape[1], device=self._device)
            values = values.masked_fill(rank >= self._top_k, float("-inf"))
            kept = torch.logsumexp(values, dim=-1, keepdim=True)
            total = torch.where(self._top_k < logits.shape[1], kept, total)
        p = torch.exp(values - total)
        if self._limits_p:
            # A token stays if the more likely ones do not hold top_p yet; the first always does.
            p = p.masked_fill(p.cumsum(dim=-1) - p >= self._top_p, 0.0)
        return ids.gather(1, _draw(p, u).unsqueeze(1)).squeeze(1)

    def _candidates(
        self, logits: torch.Tensor, total: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The most likely tokens in order: as many as can be needed, or all."""
        size = logits.shape[1]
        if self._largest_k:
            return logits.topk(min(self._largest_k, size), dim=-1)
        if self._device.type == "cpu" and not self._limits_k and size > _HEAD:
            head = logits.topk(_HEAD, dim=-1)
            held = torch.exp(head.values - total).sum(dim=-1, keepdim=True)
            if bool((held >= self._top_p).all()):
                return head
        return logits.sort(dim=-1, descending=True)


def _draw(p: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """Index per row drawn from weights p [rows, n] by inversion with u [rows]."""
    c = p.double().cumsum(dim=-1)
    # u * (last sum) is below the last sum, and a token of weight 0 is a step of no width.
    return torch.searchsorted(c, u.unsqueeze(1) * c[:, -1:], right=True).squeeze(1)
