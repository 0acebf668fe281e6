"""Laws of prompt and output lengths: a mean in tokens plus a shape.

Every law draws whole numbers >= 1 whose expectation is exactly the mean it was given. Laws with
a density get there in two steps: draw the excess over one token, whose mean is `mean - 1`, and
round it to a neighbour with the probability that keeps the expectation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from phasegate.errors import WorkloadError

Lengths = NDArray[np.int64]

MAX_LENGTH = 100_000_000
"""Longest length accepted anywhere, tokens: a larger number is a typo or a broken file."""


class LengthLaw(Protocol):
    """A law of lengths in tokens."""

    @property
    def mean(self) -> float:
        """Expected length, tokens."""
        ...

    def sample(self, rng: np.random.Generator, n: int) -> Lengths:
        """`n` independent lengths, each a whole number >= 1."""
        ...


@dataclass(frozen=True)
class Fixed:
    """Every length is `mean`, which has to be a whole number."""

    mean: float

    def __post_init__(self) -> None:
        _check_mean(self.mean)
        if self.mean != int(self.mean):
            raise WorkloadError(
                f"a fixed length of {format_number(self.mean)} tokens is not a whole number;"
                " round it or choose another law"
            )

    def sample(self, rng: np.random.Generator, n: int) -> Lengths:
        """See LengthLaw."""
        return np.full(n, int(self.mean), dtype=np.int64)


@dataclass(frozen=True)
class Uniform:
    """Uniform on mean*(1 - halfwidth) .. mean*(1 + halfwidth), kept symmetric and >= 1."""

    mean: float
    halfwidth: float

    def __post_init__(self) -> None:
        _check_mean(self.mean)
        _check_parameter("uniform", "half-width", self.halfwidth, 0.0, 1.0)

    def sample(self, rng: np.random.Generator, n: int) -> Lengths:
        """See LengthLaw."""
        width = min(self.halfwidth * self.mean, self.mean - 1.0)
        return _round(self.mean + width * (2.0 * rng.random(n) - 1.0), rng)


@dataclass(frozen=True)
class Geometric:
    """Geometric on 1, 2, ...: constant hazard p = 1/mean, P(O = t) = p*(1-p)^(t-1)."""

    mean: float

    def __post_init__(self) -> None:
        _check_mean(self.mean)

    def sample(self, rng: np.random.Generator, n: int) -> Lengths:
        """See LengthLaw."""
        return rng.geometric(1.0 / self.mean, n).astype(np.int64)


@dataclass(frozen=True)
class Lognormal:
    """Lognormal with coefficient of variation `cv` = standard deviation / mean."""

    mean: float
    cv: float

    def __post_init__(self) -> None:
        _check_mean(self.mean)
        _check_parameter("lognormal", "CV", self.cv, 0.0, 10.0)
        if self.mean <= 1.0:
            raise WorkloadError("a lognormal length needs a mean above 1 token; use fixed")

    def sample(self, rng: np.random.Generator, n: int) -> Lengths:
        """See LengthLaw."""
        excess = self.mean - 1.0
        variance = math.log1p((self.cv * self.mean / excess) ** 2)
        log_mean = math.log(excess) - variance / 2.0
        return _round(1.0 + rng.lognormal(log_mean, math.sqrt(variance), n), rng)


@dataclass(frozen=True)
class Gamma:
    """Gamma with shape `shape`: 1 is exponential, larger is narrower (CV about shape^-1/2)."""

    mean: float
    shape: float

    def __post_init__(self) -> None:
        _check_mean(self.mean)
        _check_parameter("gamma", "shape", self.shape, 0.001, 1e6)

    def sample(self, rng: np.random.Generator, n: int) -> Lengths:
        """See LengthLaw."""
        return _round(1.0 + rng.gamma(self.shape, (self.mean - 1.0) / self.shape, n), rng)


@dataclass(frozen=True, eq=False)
class Empirical:
    """Draws with replacement from observed lengths.

    Args:
        samples: observed lengths, tokens; whole numbers >= 1, at least one.
    """

    samples: Lengths
    mean: float = field(init=False)

    def __init__(self, samples: ArrayLike) -> None:
        values = np.asarray(samples)
        if values.ndim != 1 or values.size == 0:
            raise WorkloadError("an empirical law needs a list of at least one length")
        if values.dtype.kind not in "iuf" or not np.all(np.isfinite(values)):
            raise WorkloadError("an empirical law needs numbers, each a length in tokens")
        wrong = (values < 1) | (values > MAX_LENGTH) | (values != np.floor(values))
        if wrong.any():
            first = int(np.argmax(wrong))
            raise WorkloadError(
                f"empirical length number {first + 1} is {values[first]}; every length has to be"
                f" a whole number from 1 to {MAX_LENGTH}"
            )
        object.__setattr__(self, "samples", values.astype(np.int64))
        object.__setattr__(self, "mean", float(self.samples.mean()))

    def sample(self, rng: np.random.Generator, n: int) -> Lengths:
        """See LengthLaw."""
        return self.samples[rng.integers(0, self.samples.size, n)]


_Build = Callable[[float, float], LengthLaw]

# name -> (what its parameter is called, or None if it has none; how to build it)
_LAWS: dict[str, tuple[str | None, _Build]] = {
    "fixed": (None, lambda mean, _: Fixed(mean)),
    "uniform": ("HALFWIDTH", Uniform),
    "geometric": (None, lambda mean, _: Geometric(mean)),
    "lognormal": ("CV", Lognormal),
    "gamma": ("SHAPE", Gamma),
}

LAW_FORMS = ", ".join(
    [name + (f":{parameter}" if parameter else "") for name, (parameter, _) in _LAWS.items()]
    + ["empirical:FILE"]
)
"""How the laws are written, for messages and help texts."""


def canonical_law(text: str) -> str:
    """The one way to write the law `text`, e.g. " Uniform:.50" -> "uniform:0.5".

    Raises:
        WorkloadError: unknown law, or a parameter that is missing, superfluous or no number.
    """
    name, colon, argument = (part.strip() for part in text.partition(":"))
    name = name.lower()
    if name == "empirical":
        if not argument:
            raise WorkloadError(f"{text!r} names no file; write empirical:FILE")
        return f"empirical:{argument}"
    if name not in _LAWS:
        raise WorkloadError(f"{text!r} is no length law; known: {LAW_FORMS}")
    parameter, _ = _LAWS[name]
    if parameter is None:
        if colon:
            raise WorkloadError(f"{text!r}: the law {name} takes no parameter; write {name}")
        return name
    try:
        value = float(argument)
    except ValueError:
        raise WorkloadError(
            f"{text!r}: the law {name} needs a number ({parameter}), e.g. {name}:0.5"
        ) from None
    _LAWS[name][1](2.0, value)  # checks the range of the parameter
    return f"{name}:{format_number(value)}"


def parametric_law(text: str, mean: float) -> LengthLaw:
    """The law written as `text` (any but empirical) with the given mean, tokens.

    Raises:
        WorkloadError: the text, its parameter or the mean makes no sense.
    """
    name, _, argument = canonical_law(text).partition(":")
    if name == "empirical":
        raise WorkloadError("an empirical law takes its mean from its samples")
    return _LAWS[name][1](mean, float(argument or "nan"))


def format_number(value: float) -> str:
    """Shortest text that reads back as the same number; whole numbers without ".0"."""
    whole = abs(value) < 1e15 and value == int(value)
    return str(int(value)) if whole else repr(float(value))


def _round(values: NDArray[np.float64], rng: np.random.Generator) -> Lengths:
    """Round up with probability equal to the fraction, so that expectations are kept."""
    return np.minimum(np.floor(values + rng.random(values.size)), MAX_LENGTH).astype(np.int64)


def _check_mean(mean: float) -> None:
    if not 1.0 <= mean <= MAX_LENGTH:
        raise WorkloadError(
            f"a mean length of {format_number(mean)} tokens is outside 1 to {MAX_LENGTH}"
        )


def _check_parameter(law: str, what: str, value: float, low: float, high: float) -> None:
    if not low < value <= high:
        raise WorkloadError(
            f"{law}: the {what} {value} has to be above {format_number(low)} and at most"
            f" {format_number(high)}"
        )
