"""Serving a workload by a running server: every request is timed and accounted for."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
from collections.abc import Callable
from itertools import pairwise
from time import perf_counter
from typing import Any

import numpy as np

from phasegate.engine.record import RunRecord
from phasegate.engine.timed import TimedRecord
from phasegate.errors import InputError
from phasegate.remote.http import Address, ServerError
from phasegate.scheduler.request import Request
from phasegate.workload.source import Source

FINISHED, ABORTED, REJECTED = 0, 1, 2
"""How a request ended, as in `RunRecord.requests["status"]`."""

_TOKENS = (3, 500)  # prompts are drawn from ids that every vocabulary has
_PATH = "/v1/completions"


class Server:
    """A server that was found to answer.

    Attributes:
        url: its address; model: the name of the model that it is asked for.
        longest: the most tokens of prompt and output together, None if it does not say.
        problem: why the first request that did not finish did not; "" if all did.
    """

    def __init__(self, url: str, model: str | None = None) -> None:
        """Connect, find out the model, and let it generate two tokens.

        Raises InputError if nothing answers, or it has no such model, or it cannot do what a
        measurement needs: stream completions of a prompt of token ids.
        """
        self.url, self.problem = url, ""
        self._address = Address(url, os.environ.get("OPENAI_API_KEY"))
        asyncio.run(self._check(model))

    async def _check(self, model: str | None) -> None:
        try:
            listed = await self._address.get("/v1/models")
            models = {str(entry["id"]): entry.get("max_model_len") for entry in listed["data"]}
            if not models:
                raise InputError(f"{self.url} serves no model")
            self.model = next(iter(models)) if model is None else model
            if self.model not in models:
                raise InputError(
                    f"--model {model}: {self.url} has no such model, but {', '.join(models)}"
                )
            self.longest: int | None = models[self.model]
            await self.stream([5, 6, 7], 2, lambda: None)
        except (ServerError, TimeoutError) as error:
            reason = str(error) or "no answer"
            raise InputError(f"{self.url}: {reason}; is it an OpenAI-compatible server?") from None
        except (TypeError, KeyError):
            raise InputError(f"{self.url}: /v1/models lists no models as OpenAI's does") from None
        except OSError as error:
            reason = error.strerror or str(error)
            raise InputError(
                f"{self.url}: cannot connect ({reason}); start the server, or mend the address"
            ) from None

    def _body(self, prompt: list[int], max_tokens: int) -> dict[str, Any]:
        return {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0.0,
            "ignore_eos": True,  # vLLM and SGLang; others end when they like
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    def run(
        self,
        source: Source,
        *,
        name: str,
        seed: int = 0,
        progress: Callable[[int], None] | None = None,
    ) -> RunRecord:
        """Send all requests of `source`, in real time; returns what a client sees.

        TTFT counts from when a request was due, so a client that lags makes no server look
        quick. A request that was refused counts as rejected, one whose stream broke as aborted.

        Args:
            source: where requests come from; their token ids are drawn from `seed`.
            name: stands in the record where else the policy does.
            seed: of the token ids.
            progress: called with the number of requests that ended since the last call.
        """
        return asyncio.run(_Run(self, seed, progress).serve(source, name))

    async def stream(self, prompt: list[int], tokens: int, arrived: Callable[[], None]) -> int:
        """Generate `tokens` tokens; `arrived` is called for each piece of text that comes (a token,
        as a rule). Returns how many tokens the server says they were.

        Raises ServerError, OSError, TimeoutError.
        """
        count, told, ended = 0, None, False
        body = self._body(prompt, tokens)
        async with contextlib.aclosing(self._address.events(_PATH, body)) as events:
            async for event in events:
                if error := event.get("error"):
                    words = error.get("message") if isinstance(error, dict) else error
                    raise ServerError(0, str(words))
                if event.get("usage"):
                    told = int(event["usage"]["completion_tokens"])
                for choice in event.get("choices") or ():
                    if choice.get("text") or not choice.get("finish_reason"):
                        count += 1
                        arrived()
                    ended = ended or choice.get("finish_reason") is not None
        if not ended:
            raise ServerError(0, "the stream ended without a reason")
        return count if told is None else told


class _Run:
    """One workload on its way."""

    def __init__(self, server: Server, seed: int, progress: Callable[[int], None] | None) -> None:
        self._server, self._seed, self._progress = server, seed, progress
        self._began = perf_counter()
        self._ended = asyncio.Event()
        self._rows: list[tuple[float, ...]] = []
        self._gaps: list[list[float]] = []

    def _clock(self) -> float:
        return perf_counter() - self._began

    async def serve(self, source: Source, name: str) -> RunRecord:
        """Send requests as the source has them, until all have ended."""
        submitted = 0
        async with asyncio.TaskGroup() as group:
            while True:
                for request in source.take(self._clock()):
                    group.create_task(self._one(request, source))
                    submitted += 1
                due = source.next_arrival()
                if math.isfinite(due):
                    wait = max(0.0, due - self._clock())
                elif submitted > len(self._rows):
                    wait = None
                else:
                    break
                self._ended.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._ended.wait(), wait)
        return TimedRecord(
            self._gaps,
            self._rows,
            None,
            policy=name,
            profile="",
            workload=source.label,
            kv_capacity=0,
            slots=0,
            submitted=submitted,
            duration=self._clock(),
            decisions=[],
        )

    async def _one(self, request: Request, source: Source) -> None:
        output = request.output if request.output is not None else request.max_tokens
        draw = np.random.default_rng((self._seed, request.id))
        prompt = draw.integers(*_TOKENS, request.prompt).tolist()
        times: list[float] = []
        told, status = 0, FINISHED
        try:
            told = await self._server.stream(prompt, output, lambda: times.append(self._clock()))
        except (ServerError, OSError, TimeoutError) as error:
            status = REJECTED if getattr(error, "status", 0) else ABORTED
            self._server.problem = self._server.problem or str(error) or "no answer"
        now = self._clock()
        end = times[-1] if times and status == FINISHED else now
        first = times[0] if times else math.nan
        tokens = max(told, len(times))
        row = (request.id, request.arrival, math.nan, first, end, request.prompt, tokens)
        self._rows.append((*row, request.priority, 0, 0, status))
        self._gaps.append([b - a for a, b in pairwise(times)])
        source.finished(1, now)
        if self._progress is not None:
            self._progress(1)
        self._ended.set()
