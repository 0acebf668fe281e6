"""The phase gate: a `Plan` becomes a cap, marks and budgets around one call of stock `schedule()`."""

from __future__ import annotations

import functools
import logging
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from time import perf_counter
from typing import Any

from phasegate.policy.base import Finished, Plan, Policy, Started, StepReport
from phasegate.vllm.hiding import MarkHiding, SwapHiding
from phasegate.vllm.support import cap_attribute
from phasegate.vllm.view import View

logger = logging.getLogger("vllm.phasegate")


def guarded(part: Callable[..., None]) -> Callable[..., None]:
    """An exception of ours never reaches the engine: from then on vLLM runs as it is."""

    @functools.wraps(part)
    def call(gate: Gate, *args: Any) -> None:
        if gate.failed is None:
            try:
                part(gate, *args)
            except Exception as error:
                gate.failed = error
                gate.let_through()
                logger.exception("phasegate failed in %s: stock vLLM from here on", part.__name__)

    return call


@dataclass(slots=True)
class Iteration:
    """What was scheduled, kept until its output is back; fields as in `StepReport`."""

    output: Any
    scheduled_at: float
    prefill_tokens: int
    attention: float
    decodes: int
    context: int
    slots: int
    admitted: int
    started: list[Any]
    preempted: list[int]
    blocked: bool


class Gate:
    """Stands between one scheduler of vLLM and one policy.

    Attributes:
        failed: the exception after which this gate stays open, None while all is well.
        counts: iterations by kind, overridden plans, admissions stopped by KV, preemptions.
    """

    def __init__(self, scheduler: Any, view: View, policy: Policy) -> None:
        self.policy = policy
        self.failed: Exception | None = None
        self.counts: Counter[str] = Counter()
        self._s = scheduler
        self._cap = cap_attribute(scheduler)
        self._view = view
        self._hiding = (MarkHiding if hasattr(scheduler, "current_step") else SwapHiding)(scheduler)
        self._max_adapters = scheduler.lora_config.max_loras if scheduler.lora_config else 0
        self._adapters: Counter[int] = Counter()
        self._saved: tuple[int, int, int, int] | None = None
        self._plan: Plan | None = None
        self._limit = self._budget = self._empty = 0
        self._mode = policy.decision.mode
        self._iterations: deque[Iteration] = deque()
        self._arrived: list[int] = []
        self._left: list[Finished] = []
        self._started: list[Any] = []
        self._scheduled_at = self._ended_at = 0.0
        self._idle = True

    # ------------------------------------------------------------------ around schedule()
    @guarded
    def before(self, throttled: bool) -> None:
        """Ask the policy and set the gate for the next iteration."""
        self._scheduled_at = perf_counter()
        occupied, decoding = self._view.look()
        # Stock counts only the adapters it schedules, then asserts the limit over all running.
        stock = (
            throttled
            or self._empty > 1
            or self._s._pause_state.name != "UNPAUSED"
            or len(self._adapters) > self._max_adapters
        )
        self._plan = None
        if not stock:
            now = self._view.snapshot(self._scheduled_at, decoding)
            if now.kv_blocked and self._mode == "mixed":
                now.kv_blocked = False  # stock tries the head again in every iteration
            if now.waiting or now.running:
                self._plan = self.policy.plan(now)
                self._log_switch(self._plan.note)
        if self._plan is None:
            self._hiding.show()
        else:
            self._set(self._plan, occupied, decoding)

    def _log_switch(self, note: str) -> None:
        decision = self.policy.decision
        if decision.mode != self._mode:
            k = "" if decision.k is None else f" k={decision.k}"
            text = f"phasegate: {self._mode} -> {decision.mode},{k} N={decision.n}"
            logger.info("%s%s", text, f" ({note})" if note else "")
            self._mode = decision.mode
            self.counts["switches"] += 1

    def _set(self, plan: Plan, occupied: int, decoding: int) -> None:
        s, config = self._s, self._s.scheduler_config
        cap, budget = getattr(s, self._cap), s.max_num_scheduled_tokens
        chunk, kv = config.long_prefill_token_threshold, s.kv_cache_manager
        watermark = getattr(kv, "watermark_blocks", 0)
        self._saved = (cap, budget, chunk, watermark)
        cap = min(cap, plan.capacity, occupied + plan.admit)
        tokens, hidden = plan.prefill_tokens, 0
        if decoding and not plan.decode:
            hidden = self._hiding.hide_decodes(self._started)
        else:
            self._hiding.show()
            if decoding and tokens <= 0:
                hidden = self._hiding.hide_once(self._view.prefilling)
                cap, tokens = 0, budget
            tokens += decoding * (1 + getattr(s, "num_spec_tokens", 0))
        self._limit = max(cap, occupied)
        setattr(s, self._cap, self._limit - hidden)
        # Without chunked prefill, a budget below the length of a prompt would never admit it.
        if tokens < budget and config.enable_chunked_prefill:
            s.max_num_scheduled_tokens = max(tokens, min(int(s.block_size), budget))
        self._budget = s.max_num_scheduled_tokens
        if plan.chunk < (chunk or budget):
            config.long_prefill_token_threshold = plan.chunk
        if plan.kv_reserve > 0 and hasattr(kv, "watermark_blocks"):
            kv.watermark_blocks = max(watermark, round(plan.kv_reserve / self._view.page))

    def let_through(self) -> None:
        """Open the gate: vLLM's own limits are back, and nobody is hidden."""
        self._hiding.show()
        self.restore()

    def restore(self) -> None:
        """Put vLLM's own limits back after the iteration."""
        if self._saved is not None:
            s, kv = self._s, self._s.kv_cache_manager
            (cap, s.max_num_scheduled_tokens, chunk, watermark), self._saved = self._saved, None
            setattr(s, self._cap, cap)
            s.scheduler_config.long_prefill_token_threshold = chunk
            if hasattr(kv, "watermark_blocks"):
                kv.watermark_blocks = watermark
            self._hiding.after()

    @guarded
    def after(self, output: Any) -> None:
        """Note what was scheduled."""
        s, view, plan = self._s, self._view, self._plan
        new, resumed = output.scheduled_new_reqs, output.scheduled_cached_reqs.resumed_req_ids
        scheduled = output.num_scheduled_tokens
        tokens = prefills = 0
        attention = 0.0
        started: list[Any] = []
        if view.prefilling or new or resumed:
            partial = [request.request_id for request in view.prefilling]
            for name in chain(partial, (data.req_id for data in new), resumed):
                if n := scheduled.get(name, 0):
                    request = s.requests[name]
                    prefills += 1
                    tokens += n
                    attention += n * (request.num_computed_tokens - n / 2)
                    if not request.is_prefill_chunk:
                        started.append(request)
        decodes = len(scheduled) - prefills
        preempted = [hash(name) for name in output.preempted_req_ids or ()]
        occupied = len(s.running) + s.num_waiting_for_streaming_input
        admitted = len(new) + len(resumed)
        blocked = False
        if plan is not None and plan.admit > 0 and occupied < self._limit:
            left = self._budget - output.total_num_scheduled_tokens
            whole = not s.scheduler_config.enable_chunked_prefill and tokens > 0
            blocked = bool(preempted) or (left > 0 and not whole and view.waiting() > 0)
        if blocked:
            view.block()
        elif admitted:
            view.unblock()
        context, view.context = view.context, view.context + decodes
        if preempted:
            self._hiding.show()
            view.recount()
        for request in started:
            view.context += request.num_computed_tokens
        self._started = started
        self._empty = self._empty + 1 if plan is not None and not scheduled else 0
        self._iterations.append(
            Iteration(
                output,
                self._scheduled_at,
                tokens,
                attention,
                decodes,
                context if decodes else 0,
                occupied,
                admitted,
                started,
                preempted,
                blocked,
            )
        )

    # ------------------------------------------------------------------ what happens in between
    @guarded
    def arrive(self, request: Any) -> None:
        """A request is about to join the queue."""
        if request.request_id not in self._s.requests:
            self._arrived.append(request.num_prompt_tokens)
            if request.lora_request and self._max_adapters:
                self._adapters[request.lora_request.lora_int_id] += 1

    @guarded
    def leave(self, request: Any) -> None:
        """A request is about to go, done or aborted."""
        held, generated = request.num_computed_tokens, request.num_output_tokens
        if held and not request.is_prefill_chunk:
            self._view.context -= held
        if held or generated:
            name, complete = hash(request.request_id), request.status.name in _COMPLETE
            self._left.append(Finished(name, request.num_prompt_tokens, generated, complete))
        if request.lora_request and self._max_adapters:
            self._adapters[request.lora_request.lora_int_id] -= 1
            self._adapters += Counter()  # drops what is at zero

    @guarded
    def observe(self, output: Any) -> None:
        """The output of an iteration is back and applied: report it to the policy."""
        done: Iteration | None = None
        while self._iterations and (done is None or done.output is not output):
            done = self._iterations.popleft()
        if done is None or done.output is not output:
            return
        end, waiting = perf_counter(), self._view.waiting()
        # A busy engine's time between two iterations (host work) belongs to the later one.
        start = done.scheduled_at if self._idle else self._ended_at
        self._ended_at, self._idle = end, not (waiting or self._s.running)
        arrived, self._arrived = self._arrived, []
        left, self._left = self._left, []
        self.counts[_KINDS[done.prefill_tokens > 0, done.decodes > 0]] += 1
        self.counts["blocked_admissions"] += done.blocked
        self.counts["preemptions"] += len(done.preempted)
        self.policy.observe(
            StepReport(
                start,
                end,
                (end - start,),
                1,
                done.prefill_tokens,
                done.attention,
                done.decodes,
                done.context,
                done.slots,
                arrived,
                done.admitted,
                [
                    Started(hash(r.request_id), r.num_prompt_tokens, n, r.num_prompt_tokens + n - 1)
                    for r in done.started
                    if (n := r.num_output_tokens)
                ],
                left,
                done.preempted,
                done.blocked,
                waiting,
            )
        )


_COMPLETE = ("FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED", "FINISHED_REPETITION")
_KINDS = {
    (True, False): "prefill_iterations",
    (False, True): "decode_iterations",
    (True, True): "mixed_iterations",
    (False, False): "empty_iterations",
}
