"""Serve prompts on a runner with the real engine loop, and return what came out."""

from __future__ import annotations

import random
from collections.abc import Sequence

from phasegate.cost.model import InterferenceCost
from phasegate.engine.clock import WallClock
from phasegate.engine.loop import Engine
from phasegate.model.generation import Generation
from phasegate.model.params import SamplingParams
from phasegate.model.runner import TorchRunner
from phasegate.policy.base import Decision, Plan, Policy, Snapshot, StepReport
from phasegate.policy.spec import build_policy
from phasegate.scheduler.limits import Limits
from phasegate.scheduler.request import Request
from phasegate.scheduler.scheduler import Scheduler

COST = InterferenceCost(
    alpha_p=2e-3, alpha_d=2e-3, beta_p=1e-4, b_d=1e-4, k_d=1e-7, kappa=1.2, host=1e-4
)


class Erratic:
    """A policy that decides by dice: any slice, any mix, at any time."""

    spec = "erratic"
    decision = Decision("erratic", None, 32)

    def __init__(self, seed: int, slots: int) -> None:
        self._dice = random.Random(seed)
        self._slots = slots

    def plan(self, now: Snapshot) -> Plan:
        dice = self._dice
        return Plan(
            decode=dice.random() < 0.7,
            admit=dice.randint(0, 4),
            prefill_tokens=dice.choice((0, 1, 7, 40, 200)),
            chunk=dice.choice((1, 3, 16, 1000)),
            capacity=self._slots,
        )

    def observe(self, step: StepReport) -> None:
        pass


def limits_of(runner: TorchRunner, slots: int = 32, token_budget: int = 256) -> Limits:
    return Limits(runner.kv_tokens, slots=slots, token_budget=token_budget, page=runner.page)


def serve(
    runner: TorchRunner,
    prompts: Sequence[list[int]],
    params: Sequence[SamplingParams] | SamplingParams,
    policy: Policy | str,
    slots: int = 32,
    token_budget: int = 256,
) -> tuple[list[Generation], Engine]:
    """All prompts at once; returns their generations in order, and the engine."""
    limits = limits_of(runner, slots, token_budget)
    if isinstance(policy, str):
        policy = build_policy(policy, COST, limits)
    if isinstance(params, SamplingParams):
        params = [params] * len(prompts)
    engine = Engine(policy, Scheduler(limits), runner, WallClock())
    generations = []
    for i, (prompt, p) in enumerate(zip(prompts, params, strict=True)):
        generations.append(Generation(prompt, p, runner.loaded.tokenizer))
        assert engine.submit(Request(i, len(prompt), p.max_tokens, payload=generations[-1]))
    while engine.step():
        check_regions(engine, runner)
    assert len(runner.arena) == 0
    return generations, engine


def check_regions(engine: Engine, runner: TorchRunner) -> None:
    """I2: the arena holds exactly the pages that the scheduler counts."""
    running = {**engine.scheduler.prefilling, **engine.scheduler.decoding}
    owners = {owner for owner, _, _ in runner.arena.regions()}
    assert owners <= running.keys()
    assert runner.arena.used <= engine.scheduler.kv.used_pages * runner.page
