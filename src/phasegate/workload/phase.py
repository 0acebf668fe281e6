"""One phase of a workload: its keys, their checks and their canonical text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from phasegate.errors import WorkloadError
from phasegate.workload.arrivals import check_rate
from phasegate.workload.lengths import (
    MAX_LENGTH,
    Empirical,
    LengthLaw,
    canonical_law,
    format_number,
    parametric_law,
)
from phasegate.workload.traces import read_lengths

MAX_REQUESTS = 20_000_000
"""Most requests of one run: 40 bytes each in memory before the run begins."""

MAX_PRIORITY = 1_000_000
"""Largest priority, up or down."""


class LongPrompts(NamedTuple):
    """A `share` of the prompts is replaced by long ones, uniform on low..high tokens."""

    share: float
    low: int
    high: int

    def __str__(self) -> str:
        return f"{format_number(self.share)}:{self.low}-{self.high}"


class PriorityClass(NamedTuple):
    """A `share` of the requests has `priority` (smaller is more urgent; the rest has 0)."""

    share: float
    priority: int

    def __str__(self) -> str:
        return f"{format_number(self.share)}:{self.priority}"


def _parse_long(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    share, _, lengths = value.partition(":")
    low, dash, high = lengths.partition("-")
    try:
        return LongPrompts(float(share), int(low), int(high if dash else low))
    except ValueError:
        raise WorkloadError(f"long={value}: write SHARE:LOW-HIGH, e.g. 0.05:16384-32768") from None


def _parse_priority(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        parts = [part.partition(":") for part in value.split("/")]
        return tuple(PriorityClass(float(share), int(number)) for share, _, number in parts)
    except ValueError:
        raise WorkloadError(
            f"priority={value}: write SHARE:PRIORITY, e.g. 0.1:-1 or 0.1:-1/0.2:5"
        ) from None


Tokens = Annotated[float, Field(ge=1, le=MAX_LENGTH)]


class Phase(BaseModel):
    """One phase of a workload; the fields are the keys of the spec string.

    Attributes:
        prompt, output: mean lengths, tokens; None only if the law is empirical.
        prompt_dist, output_dist: length laws, see lengths.LAW_FORMS.
        max_tokens: what the client declares for every request; None: the output length.
        long: a share of long prompts.
        priority: priority classes.
        requests: how many requests the phase sends; None: whatever remains.
        concurrency: closed loop with so many requests in the system, ...
        rate: ... or open loop with so many requests per second (inf: all at once), ...
        burst: ... whose gaps have this coefficient of variation (None: 1, Poisson).

    `Phase.of` turns pydantic's ValidationError into the one line that a person needs.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    prompt: Tokens | None = None
    output: Tokens | None = None
    prompt_dist: str = "fixed"
    output_dist: str = "fixed"
    max_tokens: Annotated[int, Field(ge=1, le=MAX_LENGTH)] | None = None
    long: Annotated[LongPrompts | None, BeforeValidator(_parse_long)] = None
    priority: Annotated[tuple[PriorityClass, ...], BeforeValidator(_parse_priority)] = ()
    requests: Annotated[int, Field(ge=1, le=MAX_REQUESTS)] | None = None
    concurrency: Annotated[int, Field(ge=1, le=MAX_REQUESTS)] | None = None
    rate: Annotated[float, AfterValidator(check_rate)] | None = None
    burst: Annotated[float, Field(ge=0, le=100)] | None = None

    @classmethod
    def of(cls, **values: Any) -> Phase:
        """A phase from fields or from their texts.

        Raises:
            WorkloadError: naming the field, its value and what it has to be.
        """
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise WorkloadError(_explain(error, values)) from None

    def changed(self, **values: Any) -> Phase:
        """The same phase with other values. Raises WorkloadError as `of` does."""
        return Phase.of(**{**dict(self), **values})

    @field_validator("prompt_dist", "output_dist")
    @classmethod
    def _canonical(cls, text: str, info: ValidationInfo) -> str:
        with _naming(info.field_name):
            return canonical_law(text)

    @field_validator("long")
    @classmethod
    def _long_makes_sense(cls, long: LongPrompts | None) -> LongPrompts | None:
        if long is not None:
            if not 0.0 < long.share <= 1.0:
                raise WorkloadError(f"long={long}: the share has to be above 0 and at most 1")
            if not 1 <= long.low <= long.high <= MAX_LENGTH:
                raise WorkloadError(
                    f"long={long}: the lengths have to be LOW-HIGH, from 1 to {MAX_LENGTH}"
                )
        return long

    @field_validator("priority")
    @classmethod
    def _priorities_make_sense(
        cls, classes: tuple[PriorityClass, ...]
    ) -> tuple[PriorityClass, ...]:
        where = f"priority={_join(classes)}"
        shares = [share for share, _ in classes]
        if not all(0.0 < share <= 1.0 for share in shares) or sum(shares) > 1.0 + 1e-9:
            raise WorkloadError(f"{where}: the shares have to be above 0 and at most 1 in all")
        if len({number for _, number in classes}) < len(classes):
            raise WorkloadError(f"{where}: a priority is named twice")
        if any(abs(number) > MAX_PRIORITY for _, number in classes):
            raise WorkloadError(f"{where}: has to be from {-MAX_PRIORITY} to {MAX_PRIORITY}")
        return classes

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for side, mean, law in (
            ("prompt", self.prompt, self.prompt_dist),
            ("output", self.output, self.output_dist),
        ):
            if law.startswith("empirical:"):
                if mean is not None:
                    raise WorkloadError(
                        f"{side}={format_number(mean)} contradicts {side}_dist={law}, which takes"
                        f" the mean from the file; leave out {side}="
                    )
            elif mean is None:
                raise WorkloadError(f"{side}= is missing; give the mean length in tokens")
            else:
                with _naming(f"{side}_dist"):
                    parametric_law(law, mean)
        if self.max_tokens is not None and (self.output or 0) > self.max_tokens:
            raise WorkloadError(
                f"output={format_number(self.output or 0)} is above max_tokens={self.max_tokens};"
                " raise max_tokens or lower output"
            )
        if self.rate is not None and self.concurrency is not None:
            raise WorkloadError(
                f"rate={format_number(self.rate)} (open loop) and concurrency={self.concurrency}"
                " (closed loop) exclude each other; give one"
            )
        if self.burst is not None and self.concurrency is not None:
            raise WorkloadError(
                f"burst={format_number(self.burst)} has no meaning with concurrency="
                f"{self.concurrency}: requests wait for answers; give a rate instead"
            )
        return self

    def law(self, side: Literal["prompt", "output"]) -> LengthLaw:
        """The length law of prompts or outputs; reads the file of an empirical one.

        Raises:
            WorkloadError: that file cannot be read or holds no lengths.
        """
        text: str = getattr(self, f"{side}_dist")
        name, _, path = text.partition(":")
        if name == "empirical":
            return Empirical(read_lengths(path, side))
        return parametric_law(text, getattr(self, side))

    @property
    def label(self) -> str:
        """Mean lengths, e.g. "512/256" or "512+5% long/256"."""
        prompt, output = (
            "empirical" if mean is None else format_number(mean)
            for mean in (self.prompt, self.output)
        )
        long = "" if self.long is None else f"+{100 * self.long.share:g}% long"
        return f"{prompt}{long}/{output}"

    def __str__(self) -> str:
        parts = []
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if value != field.default:
                parts.append(f"{name}={_join(value) if name == 'priority' else value_text(value)}")
        return ",".join(parts)


def _join(classes: tuple[PriorityClass, ...]) -> str:
    return "/".join(map(str, classes))


def value_text(value: object) -> str:
    """A value as the spec string has it."""
    return format_number(value) if isinstance(value, float) else str(value)


@contextmanager
def _naming(field: str | None) -> Iterator[None]:
    """Put the name of a field in front of the message of a WorkloadError."""
    try:
        yield
    except WorkloadError as error:
        raise WorkloadError(f"{field}: {error}") from None


def _explain(error: ValidationError, values: dict[str, Any]) -> str:
    """The first complaint of pydantic as "key=value: what is wrong"."""
    first = error.errors()[0]
    key = str(first["loc"][0])
    limits = first.get("ctx", {})
    reasons = {
        "int_parsing": "has to be a whole number",
        "int_from_float": "has to be a whole number",
        "float_parsing": "has to be a number",
        "greater_than": "has to be above {gt:g}",
        "greater_than_equal": "has to be at least {ge:g}",
        "less_than_equal": "has to be at most {le:.0f}",
    }
    reason = reasons.get(first["type"], first["msg"].lower()).format(**limits)
    value = str(values.get(key))
    if value.lower() == "nan":
        reason = reasons["float_parsing"]
    return f"{key}={value[:60]}: {reason}"
