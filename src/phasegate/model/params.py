"""What a client asks of one generation."""

from __future__ import annotations

from dataclasses import dataclass, field

from phasegate.errors import InputError


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to pick tokens, and when to stop.

    Attributes:
        temperature: 0 picks the most likely token; higher is more random.
        top_p: sample only from the most likely tokens that hold this share of probability.
        top_k: sample only from so many most likely tokens (0 or -1: all).
        max_tokens: the most output tokens.
        seed: makes a sampled output repeatable, whatever else is in the batch (None: random).
        stop: texts that end the output; they are not part of it.
        ignore_eos: go on after the model's end-of-sequence token.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 16
    seed: int | None = None
    stop: tuple[str, ...] | list[str] | str = field(default=())
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        """Raises InputError for a value out of range."""
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        else:
            object.__setattr__(self, "stop", tuple(self.stop))
        if not 0.0 <= self.temperature < float("inf"):
            raise InputError(f"temperature is {self.temperature}; it must be 0 or above")
        if not 0.0 < self.top_p <= 1.0:
            raise InputError(f"top_p is {self.top_p}; it must be above 0 and at most 1")
        if self.top_k < -1:
            raise InputError(f"top_k is {self.top_k}; it must be positive, or 0 for no limit")
        if self.max_tokens < 1:
            raise InputError(f"max_tokens is {self.max_tokens}; it must be at least 1")
        if self.seed is not None and not 0 <= self.seed < 1 << 64:
            raise InputError(f"seed is {self.seed}; it must be between 0 and 2**64 - 1")
        if any(not text for text in self.stop):
            raise InputError("stop holds an empty text; it would end every output at once")

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always picked."""
        return self.temperature == 0.0 or self.top_k == 1
