"""Token ids to text, as they come: never half a character, never part of a stop text."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

_UNFINISHED = "\ufffd"  # what tokenizers show for bytes that are not a character yet
_WINDOW = 16  # tokens decoded together before the window moves on ...
_OVERLAP = 6  # ... and how many stay in it: more than the bytes of a character


class Detokenizer:
    """Turns the output tokens of one request into text piece by piece.

    The pieces joined are the text of all tokens. A tokenizer's text is not the sum of its tokens'
    texts (spaces, characters made of several byte tokens), so a new token is decoded together
    with a few before it.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []  # the tokens that are decoded together
        self._told = ""  # text of the window that is out

    def add(self, token: int) -> str:
        """The text that this token completes ("" while a character is unfinished)."""
        self._window.append(token)
        text = decode(self._tokenizer, self._window)
        if text.endswith(_UNFINISHED) or len(text) <= len(self._told):
            return ""
        new = text[len(self._told) :]
        self._told = text
        if len(self._window) >= _WINDOW:
            self._window = self._window[-_OVERLAP:]
            self._told = decode(self._tokenizer, self._window)
        return new

    def finish(self) -> str:
        """What is left: an unfinished character that never came to its end."""
        return decode(self._tokenizer, self._window)[len(self._told) :]


def decode(tokenizer: PreTrainedTokenizerBase, tokens: Sequence[int]) -> str:
    """The text of `tokens`, special tokens left out."""
    text = tokenizer.decode(list(tokens), skip_special_tokens=True)
    return text if isinstance(text, str) else "".join(text)


class StopText:
    """Finds the first of several stop texts in a stream, and holds back what may become one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.found = False

    def add(self, text: str) -> str:
        """The text that is safe to show; sets `found` (and drops the rest) at a stop text."""
        if self.found:
            return ""
        self._held += text
        hits = [at for at in (self._held.find(stop) for stop in self._stops) if at >= 0]
        if hits:
            self.found = True
            shown, self._held = self._held[: min(hits)], ""
            return shown
        keep = max((_overlap(self._held, stop) for stop in self._stops), default=0)
        cut = len(self._held) - keep
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown

    def finish(self) -> str:
        """What was held back, at the end of the output."""
        shown, self._held = self._held, ""
        return shown


def _overlap(text: str, stop: str) -> int:
    """Length of the longest proper beginning of `stop` that `text` ends with."""
    for n in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:n]):
            return n
    return 0
