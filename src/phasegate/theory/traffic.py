"""What the theory needs to know about the traffic, in one small value."""

from __future__ import annotations

from dataclasses import dataclass

from phasegate.errors import InputError
from phasegate.theory.lengths import LengthLaw


@dataclass(frozen=True, slots=True)
class Traffic:
    """Prompt and output lengths, as far as rates and thresholds depend on them.

    Attributes:
        mean_prompt: mu_L, tokens.
        mean_output: mu_O, output tokens per request, the first one included; at least 1.
        mean_context: context of a decoding request at a random moment, tokens
            (`SlotLoad.mean`, or the observed mean of context_tokens/decodes).
        prompt_std: standard deviation of the prompt lengths, tokens.
        law: law of the output lengths, where known.
    """

    mean_prompt: float
    mean_output: float
    mean_context: float
    prompt_std: float = 0.0
    law: LengthLaw | None = None

    def __post_init__(self) -> None:
        if self.mean_prompt <= 0 or self.mean_output < 1 or self.mean_context < 0:
            raise InputError(
                f"traffic: prompt {self.mean_prompt:g}, output {self.mean_output:g} and context "
                f"{self.mean_context:g} must be above 0, at least 1 and not negative"
            )

    @property
    def prompt_attention(self) -> float:
        """Q of one whole prompt, however it is cut: E[L^2]/2, tokens^2."""
        return (self.mean_prompt**2 + self.prompt_std**2) / 2
