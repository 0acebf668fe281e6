"""One generation: what the runner keeps in a request's `payload`."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection

from transformers import PreTrainedTokenizerBase

from phasegate.model.params import SamplingParams
from phasegate.model.text import Detokenizer, StopText, decode

OnText = Callable[[str, int], None]
"""Called in order with each new piece of output text and the tokens it took (piece, tokens)."""


class Generation:
    """Prompt, parameters and output of one request.

    It survives preemption: the output so far is recomputed as part of the prompt.

    Attributes:
        prompt: token ids.
        params: how to sample and when to stop.
        output: token ids so far; the end-of-sequence token is one of them.
        text: output text so far, without stop text; complete once `finish_reason` is set.
            Empty if there is no tokenizer, and until the end if nobody watches it.
        finish_reason: "stop" (end of sequence or stop text), "length", or "" while running.
        seed: what sampling draws from; the parameters' seed or a random one.
    """

    __slots__ = (
        "_detokenizer",
        "_on_text",
        "_pieces",
        "_stop_text",
        "_tokenizer",
        "_tokens_told",
        "finish_reason",
        "output",
        "params",
        "prompt",
        "seed",
    )

    def __init__(
        self,
        prompt: list[int],
        params: SamplingParams,
        tokenizer: PreTrainedTokenizerBase | None = None,
        on_text: OnText | None = None,
    ) -> None:
        self.prompt = prompt
        self.params = params
        self.output: list[int] = []
        self.finish_reason = ""
        self.seed = secrets.randbits(64) if params.seed is None else params.seed
        self._tokenizer = tokenizer
        # Text piece by piece only where somebody looks at the pieces.
        watched = tokenizer is not None and (on_text is not None or bool(params.stop))
        self._detokenizer = Detokenizer(tokenizer) if tokenizer and watched else None
        self._stop_text = StopText(params.stop or ())
        self._on_text = on_text
        self._pieces: list[str] = []
        self._tokens_told = 0

    @property
    def text(self) -> str:
        """Output text so far."""
        return "".join(self._pieces)

    def tokens(self, start: int, length: int) -> list[int]:
        """Ids [start, start + length) of prompt and output."""
        n = len(self.prompt)
        if start + length <= n:
            return self.prompt[start : start + length]
        return (self.prompt[start:] + self.output[max(0, start - n) :])[:length]

    def add(self, token: int, eos: Collection[int], max_tokens: int) -> bool:
        """Take the next output token; True if it is the last one."""
        self.output.append(token)
        if token in eos and not self.params.ignore_eos:
            self.finish_reason = "stop"
        elif self._detokenizer is not None:
            self._show(self._stop_text.add(self._detokenizer.add(token)))
            if self._stop_text.found:
                self.finish_reason = "stop"
        if not self.finish_reason and len(self.output) >= max_tokens:
            self.finish_reason = "length"
        if not self.finish_reason:
            return False
        self._finish()
        return True

    def _finish(self) -> None:
        if self._detokenizer is not None:
            if not self._stop_text.found:
                rest = self._stop_text.add(self._detokenizer.finish())
                self._show(rest if self._stop_text.found else rest + self._stop_text.finish())
        elif self._tokenizer is not None:
            self._show(decode(self._tokenizer, self.output))

    def _show(self, text: str) -> None:
        if not text:
            return
        self._pieces.append(text)
        if self._on_text is not None:
            self._on_text(text, len(self.output) - self._tokens_told)
            self._tokens_told = len(self.output)
