"""A vLLM engine in this process whose policy can be changed between runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from phasegate.errors import ModelError
from phasegate.policy.base import Policy
from phasegate.scheduler.limits import Limits
from phasegate.vllm.gate import Gate
from phasegate.vllm.view import View


class VllmEngine:
    """One model in vLLM, synchronous scheduling, no prefix caching: iterations are what is asked.

    Attributes:
        limits: slots, token budget and KV capacity as vLLM reports them.
        longest: positions of a request, prompt and output together.
        vocabulary: number of token ids.
        model, device: names.
    """

    def __init__(self, model: str, slots: int, token_budget: int, **engine_args: Any) -> None:
        """Load the model.

        Args:
            model: name or folder, as for `vllm serve`.
            slots: `max_num_seqs`.
            token_budget: `max_num_batched_tokens`.
            engine_args: any others of vLLM's `LLM`.

        Raises:
            ModelError: vLLM is not installed, cannot load the model or does not know an argument,
                or would run as stock whatever the policy.
        """
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")  # stdout is for results
        try:
            import vllm
        except ImportError as error:
            raise ModelError(f"vLLM cannot be imported ({error}); pip install vllm") from None
        if model.startswith((".", "/", "~")) and not Path(model).expanduser().is_dir():
            raise ModelError(f"model {model}: there is no such folder")
        settings = {"async_scheduling": False, "enable_prefix_caching": False, **engine_args}
        try:
            llm = vllm.LLM(
                model=model,
                max_num_seqs=slots,
                max_num_batched_tokens=token_budget,
                scheduler_cls="phasegate.vllm.Scheduler",
                disable_log_stats=True,
                **settings,
            )
        except (OSError, ValueError, TypeError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:300]
            raise ModelError(f"vLLM cannot start with {model}: {reason}") from error
        self._engine = llm.llm_engine
        self.scheduler = self._engine.engine_core.engine_core.scheduler
        if getattr(self.scheduler, "_phasegate", None) is None:
            raise ModelError(f"{model}: phasegate does not gate this engine; the log says why")
        view = View(self.scheduler)
        self.limits = Limits(view.kv_capacity, slots, token_budget, max(round(view.page), 1))
        config = self._engine.vllm_config
        self.longest = int(config.model_config.max_model_len)
        self.vocabulary = int(config.model_config.get_vocab_size())
        self.model = str(config.model_config.model)
        self.device = str(vllm.platforms.current_platform.get_device_name())

    def use(self, policy: Policy | None) -> None:
        """Schedule by this policy from now on; None: as stock vLLM."""
        gate = None if policy is None else Gate(self.scheduler, View(self.scheduler), policy)
        self.scheduler._phasegate = gate

    def add(self, name: str, prompt: list[int], max_tokens: int) -> None:
        """Queue a greedy request that generates exactly `max_tokens` tokens."""
        from vllm import SamplingParams

        params = SamplingParams(
            temperature=0.0, max_tokens=max_tokens, ignore_eos=True, detokenize=False
        )
        self._engine.add_request(name, {"prompt_token_ids": prompt}, params)

    def abort(self, names: list[str]) -> None:
        """Drop requests."""
        self._engine.abort_request(names)

    def step(self) -> list[Any]:
        """One iteration; returns vLLM's outputs, of requests with new tokens."""
        return list(self._engine.step())

    @property
    def busy(self) -> bool:
        """Whether requests are unfinished."""
        return bool(self._engine.has_unfinished_requests())
