"""What a client asks of one generation."""

from __future__ import annotations

from dataclasses import dataclass, field

from phasegate.checks import number, text, whole_number
from phasegate.errors import InputError

_COLD = 1e-5
"""Temperatures below leave float32 no difference from the most likely token."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to pick tokens, and when to stop.

    Attributes:
        temperature: 0 picks the most likely token; higher is more random.
        top_p: sample only from the most likely tokens that hold this share of probability.
        top_k: sample only from so many most likely tokens (0 or -1: all).
        max_tokens: the most output tokens (None: as many as the model and the KV cache take).
        seed: makes a sampled output repeatable, whatever else is in the batch (None: random).
        stop: texts that end the output; they are not part of it.
        ignore_eos: go on after the model's end-of-sequence token.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int | None = 16
    seed: int | None = None
    stop: tuple[str, ...] | list[str] | str | None = field(default=())
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        """Raises InputError for a value out of range."""
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop or ()
        if not isinstance(stop, tuple | list):
            raise InputError(f"stop is {stop!r}; it must be a text or a list of texts")
        object.__setattr__(self, "stop", tuple(stop))
        if not 0.0 <= number("temperature", self.temperature) < float("inf"):
            raise InputError(f"temperature is {self.temperature}; it must be 0 or above")
        if not 0.0 < number("top_p", self.top_p) <= 1.0:
            raise InputError(f"top_p is {self.top_p}; it must be above 0 and at most 1")
        if whole_number("top_k", self.top_k, -(1 << 53)) < -1:
            raise InputError(f"top_k is {self.top_k}; it must be positive, or 0 for no limit")
        if self.max_tokens is not None:
            whole_number("max_tokens", self.max_tokens)
        if self.seed is not None:
            whole_number("seed", self.seed, 0, (1 << 64) - 1)
        if any(not text("stop", word) for word in stop):
            raise InputError("stop holds an empty text; it would end every output at once")

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always picked."""
        return self.temperature < _COLD or self.top_k == 1
