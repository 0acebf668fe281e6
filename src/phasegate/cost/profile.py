"""A profile: what a model costs on a device, how much KV cache it has, and how we know.

A profile is a small JSON file (schema 1). `load_profile` takes the name of a preset or a path.
"""

from __future__ import annotations

import difflib
import json
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from phasegate.cost.model import CostModel, InterferenceCost, LinearCost
from phasegate.cost.presets import PRESETS
from phasegate.errors import ProfileError
from phasegate.files import write_atomic

SCHEMA = 1

How = Literal["measured", "fitted to published results", "derived", "assumed"]
"""How the constants came about, from best to worst."""

_Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
_NonNegative = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0)]
_Seconds = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0, le=3600)]
_Slope = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=-3600, le=3600)]
_Text = Annotated[str, Field(min_length=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class InterferenceConstants(_Strict):
    """Constants of `phasegate.cost.model.InterferenceCost` (seconds; THEORY section 1)."""

    kind: Literal["interference"] = "interference"
    alpha_p: _Seconds = Field(description="seconds per iteration without decodes")
    alpha_d: _Seconds = Field(description="seconds per iteration with decodes")
    beta_p: _Seconds = Field(description="seconds per prompt token")
    b_d: _Seconds = Field(description="seconds per decoding request")
    k_d: _Seconds = Field(description="seconds per context token of decoding requests")
    kappa: Annotated[_Number, Field(ge=1, le=1e6)] = Field(
        1.0, description="factor on decode attention in mixed iterations; 1 means no interference"
    )
    beta_q: _Seconds = Field(0.0, description="seconds per token^2 of prefill attention")
    host: _Seconds = Field(0.0, description="seconds between two iterations")

    @model_validator(mode="after")
    def _iterations_take_time(self) -> InterferenceConstants:
        _require_fixed_cost(self.alpha_p, self.alpha_d, self.host)
        return self


class LinearConstants(_Strict):
    """Constants of `phasegate.cost.model.LinearCost` (seconds; arXiv 2606.00516)."""

    kind: Literal["linear"] = "linear"
    alpha_p: _Seconds = Field(description="seconds per prefill-only iteration")
    beta_p: _Seconds = Field(description="seconds per prompt token")
    alpha_d: _Seconds = Field(description="seconds per decode-only iteration")
    beta_d: _Seconds = Field(description="seconds per decoding request")
    a: _Seconds = Field(description="seconds per token of a mixed iteration at r = 0")
    b: _Slope = Field(description="its slope in the decode share r")
    c: _Seconds = Field(0.0, description="its curvature in r; convex")
    alpha_m: _Seconds = Field(0.0, description="seconds per mixed iteration")
    host: _Seconds = Field(0.0, description="seconds between two iterations")

    @model_validator(mode="after")
    def _iterations_take_time(self) -> LinearConstants:
        _require_fixed_cost(self.alpha_p, self.alpha_d, self.host)
        lowest = min(max(-self.b / (2 * self.c), 0.0), 1.0) if self.c else float(self.b < 0)
        if self.a + self.b * lowest + self.c * lowest**2 < 0:
            raise ValueError(
                f"a + b r + c r^2 is negative at r = {lowest:.3g}: raise a, or refit a, b and c"
            )
        return self


def _require_fixed_cost(alpha_p: float, alpha_d: float, host: float) -> None:
    for name, alpha in (("alpha_p", alpha_p), ("alpha_d", alpha_d)):
        if alpha + host <= 0:
            raise ValueError(f"{name} + host is 0, an iteration cannot be free: measure {name}")


class Provenance(_Strict):
    """Where the constants come from."""

    how: How = Field(description="how the constants came about")
    source: _Text = Field(description="paper, measurement or command they come from")
    day: date = Field(alias="date", description="YYYY-MM-DD")

    model_config = ConfigDict(populate_by_name=True)


class Fit(_Strict):
    """How well the model fits the measurements (what is unknown stays None).

    Attributes:
        r2: share of the variance that is explained.
        worst_residual: largest relative error of a measured iteration.
        confidence: 95 % interval of constants, by name.
    """

    r2: Annotated[_Number, Field(le=1)] | None = Field(None, description="at most 1")
    worst_residual: _NonNegative | None = Field(None, description="relative error, 0.1 = 10 %")
    confidence: dict[str, tuple[_Number, _Number]] | None = Field(
        None, description="constant -> [low, high]"
    )


class Profile(_Strict):
    """Model, device, cost constants, KV cache and provenance. Frozen; JSON schema 1."""

    schema_version: Literal[1] = Field(1, alias="schema")
    name: _Text = Field(description="short name, such as h200/qwen3-8b")
    model: _Text = Field(description="name of the model")
    device: _Text = Field(description="name of the device")
    cost: Annotated[InterferenceConstants | LinearConstants, Field(discriminator="kind")]
    kv_capacity_tokens: Annotated[int, Field(strict=True, gt=0, le=1 << 50)] = Field(
        description="tokens that fit into the KV cache"
    )
    provenance: Provenance
    fit: Fit | None = None

    model_config = ConfigDict(populate_by_name=True)

    @model_validator(mode="after")
    def _intervals_name_constants(self) -> Profile:
        constants = set(type(self.cost).model_fields) - {"kind"}
        for name, (low, high) in ((self.fit and self.fit.confidence) or {}).items():
            if name not in constants:
                raise ValueError(
                    f"fit.confidence names {name!r}, which is no constant of the "
                    f"{self.cost.kind} model: use {', '.join(sorted(constants))}"
                )
            if low > high:
                raise ValueError(f"fit.confidence.{name} is [{low}, {high}]: swap the two")
        return self

    def cost_model(self) -> CostModel:
        """The cost model with these constants, host time included."""
        constants = self.cost.model_dump(exclude={"kind"})
        if isinstance(self.cost, LinearConstants):
            return LinearCost(**constants)
        return InterferenceCost(**constants)

    def to_json(self) -> str:
        """The JSON text that `load_profile` reads; ends with a newline."""
        data = self.model_dump(mode="json", by_alias=True, exclude_none=True)
        return json.dumps(data, indent=2, ensure_ascii=False) + "\n"

    def save(self, path: str | Path) -> None:
        """Write the profile; the file is complete or unchanged. Raises InputError."""
        write_atomic(Path(path), self.to_json())


def load_profile(name_or_path: str | Path) -> Profile:
    """The preset of that name, or the profile in that file.

    Raises:
        ProfileError: no such preset or file, not JSON, unknown schema, or a value that makes no
            sense; one line with file, field, value and remedy.
    """
    name = str(name_or_path)
    if not name:
        raise ProfileError(f"profile '': has no name; presets: {', '.join(PRESETS)}")
    if name in PRESETS:
        return Profile.model_validate(PRESETS[name])
    path = Path(name_or_path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ProfileError(_unknown(name)) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a UTF-8 text file"
        raise ProfileError(f"profile {name}: cannot be read ({reason})") from error
    return parse_profile(text, name)


def profile_file(name_or_path: str | Path | None) -> Path | None:
    """The file that `load_profile` would read; None for a preset, or for nothing at all."""
    return None if name_or_path is None or str(name_or_path) in PRESETS else Path(name_or_path)


def parse_profile(text: str, origin: str) -> Profile:
    """The profile in a JSON text; `origin` names it in errors. Raises ProfileError."""
    where = f"profile {origin}"
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise ProfileError(
            f"{where}: not JSON ({error.msg}, line {error.lineno} column {error.colno}); "
            "`phasegate profile show NAME --json` prints a profile to start from"
        ) from error
    if not isinstance(data, dict):
        raise ProfileError(f"{where}: must be a JSON object, not a {type(data).__name__}")
    if data.get("schema") != SCHEMA or isinstance(data.get("schema"), bool):
        found = repr(data["schema"]) if "schema" in data else "missing"
        raise ProfileError(
            f'{where}: field schema is {found}, this phasegate reads "schema": {SCHEMA}; '
            "calibrate again, or use the phasegate that wrote it"
        )
    try:
        return Profile.model_validate(data)
    except ValidationError as error:
        raise ProfileError(f"{where}: {_first_problem(error)}") from error


# pydantic's words where they read badly after "it must be"
_RULES = {
    "model_type": "an object",
    "model_attributes_type": "an object",
    "string_too_short": "a non-empty text",
    "date_from_datetime_parsing": "a date",
    "date_parsing": "a date",
}


def _unknown(name: str) -> str:
    close = difflib.get_close_matches(name, PRESETS, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}? " if close else ""
    return f"profile {name}: no such file or preset; {hint}presets: {', '.join(PRESETS)}"


def _first_problem(error: ValidationError) -> str:
    """The first problem of a validation, as "field is value, but ...: remedy"."""
    problems = error.errors()
    first = problems[0]
    field = ".".join(str(part) for part in first["loc"] if part not in ("interference", "linear"))
    kind, value = first["type"], _short(first["input"])
    meaning = _meaning(first["loc"])
    about = f" ({meaning})" if meaning else ""
    if kind == "missing":
        text = f"field {field} is missing: add it{about}"
    elif kind == "extra_forbidden":
        text = f"unknown field {field} = {value}: remove it, or check its spelling"
    elif kind == "value_error":
        text = f"{field + ': ' if field else ''}{first['ctx']['error']}"
    elif kind.startswith("union_tag"):
        found = value if kind == "union_tag_not_found" else repr(first["ctx"]["tag"])
        text = f'field {field}.kind is {found}: use "interference" or "linear"'
        if kind == "union_tag_not_found":
            text = f'field {field}.kind is missing: add "interference" or "linear"'
    else:
        rule = _RULES.get(kind, first["msg"].removeprefix("Input should be "))
        text = f"field {field} is {value}, it must be {rule}{about}"
    more = len(problems) - 1
    return text + (f" [and {more} more problem{'s' if more > 1 else ''}]" if more else "")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _meaning(location: tuple[int | str, ...]) -> str:
    """The description of the field at `location`, "" where it has none."""
    kinds: dict[str, type[BaseModel]] = {
        "cost": InterferenceConstants,
        "provenance": Provenance,
        "fit": Fit,
        "interference": InterferenceConstants,
        "linear": LinearConstants,
    }
    model: type[BaseModel] = Profile
    for part in location:
        if part in kinds:
            model = kinds[str(part)]
            continue
        for name, field in model.model_fields.items():
            if part in (name, field.alias):
                return field.description or ""
    return ""
