"""Engines that are not what a policy thinks: noisy, changing, or beyond any cost model."""

from __future__ import annotations

import random

import numpy as np

from phasegate.cost.model import CostModel, InterferenceCost


class Noisy:
    """A cost model whose iterations take a random share more or less (lognormal, mean 1)."""

    def __init__(self, cost: CostModel, sigma: float, seed: int) -> None:
        self._cost, self._sigma = cost, sigma
        self._random = np.random.default_rng(seed)
        self._factors: list[float] = []
        self.alpha_prefill, self.alpha_decode = cost.alpha_prefill, cost.alpha_decode

    def seconds(
        self, prefill_tokens: float, prefill_attention: float, decodes: float, context: float
    ) -> float:
        """See CostModel."""
        if not self._factors:
            draws = self._random.normal(-(self._sigma**2) / 2, self._sigma, 4096)
            self._factors = np.exp(draws).tolist()
        seconds = self._cost.seconds(prefill_tokens, prefill_attention, decodes, context)
        return seconds * self._factors.pop()


class Changing:
    """One engine at first, another one from the given iteration on."""

    def __init__(self, first: CostModel, then: CostModel, iterations: int) -> None:
        self._cost, self._then, self._left = first, then, iterations
        self.alpha_prefill, self.alpha_decode = first.alpha_prefill, first.alpha_decode

    def seconds(
        self, prefill_tokens: float, prefill_attention: float, decodes: float, context: float
    ) -> float:
        """See CostModel."""
        self._left -= 1
        if self._left == 0:
            self._cost = self._then
        return self._cost.seconds(prefill_tokens, prefill_attention, decodes, context)


class Sluggish:
    """After each run of prefill-only iterations, `length` decodes take `extra` seconds more
    altogether: something that a cost per iteration cannot express."""

    def __init__(self, cost: CostModel, extra: float, length: int) -> None:
        self._cost, self._each, self._length = cost, extra / length, length
        self._left = 0
        self.alpha_prefill, self.alpha_decode = cost.alpha_prefill, cost.alpha_decode

    def seconds(
        self, prefill_tokens: float, prefill_attention: float, decodes: float, context: float
    ) -> float:
        """See CostModel."""
        seconds = self._cost.seconds(prefill_tokens, prefill_attention, decodes, context)
        if prefill_tokens and not decodes:
            self._left = self._length
        elif decodes and self._left:
            self._left -= 1
            seconds += self._each
        return seconds


class Grudging:
    """Everything that decodes takes `share` longer for `length` iterations after a prefill-only
    one. A single look at mixing does not show how fast it would be to mix all the time."""

    def __init__(self, cost: CostModel, share: float, length: int) -> None:
        self._cost, self._share, self._length = cost, share, length
        self._left = 0
        self.alpha_prefill, self.alpha_decode = cost.alpha_prefill, cost.alpha_decode

    def seconds(
        self, prefill_tokens: float, prefill_attention: float, decodes: float, context: float
    ) -> float:
        """See CostModel."""
        seconds = self._cost.seconds(prefill_tokens, prefill_attention, decodes, context)
        if prefill_tokens and not decodes:
            self._left = self._length
        elif self._left:
            self._left -= 1
            seconds *= 1.0 + self._share
        return seconds


def wrong_prior(cost: InterferenceCost, seed: int) -> InterferenceCost:
    """The same constants, each wrong by a factor of 0.2 to 5 (log-uniform)."""
    rng = random.Random(seed)

    def wrong(value: float) -> float:
        return value * 5.0 ** rng.uniform(-1.0, 1.0)

    return InterferenceCost(
        alpha_p=wrong(cost.alpha_p),
        alpha_d=wrong(cost.alpha_d),
        beta_p=wrong(cost.beta_p),
        b_d=wrong(cost.b_d),
        k_d=wrong(cost.k_d),
        kappa=max(1.0, wrong(cost.kappa)),
    )
