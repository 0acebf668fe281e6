"""Offline generation: prompts in, texts out.

from phasegate.model import LLM, SamplingParams

llm = LLM("demo", policy="hybrid")
for output in llm.generate(["Once upon a time"], SamplingParams(max_tokens=32)):
    print(output.outputs[0].text)
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from phasegate.checks import text, whole_number
from phasegate.cost.model import CostModel, InterferenceCost
from phasegate.cost.profile import Profile, load_profile
from phasegate.engine.clock import WallClock
from phasegate.engine.loop import Engine
from phasegate.errors import InputError, ModelError
from phasegate.model.demo import demo_model
from phasegate.model.generation import Generation
from phasegate.model.loading import load_model
from phasegate.model.measured import measure_costs
from phasegate.model.params import SamplingParams
from phasegate.model.runner import TorchRunner
from phasegate.model.threads import set_threads
from phasegate.policy.spec import build_policy, check_within, parse_spec
from phasegate.scheduler.limits import Limits
from phasegate.scheduler.request import Request
from phasegate.scheduler.scheduler import Scheduler

Prompt = str | Sequence[int]
"""A text, or token ids."""

Message = Mapping[str, str]
"""One turn of a chat: {"role": "user", "content": "..."}."""

_MESSAGES = 'messages are {"role": "user", "content": "a text"}, in a list'

_CALIBRATION_SECONDS = 3.0
_WITHOUT_COST = frozenset({"static", "mixed", "exclusive"})
_NO_COST = InterferenceCost(alpha_p=1e-3, alpha_d=1e-3, beta_p=1e-5, b_d=1e-5, k_d=1e-8)


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """What was generated. `finish_reason` is "stop" or "length"; the end-of-sequence token, if
    there was one, is the last of `token_ids` and not in `text`."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A prompt and its output (`outputs` holds one, in the shape users know from vLLM)."""

    request_id: int
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]


class LLM:
    """A model, a policy and an engine, for batches of prompts.

    Attributes:
        runner: the model behind it.
        limits: slots, token budget and KV cache of the engine.
        tokenizer: None if the model comes without one.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | PreTrainedModel,
        policy: str = "hybrid",
        *,
        device: str = "auto",
        dtype: str = "auto",
        tokenizer: PreTrainedTokenizerBase | None = None,
        slots: int = 32,
        token_budget: int = 2048,
        kv_tokens: int | None = None,
        page: int = 256,
        profile: str | os.PathLike[str] | Profile | None = None,
        threads: int | None = None,
    ) -> None:
        """Load the model.

        Args:
            model: folder, .gguf file, hub id, "demo", or a model loaded already (it is changed:
                its attention is replaced).
            policy: policy spec, see `phasegate policies`.
            device, dtype, tokenizer: see `load_model`.
            slots: the most requests that run at once.
            token_budget: the most tokens in one iteration.
            kv_tokens: KV cache size, tokens; None: by free memory.
            page: KV page, tokens.
            profile: costs that the policy decides by. None: measured for a few seconds at the
                first use, if the policy needs them.
            threads: CPU threads; None: all usable cores.

        Raises InputError (ModelError, PolicyError, ProfileError) with a line that says why.
        """
        parse_spec(text("policy", policy))
        for name, value in (("page", page), ("kv_tokens", kv_tokens), ("threads", threads)):
            if value is not None:
                whole_number(name, value)
        wanted = Limits(kv_tokens or page, slots, token_budget, page)
        check_within(policy, wanted)
        if model is None or model == "":
            raise InputError(f"model is {model!r}; name a folder, a .gguf file, a hub id or demo")
        if isinstance(profile, str | os.PathLike):
            profile = load_profile(os.fspath(profile))
        set_threads(threads)
        source = demo_model() if model == "demo" else model
        loaded = load_model(source, device, dtype, tokenizer)
        self.tokenizer = loaded.tokenizer
        self.runner = TorchRunner(loaded, kv_tokens, page, slots)
        self.limits = Limits(
            kv_capacity=self.runner.kv_tokens, slots=slots, token_budget=token_budget, page=page
        )
        self._policy = policy
        self._cost: CostModel | None = None if profile is None else profile.cost_model()
        self._engine: Engine | None = None
        self._next_id = 0

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = True,
    ) -> list[RequestOutput]:
        """Generate an output for every prompt; they come back in the order of the prompts.

        Args:
            prompts: texts or lists of token ids; also a single one.
            params: for all prompts, or one for each. Default: `SamplingParams()`.
            progress: show a progress bar on stderr, if that is a terminal.

        Raises:
            InputError: a prompt is empty, or there are not as many params as prompts.
            ModelError: a prompt is longer than the model or the KV cache can take.
        """
        several = _several(prompts)
        given = [params] if params is None or isinstance(params, SamplingParams) else params
        if not all(p is None or isinstance(p, SamplingParams) for p in given):
            raise InputError("params holds something else than SamplingParams; give one per prompt")
        if params is None or isinstance(params, SamplingParams):
            params = [params or SamplingParams()] * len(several)
        if len(params) != len(several):
            raise InputError(f"{len(params)} params for {len(several)} prompts; give one for each")
        requests = [
            self._request(i, prompt, p)
            for i, (prompt, p) in enumerate(zip(several, params, strict=True))
        ]
        self._serve(requests, progress)
        return [_output(r, p) for r, p in zip(requests, several, strict=True)]

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = True,
    ) -> list[RequestOutput]:
        """As `generate`, for one conversation or several: the model's chat template makes
        prompts of them. Raises InputError if the model has none."""
        if self.tokenizer is None or not self.tokenizer.chat_template:
            raise InputError(f"{self.runner.loaded.name} has no chat template; use generate()")
        if not isinstance(messages, Sequence) or isinstance(messages, str):
            raise InputError(f"messages is {messages!r}; {_MESSAGES}")
        one = any(isinstance(entry, Mapping) for entry in messages)
        chats = [[_turn(m) for m in chat] for chat in ([messages] if one else messages)]
        prompts = []
        for chat in chats:
            ids = self.tokenizer.apply_chat_template(
                chat, add_generation_prompt=True, tokenize=True, return_dict=False
            )
            prompts.append(list(ids))
        return self.generate(prompts, params, progress=progress)

    # ---------------------------------------------------------------- requests
    def _request(self, index: int, prompt: Prompt, params: SamplingParams) -> Request:
        ids = self._ids(index, prompt, params)
        longest = self.runner.loaded.max_length
        if len(ids) >= longest:
            raise ModelError(
                f"prompt {index} has {len(ids)} tokens, and {self.runner.loaded.name} takes "
                f"{longest} with the output; shorten it"
            )
        most = longest - len(ids)
        if params.max_tokens is None:
            max_tokens = max(1, min(most, self.runner.kv_tokens - len(ids) + 1))
        else:
            max_tokens = min(params.max_tokens, most)
        if len(ids) + max_tokens - 1 > self.runner.kv_tokens:
            raise ModelError(
                f"prompt {index} has {len(ids)} tokens and max_tokens is {max_tokens}, but the KV "
                f"cache holds {self.runner.kv_tokens}; raise kv_tokens or lower max_tokens"
            )
        request = Request(
            self._next_id, len(ids), max_tokens, payload=Generation(ids, params, self.tokenizer)
        )
        self._next_id += 1
        return request

    def _ids(self, index: int, prompt: Prompt, params: SamplingParams) -> list[int]:
        if self.tokenizer is None and (isinstance(prompt, str) or params.stop):
            raise ModelError(
                f"{self.runner.loaded.name} comes without a tokenizer; give token ids, no stop "
                "texts, or a tokenizer"
            )
        if isinstance(prompt, str):
            assert self.tokenizer is not None
            ids = list(self.tokenizer(text(f"prompt {index}", prompt))["input_ids"])
        else:
            if not isinstance(prompt, Iterable) or isinstance(prompt, bytes | Mapping):
                raise InputError(f"prompt {index} is {prompt!r}; it must be a text or token ids")
            ids = [whole_number(f"a token id of prompt {index}", i, 0) for i in prompt]
            size = self.runner.loaded.model.config.get_text_config().vocab_size
            wrong = next((i for i in ids if not 0 <= i < size), None)
            if wrong is not None:
                raise InputError(f"prompt {index} has token id {wrong}; the vocabulary is {size}")
        if not ids:
            raise InputError(f"prompt {index} is empty; it needs at least one token")
        return ids

    # ---------------------------------------------------------------- serving
    def _serve(self, requests: Sequence[Request], progress: bool) -> None:
        console = Console(stderr=True)
        bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f} prompts"),
            TextColumn("{task.fields[rate]:,.0f} output tokens/s"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=console,
            disable=not (progress and console.is_terminal),
        )
        with bar:
            if self._engine is None:
                note = bar.add_task("Measuring this machine", total=None, rate=0.0)
                self._engine = self._start()
                bar.remove_task(note)
            engine = self._engine
            task = bar.add_task("Generating", total=len(requests), rate=0.0)
            tokens, begin = 0, engine.clock.now()

            def ended(request: Request) -> None:
                nonlocal tokens
                tokens += len(request.payload.output)
                seconds = max(engine.clock.now() - begin, 1e-9)
                bar.update(task, advance=1, rate=tokens / seconds)

            engine.on_end = ended
            try:
                for request in requests:
                    request.arrival = engine.clock.now()
                    engine.submit(request)
                while engine.step():
                    pass
            finally:
                for request in requests:  # interrupted: leave nothing behind
                    engine.abort(request.id)

    def _start(self) -> Engine:
        cost = self._cost
        if cost is None and parse_spec(self._policy)[0] in _WITHOUT_COST:
            cost = _NO_COST
        if cost is None:
            try:
                cost = measure_costs(self.runner, self.limits, _CALIBRATION_SECONDS).cost
            except InputError as error:
                raise InputError(
                    f"policy {self._policy} decides by costs, and they cannot be measured here "
                    f"({error}); give a profile, or use policy mixed"
                ) from error
        if isinstance(cost, InterferenceCost):  # a few noisy seconds may find no fixed part
            alphas = {"alpha_p": max(cost.alpha_p, 1e-5), "alpha_d": max(cost.alpha_d, 1e-5)}
            cost = replace(cost, **alphas)
        policy = build_policy(self._policy, cost, self.limits)
        return Engine(policy, Scheduler(self.limits), self.runner, WallClock())


def _turn(message: Any) -> dict[str, str]:
    """A turn of a chat; content in parts, as in the OpenAI API, is put together."""
    content = message.get("content") if isinstance(message, Mapping) else None
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, Mapping)]
        texts = [part for part in parts if isinstance(part, str)]
        if len(texts) == len(content):
            content = "".join(texts)
    if not isinstance(content, str) or not isinstance(message.get("role"), str):
        raise InputError(f"a message is {str(message)[:60]}; {_MESSAGES}")
    return {**message, "content": text("content", content)}


def _several(prompts: Prompt | Sequence[Prompt]) -> Sequence[Prompt]:
    """A list of prompts, also if it is only one."""
    if isinstance(prompts, str):
        return [prompts]
    if not isinstance(prompts, Sequence) or isinstance(prompts, bytes):
        shown = repr(prompts)[:60]
        raise InputError(f"prompts is {shown}; it must be a list of texts or of lists of token ids")
    if prompts and isinstance(prompts[0], int):
        return [prompts]  # type: ignore[list-item]
    return prompts  # type: ignore[return-value]


def _output(request: Request, prompt: Prompt) -> RequestOutput:
    generation: Generation = request.payload
    completion = CompletionOutput(0, generation.text, generation.output, generation.finish_reason)
    text = prompt if isinstance(prompt, str) else None
    return RequestOutput(request.id, text, generation.prompt, [completion])
