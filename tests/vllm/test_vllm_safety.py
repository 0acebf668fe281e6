"""The gate must never be the reason a server misbehaves."""

from __future__ import annotations

import inspect
import logging
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm.v1.request", reason="vLLM is not installed")

from vllm_harness import (
    Loop,
    Worker,
    expected,
    install,
    make_request,
    make_scheduler,
    serve,
    traffic,
)

from phasegate.errors import InputError
from phasegate.policy.base import UNLIMITED, Decision, Plan, Snapshot, StepReport
from phasegate.vllm import scheduler as plugin
from phasegate.vllm.settings import load_settings
from phasegate.vllm.support import changed_internals, unknown_version


class Log(logging.Handler):
    """What the plug-in logged: (level, message)."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((record.levelname, record.getMessage()))

    def says(self, level: str, text: str) -> bool:
        """Whether there is exactly one line of this level, and it holds the text."""
        found = [message for found, message in self.lines if found == level]
        return len(found) == 1 and text in found[0]


@pytest.fixture
def log() -> Iterator[Log]:
    logger, handler = logging.getLogger("vllm.phasegate"), Log()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)


class Scripted:
    """A policy that answers with one plan, or raises from a given call on."""

    spec = "scripted"
    decision = Decision("scripted", None, 16)

    def __init__(self, plan: Plan, fail_at: int = UNLIMITED) -> None:
        self._plan, self._fail_at = plan, fail_at
        self.calls = 0

    def plan(self, now: Snapshot) -> Plan:
        self.calls += 1
        if self.calls >= self._fail_at:
            raise ZeroDivisionError("planted")
        return self._plan

    def observe(self, step: StepReport) -> None:
        pass


def check_outputs(loop: Loop, requests: list[tuple[list[int], int]]) -> None:
    assert loop.outputs == {str(i): expected(*request) for i, request in enumerate(requests)}


@pytest.mark.parametrize("ahead", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("fail_at", [1, 7, 40])
def test_a_policy_that_raises_opens_the_gate_for_good(
    tiny: Path, log: Log, fail_at: int, ahead: bool
) -> None:
    scheduler = make_scheduler(tiny, asynchronous=ahead, blocks=60)
    gate = install(scheduler, "exclusive:k=4")
    inner = gate.policy
    calls = 0

    def plan(now: Snapshot) -> Plan:
        nonlocal calls
        calls += 1
        if calls >= fail_at:
            raise ZeroDivisionError("planted")
        return type(inner).plan(inner, now)

    inner.plan = plan
    requests = traffic(seed=11)
    check_outputs(serve(scheduler, requests, ahead), requests)
    assert isinstance(gate.failed, ZeroDivisionError)
    assert log.says("ERROR", "stock vLLM from here on")
    assert getattr(scheduler, gate.view.cap) == scheduler.max_num_running_reqs == 16


@pytest.mark.parametrize(
    "plan",
    [
        Plan(decode=False, admit=0, prefill_tokens=0, capacity=16),
        Plan(decode=False, admit=16, prefill_tokens=256, capacity=16),
        Plan(decode=True, admit=0, prefill_tokens=0, capacity=16),
        Plan(decode=True, admit=1, prefill_tokens=1, capacity=1, chunk=1),
        Plan(decode=True, admit=16, prefill_tokens=64, capacity=16, kv_reserve=10**9),
        Plan(decode=False, admit=16, prefill_tokens=64, capacity=0),
    ],
    ids=["nothing", "only prefill", "only decode", "one", "reserve", "no capacity"],
)
@pytest.mark.parametrize("ahead", [False, True], ids=["sync", "async"])
def test_no_plan_can_stall_the_engine(tiny: Path, plan: Plan, ahead: bool) -> None:
    scheduler = make_scheduler(tiny, asynchronous=ahead)
    gate = install(scheduler, "mixed")
    gate.policy = Scripted(plan)
    requests = traffic(seed=12, n=20)
    check_outputs(serve(scheduler, requests, ahead), requests)
    assert gate.failed is None


def test_an_error_of_vllm_itself_comes_through(tiny: Path) -> None:
    scheduler = make_scheduler(tiny)
    gate = install(scheduler, "exclusive:k=4")
    scheduler.add_request(make_request("0", [5] * 40, 5, scheduler))

    def broken(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("vLLM's own")

    scheduler.kv_cache_manager.allocate_slots = broken
    with pytest.raises(RuntimeError, match="vLLM's own"):
        scheduler.schedule()
    assert gate.failed is None
    assert scheduler.max_num_scheduled_tokens == 256


def test_throttled_and_paused_iterations_are_stock(tiny: Path) -> None:
    from vllm.v1.core.sched.interface import PauseState
    from vllm.v1.core.sched.scheduler import Scheduler

    scheduler = make_scheduler(tiny)
    gate = install(scheduler, "mixed")
    gate.policy = Scripted(Plan(True, 0, 0, 16))
    for i in range(3):
        scheduler.add_request(make_request(str(i), [5] * 40, 5, scheduler))
    scheduler.set_pause_state(PauseState.PAUSED_ALL)
    assert scheduler.schedule().total_num_scheduled_tokens == 0
    assert gate.policy.calls == 0
    scheduler.set_pause_state(PauseState.UNPAUSED)
    if "throttle_prefills" in inspect.signature(Scheduler.schedule).parameters:
        assert scheduler.schedule(True).total_num_scheduled_tokens == 120
        assert gate.policy.calls == 0
    scheduler.schedule()
    assert gate.policy.calls == 1


def test_grammar_waits_are_not_counted_as_ready(tiny: Path) -> None:
    from vllm.v1.request import RequestStatus

    scheduler = make_scheduler(tiny)
    gate = install(scheduler, "exclusive:k=1")
    request = make_request("g", [5] * 10, 3, scheduler)
    request.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    request.structured_output_request = type("Compiling", (), {"grammar": None})()
    scheduler.add_request(request)
    assert gate.view.waiting() == 0
    assert list(gate.view.head(5)) == []
    assert scheduler.schedule().total_num_scheduled_tokens == 0
    request.structured_output_request.grammar = object()
    assert gate.view.waiting() == 1
    assert list(gate.view.head(5)) == [10]
    request.structured_output_request = None
    request.status = RequestStatus.WAITING
    assert scheduler.schedule().total_num_scheduled_tokens == 10


def test_more_adapters_than_vllm_can_run_means_stock(tiny: Path) -> None:
    from vllm.lora.request import LoRARequest

    scheduler = make_scheduler(tiny, max_loras=2, slots=8)
    gate = install(scheduler, "exclusive:k=2")
    requests = traffic(seed=13, n=30)
    loop = Loop(scheduler, Worker(random.Random(0)), ahead=False)
    for i, (prompt, output) in enumerate(requests):
        adapter = LoRARequest(f"a{i % 5}", 1 + i % 5, "/nowhere")
        scheduler.add_request(make_request(str(i), prompt, output, scheduler, lora_request=adapter))
    while loop.busy:
        loop.step()
    check_outputs(loop, requests)
    assert gate.failed is None
    assert gate.iterations["mixed"] > 0


# ---------------------------------------------------------------------- at start
def test_kill_switch(tiny: Path, monkeypatch: pytest.MonkeyPatch, log: Log) -> None:
    monkeypatch.setenv("PHASEGATE_VLLM", '{"enabled": false}')
    assert make_scheduler(tiny)._phasegate is None
    assert log.says("INFO", "disabled")


def test_the_default_needs_no_profile(tiny: Path, log: Log) -> None:
    assert make_scheduler(tiny)._phasegate.policy.spec == "auto"
    assert log.says("INFO", "phasegate: auto on vLLM")


def test_settings_from_additional_config_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"phasegate": {"policy": "exclusive:k=3", "profile": "h200/qwen3-8b"}, "other": 1}
    assert load_settings(given).policy == "exclusive:k=3"
    monkeypatch.setenv("PHASEGATE_VLLM", '{"policy": "mixed"}')
    assert load_settings(given).policy == "mixed"
    assert load_settings(given).profile == "h200/qwen3-8b"
    assert load_settings({}).enabled


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"phasegate": {"polcy": "mixed"}}, "unknown field 'polcy'"),
        ({"phasegate": {"enabled": "maybe"}}, "enabled is 'maybe'"),
        ({"phasegate": "mixed"}, "must be an object"),
    ],
)
def test_wrong_settings_are_one_clear_line(config: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        load_settings(config)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ('{"policy": "mixt"}', "did you mean mixed"),
        ('{"policy": "hybrid"}', "give a profile"),
        ('{"policy": "hybrid", "profile": "h201/qwen3-8b"}', "h200/qwen3-8b"),
    ],
)
def test_wrong_settings_stop_the_start(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    monkeypatch.setenv("PHASEGATE_VLLM", text)
    with pytest.raises(InputError, match=message):
        make_scheduler(tiny)


def test_unknown_versions_run_as_stock(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, log: Log
) -> None:
    monkeypatch.setattr(plugin.vllm, "__version__", "0.99.0")
    assert make_scheduler(tiny)._phasegate is None
    assert log.says("ERROR", "0.99.0")
    monkeypatch.setenv("PHASEGATE_VLLM", '{"untested": true, "policy": "mixed"}')
    assert make_scheduler(tiny)._phasegate is not None


@pytest.mark.parametrize("version", ["0.20.2", "0.26.0+cpu", "0.32.1.dev3+gabc"])
def test_known_versions(version: str) -> None:
    assert unknown_version(version) is None


@pytest.mark.parametrize("version", ["0.19.1", "0.33.0", "1.0.0", "dev"])
def test_unknown_versions(version: str) -> None:
    assert version in str(unknown_version(version))


def test_the_canary_names_what_is_gone(tiny: Path) -> None:
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.request import Request

    scheduler = make_scheduler(tiny)
    assert changed_internals(scheduler, Request.__init__, Scheduler.schedule) is None
    del scheduler._pause_state
    problem = changed_internals(scheduler, Request.__init__, Scheduler.schedule)
    assert problem == "Scheduler._pause_state is gone"
    scheduler._pause_state = None
    problem = changed_internals(scheduler, Request.__init__, Scheduler.add_request)
    assert problem == "Scheduler.schedule() does not read running any more"
    problem = changed_internals(scheduler, Scheduler.add_request, Scheduler.schedule)
    assert problem == "Request.num_computed_tokens is gone"


def test_features_nobody_tested_run_as_stock(tiny: Path, log: Log) -> None:
    scheduler = make_scheduler(tiny)
    log.lines.clear()
    scheduler.vllm_config.parallel_config.pipeline_parallel_size = 2
    assert plugin._open_gate(scheduler) is None
    assert log.says("WARNING", "pipeline parallelism")


def test_pooling_models_get_their_own_scheduler(tiny: Path) -> None:
    from vllm.v1.core.sched.scheduler import Scheduler

    config = make_scheduler(tiny).vllm_config
    config.model_config.runner_type = "pooling"
    built: list[Any] = []

    class Stock(Scheduler):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            built.append(kwargs)

    original, plugin.Scheduler = plugin.Scheduler, Stock
    try:
        assert type(plugin.build(vllm_config=config)) is Stock
    finally:
        plugin.Scheduler = original
    assert built == [{"vllm_config": config}]
