"""Settings: `--additional-config '{"phasegate": {...}}'`, or the variable PHASEGATE_VLLM."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from phasegate.errors import InputError

VARIABLE = "PHASEGATE_VLLM"


class Settings(BaseModel):
    """What a person may choose. Keep it short and stable: it is part of vLLM's cache key."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool = Field(True, description="false: vLLM's scheduler as it is (kill switch)")
    policy: str = Field("auto", description="policy spec, see `phasegate policies`")
    profile: str | None = Field(None, description="preset or file: what an iteration costs here")
    profile_out: str | None = Field(None, description="file that keeps what iterations cost here")
    untested: bool = Field(False, description="true: also run on a vLLM nobody tested yet")


def load_settings(additional_config: Any) -> Settings:
    """Settings of this server; the environment variable (a JSON object) wins field by field.

    Raises InputError, in one line, for what cannot be read.
    """
    values: dict[str, Any] = {}
    given = additional_config.get("phasegate") if isinstance(additional_config, Mapping) else None
    if given is not None:
        values |= _mapping(given, "additional_config.phasegate")
    if text := os.environ.get(VARIABLE):
        try:
            values |= _mapping(json.loads(text), VARIABLE)
        except json.JSONDecodeError as error:
            raise InputError(f"{VARIABLE} is not JSON ({error.msg}): give an object") from None
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        field, fields = ".".join(map(str, first["loc"])), ", ".join(Settings.model_fields)
        if first["type"] == "extra_forbidden":
            raise InputError(f"phasegate: unknown field {field!r}; there are {fields}") from None
        raise InputError(f"phasegate: {field} is {first['input']!r}: {first['msg']}") from None


def _mapping(value: Any, origin: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError(f"{origin} is {value!r}: it must be an object like {{'policy': 'mixed'}}")
    return dict(value)
