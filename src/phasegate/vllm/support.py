"""What runs as stock vLLM: versions we do not know, and features nobody could test here."""

from __future__ import annotations

import re
from typing import Any

TESTED = ("0.20.2", "0.26.0", "0.32.0")
"""Versions of vLLM that `make test-vllm-matrix` runs; what lies between is taken as known."""

_SCHEDULER = (
    "running",
    "waiting",
    "requests",
    "max_num_running_reqs",
    "max_num_scheduled_tokens",
    "num_waiting_for_streaming_input",
    "_pause_state",
)
_REQUEST = ("is_prefill_chunk", "num_computed_tokens", "num_output_placeholders", "spec_token_ids")
_EITHER = (("deferred_waiting", "skipped_waiting"), ("current_step", "skipped_waiting"))
_READ_BY_SCHEDULE = ("max_num_scheduled_tokens", "long_prefill_token_threshold", "running")


def unknown_version(version: str) -> str | None:
    """Why this version of vLLM is not known, None if it is."""
    found = re.match(r"(\d+)\.(\d+)", version)
    low, high = (tuple(map(int, text.split(".")[:2])) for text in (TESTED[0], TESTED[-1]))
    if found and low <= (int(found[1]), int(found[2])) <= high:
        return None
    return f'vLLM {version} is outside {TESTED[0]} .. {TESTED[-1]}; set "untested": true to try it'


def changed_internals(scheduler: Any, request: type, stock_schedule: Any) -> str | None:
    """The canary: names what the gate builds on and this vLLM does not have, None if all is there.

    Args:
        scheduler: a scheduler that vLLM's own constructor made.
        request: vLLM's request class.
        stock_schedule: vLLM's own `schedule` function.
    """
    for name in _SCHEDULER:
        if not hasattr(scheduler, name):
            return f"Scheduler.{name} is gone"
    for names in _EITHER:
        if not any(hasattr(scheduler, name) for name in names):
            return f"Scheduler.{names[0]} is gone"
    stored = request.__init__.__code__.co_names
    marked = ("next_decode_eligible_step",) if hasattr(scheduler, "current_step") else ()
    for name in (*_REQUEST, *marked):
        if name not in stored:
            return f"Request.{name} is gone"
    cap = cap_attribute(scheduler)
    for name in (*_READ_BY_SCHEDULE, *marked, cap):
        if name not in stock_schedule.__code__.co_names:
            return f"Scheduler.schedule does not read {name} any more"
    return None


def cap_attribute(scheduler: Any) -> str:
    """The scheduler's attribute that caps admission."""
    newer = hasattr(scheduler, "max_num_active_reqs")
    return "max_num_active_reqs" if newer else "max_num_running_reqs"


def untested_feature(scheduler: Any) -> str | None:
    """The feature of this server that has to run as stock, None if there is none."""
    config = scheduler.vllm_config
    parallel, speculative = config.parallel_config, config.speculative_config
    sync_ngram = (
        speculative is not None
        and speculative.method == "ngram"
        and not scheduler.scheduler_config.async_scheduling
    )
    found = {
        "pipeline parallelism": parallel.pipeline_parallel_size > 1,
        "data parallelism": parallel.data_parallel_size > 1,
        "a KV connector": scheduler.connector is not None,
        "an encoder-cache connector": getattr(scheduler, "ec_connector", None) is not None,
        "encoder inputs": scheduler.max_num_encoder_input_tokens > 0,
        "speculative decoding other than synchronous n-gram": speculative and not sync_ngram,
        "Mamba layers": getattr(scheduler, "has_mamba_layers", False),
    }
    return next((feature for feature, used in found.items() if used), None)
