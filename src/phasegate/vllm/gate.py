"""The phase gate: a `Plan` becomes a cap, marks and budgets for one call of `schedule()`."""

from __future__ import annotations

import functools
import logging
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from itertools import chain
from time import perf_counter
from typing import Any

from phasegate.policy.base import UNLIMITED, Finished, Plan, Policy, Started, StepReport
from phasegate.vllm.hiding import MarkHiding, SwapHiding
from phasegate.vllm.learned import Learned
from phasegate.vllm.view import View

logger = logging.getLogger("vllm.phasegate")

SWITCH_CHECK = 16
"""Reports between two looks at whether the policy changed its mode."""
LONGEST = 64
"""Iterations that one plan stands for at most, and that are reported together."""
_KINDS = ("empty", "prefill", "decode", "mixed")
_COMPLETE = ("FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED", "FINISHED_REPETITION")


def guarded(part: Callable[..., None]) -> Callable[..., None]:
    """An exception of ours never reaches the engine: from then on vLLM runs as it is."""

    @functools.wraps(part)
    def call(gate: Gate, *args: Any) -> None:
        if gate.failed is None:
            try:
                part(gate, *args)
            except Exception as error:
                gate.failed = error
                gate.restore()
                gate.hiding.show()
                logger.exception("phasegate failed in %s: stock vLLM from here on", part.__name__)
                if gate.publish is not None:
                    gate.publish(gate)

    return call


class Gate:
    """Stands between one scheduler of vLLM and one policy.

    Attributes:
        failed: the exception after which this gate stays open, None while all is well.
        mode, modes: the policy's mode as of late, and all that there were.
        iterations, seconds: how many there were of each kind, and how long they took.
        counts: switches of mode, admissions stopped by KV, preemptions.
        learned: what the policy knows by now.
        publish: called with the gate after every report, for metrics; None: nobody asks.
    """

    def __init__(
        self,
        scheduler: Any,
        view: View,
        policy: Policy,
        learned: Learned | None = None,
        publish: Callable[[Gate], None] | None = None,
    ) -> None:
        self.policy, self.view, self.publish = policy, view, publish
        self.learned = learned
        self.failed: Exception | None = None
        self.mode = policy.decision.mode
        self.modes = {self.mode}
        self.iterations: Counter[str] = Counter()
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.counts: Counter[str] = Counter()
        self.hiding = (MarkHiding if hasattr(scheduler, "current_step") else SwapHiding)(scheduler)
        self._s = scheduler
        self._unpaused = type(scheduler._pause_state).UNPAUSED
        self._drafts = getattr(scheduler, "num_spec_tokens", 0)
        self._watermark = hasattr(scheduler.kv_cache_manager, "watermark_blocks")
        self._max_adapters = scheduler.lora_config.max_loras if scheduler.lora_config else 0
        self._adapters: Counter[int] = Counter()
        self._as_stock = policy.spec.startswith("mixed")
        statuses = type(view.running)
        self._complete = tuple(getattr(statuses, n) for n in _COMPLETE if hasattr(statuses, n))
        self._cap: int | None = None  # vLLM's own, while it is lowered
        self._budgets: tuple[int, int, int] | None = None  # vLLM's own, while they are changed
        self._plan: Plan | None = None
        self._again = self._running = 0  # iterations that the plan still stands for, with so many
        self._limit = self._budget = self._empty = 0
        self._open: deque[tuple[Any, ...]] = deque()  # scheduled, output not back yet
        self._pending: StepReport | None = None  # decode-only iterations, not reported yet
        self._durations: list[float] = []  # of those
        self._reports = 0
        self._arrived: list[int] = []
        self._left: list[Finished] = []
        self._started: list[Any] = []
        self._start = self._ended_at = 0.0
        self._idle = True

    # ------------------------------------------------------------------ around schedule()
    @guarded
    def before(self, throttled: bool) -> None:
        """Ask the policy, if its last plan does not stand any more, and set the gate for the next
        iteration."""
        s, view = self._s, self.view
        self._start = now = perf_counter()
        view.step += 1
        free_to_run = not throttled and s._pause_state is self._unpaused
        if self._again > 0 and free_to_run:  # nobody came, nobody left
            plan = self._plan
            if plan is not None and now < plan.review_at and len(s.running) == self._running:
                self._again -= 1
                self._close(self._limit)
                return
        self._again = 0
        self._report()
        self._plan = None
        occupied, decoding = view.look()
        # Stock counts only the adapters it schedules, then asserts the limit over all running.
        too_many = len(self._adapters) > self._max_adapters
        if free_to_run and not too_many and self._empty < 2:
            state = view.snapshot(now, decoding)
            if self._as_stock:
                state.kv_blocked = False  # stock tries the head again in every iteration
            if state.waiting or state.running:
                self._plan = self.policy.plan(state)
        if self._plan is None:
            self.hiding.show()
        else:
            self._set(self._plan, occupied, decoding)

    def _close(self, limit: int) -> None:
        """Let `limit` requests run at most."""
        s, cap = self._s, self.view.cap
        self._cap = getattr(s, cap)
        setattr(s, cap, limit)

    def _set(self, plan: Plan, occupied: int, decoding: int) -> None:
        s, view, hidden = self._s, self.view, 0
        cap = min(getattr(s, view.cap), plan.capacity, occupied + plan.admit)
        tokens = plan.prefill_tokens
        if decoding and not plan.decode:
            hidden = self.hiding.hide_decodes(view.prefilling, self._started)
        else:
            self.hiding.show()
            if decoding and tokens <= 0:
                cap, tokens = 0, UNLIMITED
                if view.prefilling:
                    hidden = self.hiding.hide_once(view.prefilling)
                elif plan.admit <= 0 and view.settled:
                    self._again, self._running = min(plan.repeat, LONGEST) - 1, len(s.running)
            tokens += decoding * (1 + self._drafts)
        self._limit = max(cap, occupied)
        self._close(self._limit - hidden)
        self._budget = s.max_num_scheduled_tokens
        if tokens < UNLIMITED:
            self._set_budgets(plan, tokens)

    def _set_budgets(self, plan: Plan, tokens: int) -> None:
        s, config, kv = self._s, self._s.scheduler_config, self._s.kv_cache_manager
        budget, chunk = s.max_num_scheduled_tokens, config.long_prefill_token_threshold
        watermark = kv.watermark_blocks if self._watermark else 0
        self._budgets = (budget, chunk, watermark)
        # Without chunked prefill, a budget below the length of a prompt would never admit it.
        if tokens < budget and config.enable_chunked_prefill:
            budget = self._budget = s.max_num_scheduled_tokens = max(tokens, 1)
        if plan.chunk < (chunk or budget):
            config.long_prefill_token_threshold = plan.chunk
        if self._watermark and plan.kv_reserve > 0:
            kv.watermark_blocks = max(watermark, round(plan.kv_reserve / self.view.page))

    def restore(self) -> None:
        """Put vLLM's own limits back after the iteration."""
        if self._cap is None:
            return
        s = self._s
        setattr(s, self.view.cap, self._cap)
        self._cap = None
        if self._budgets is not None:
            budget, chunk, watermark = self._budgets
            s.max_num_scheduled_tokens = budget
            s.scheduler_config.long_prefill_token_threshold = chunk
            if self._watermark:
                s.kv_cache_manager.watermark_blocks = watermark
            self._budgets = None
        if isinstance(self.hiding, SwapHiding):
            self.hiding.merge()

    @guarded
    def after(self, output: Any) -> None:
        """Note what was scheduled."""
        s, view, plan = self._s, self.view, self._plan
        new, resumed = output.scheduled_new_reqs, output.scheduled_cached_reqs.resumed_req_ids
        scheduled = output.num_scheduled_tokens
        tokens, prefills, attention = 0, 0, 0.0
        started = self._started = []
        if view.prefilling or new or resumed:
            partial = [request.request_id for request in view.prefilling]
            for name in chain(partial, (data.req_id for data in new), resumed):
                if n := scheduled.get(name, 0):
                    request = s.requests[name]
                    prefills, tokens = prefills + 1, tokens + n
                    attention += n * (request.num_computed_tokens - n / 2)
                    if not request.is_prefill_chunk:
                        started.append(request)
        decodes = len(scheduled) - prefills
        preempted: Sequence[int] = ()
        if gone := output.preempted_req_ids:
            preempted = [hash(name) for name in gone]
            self.hiding.show()
            self._again = 0
        occupied = len(s.running) + s.num_waiting_for_streaming_input
        admitted = len(new) + len(resumed)
        blocked = False
        if plan is not None and plan.admit > 0 and occupied < self._limit:
            left = self._budget - output.total_num_scheduled_tokens
            whole = not s.scheduler_config.enable_chunked_prefill and tokens > 0
            blocked = bool(preempted) or (left > 0 and not whole and view.waiting() > 0)
        context = view.context if decodes else 0
        view.scheduled(decodes, started, preempted, admitted, blocked)
        self._empty = self._empty + 1 if plan is not None and not scheduled else 0
        if self._empty:
            self._again = 0
        self._open.append(
            (output, self._start, tokens, attention, decodes, context, occupied,
             admitted, started, preempted, blocked)
        )  # fmt: skip

    # ------------------------------------------------------------------ what happens in between
    @guarded
    def close(self) -> None:
        """The engine shuts down: report what is pending, keep what was learned."""
        self._report()
        if self.learned is not None:
            self.learned.save()

    @guarded
    def arrive(self, request: Any) -> None:
        """A request is about to join the queue."""
        self._again = 0
        if request.request_id not in self._s.requests:
            self._arrived.append(request.num_prompt_tokens)
            if self._max_adapters and request.lora_request:
                self._adapters[request.lora_request.lora_int_id] += 1

    @guarded
    def leave(self, request: Any) -> None:
        """A request is about to go, done or aborted."""
        self._again = 0
        held, generated = request.num_computed_tokens, request.num_output_tokens
        if held and not request.is_prefill_chunk:
            self.view.context -= held
        if held or generated:
            complete = request.status in self._complete
            prompt = request.num_prompt_tokens
            self._left.append(Finished(hash(request.request_id), prompt, generated, complete))
        if self._max_adapters and request.lora_request:
            self._adapters[request.lora_request.lora_int_id] -= 1
            self._adapters = +self._adapters  # drops what is at zero

    @guarded
    def observe(self, output: Any) -> None:
        """The output of an iteration is back and applied. Decode-only iterations under one plan
        are reported to the policy together, the others one by one."""
        while self._open:
            (of, start, tokens, attention, decodes, context, occupied,
             admitted, started, preempted, blocked) = self._open.popleft()  # fmt: skip
            if of is output:
                break
        else:
            return
        end = perf_counter()
        if not self._idle:  # host work between two iterations belongs to the later one
            start = self._ended_at
        self._ended_at, s = end, self._s
        self._idle = not s.running and not self.view.waiting()
        alone = tokens or admitted or preempted or not decodes
        pending = self._pending
        if not alone and pending is not None and pending.decodes == decodes:
            self._durations.append(end - start)
        else:
            self._report()
            begun = [
                Started(hash(r.request_id), r.num_prompt_tokens, n, r.num_prompt_tokens + n - 1)
                for r in started
                if (n := r.num_output_tokens)
            ]
            durations = self._durations = [end - start]
            self._pending = StepReport(
                start, end, durations, 1, tokens, attention, decodes, context, occupied,
                (), admitted, begun, (), preempted, blocked, 0,
            )  # fmt: skip
        if alone or self._again <= 0 or self._idle:
            self._report()

    def _report(self) -> None:
        """Report what is pending to the policy."""
        report, self._pending = self._pending, None
        if report is None:
            return
        report.end, report.iterations = self._ended_at, len(self._durations)
        report.waiting = self.view.waiting()
        report.arrived, self._arrived = self._arrived, []
        report.finished, self._left = self._left, []
        kind = _KINDS[bool(report.prefill_tokens) + 2 * bool(report.decodes)]
        self.iterations[kind] += report.iterations
        self.seconds[kind] += report.end - report.start
        self.counts["blocked_admissions"] += report.kv_blocked
        self.counts["preemptions"] += len(report.preempted)
        self.policy.observe(report)
        self._reports += 1
        if self._reports % SWITCH_CHECK == 0:
            self._note_mode()
        if self.learned is not None:
            self.learned.observe(report)
        if self.publish is not None:
            self.publish(self)

    def _note_mode(self) -> None:
        mode, k, n = self.policy.decision
        if mode != self.mode:
            note = self._plan.note if self._plan is not None else ""
            logger.info("phasegate: %s -> %s (k=%s N=%s) %s", self.mode, mode, k, n, note)
            self.mode = mode
            self.counts["switches"] += 1
