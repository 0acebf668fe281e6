"""What runs as stock vLLM: versions we do not know, and features nobody could test here."""

from __future__ import annotations

import re
from typing import Any

TESTED = ("0.20.2", "0.26.0", "0.32.0")
"""Versions of vLLM that `make test-vllm-matrix` runs; what lies between is taken as known."""

_SCHEDULER = (
    "running waiting requests policy max_num_running_reqs max_num_scheduled_tokens block_size "
    "num_waiting_for_streaming_input _pause_state deferred_waiting|skipped_waiting"
)
_REQUEST = "num_computed_tokens num_output_placeholders is_prefill_chunk"
_READ = "running max_num_scheduled_tokens long_prefill_token_threshold"


def unknown_version(version: str) -> str | None:
    """Why this version of vLLM is not known, None if it is."""
    low, high = (tuple(map(int, text.split(".")[:2])) for text in (TESTED[0], TESTED[-1]))
    found = re.match(r"(\d+)\.(\d+)", version)
    if found and low <= (int(found[1]), int(found[2])) <= high:
        return None
    return f'vLLM {version} is outside {TESTED[0]} .. {TESTED[-1]}; set "untested": true to try it'


def changed_internals(scheduler: Any, request: Any, schedule: Any) -> str | None:
    """The canary: names what the gate builds on and this vLLM does not have, None if all is there.

    Args:
        scheduler: a scheduler that vLLM's own constructor made.
        request: the constructor of vLLM's requests.
        schedule: vLLM's own `schedule` function.
    """
    cap = "max_num_active_reqs"
    cap = cap if hasattr(scheduler, cap) else "max_num_running_reqs"
    mark = "next_decode_eligible_step" if hasattr(scheduler, "current_step") else "running"
    for names in _SCHEDULER.split():
        if not any(hasattr(scheduler, name) for name in names.split("|")):
            return f"Scheduler.{names} is gone"
    for name in _REQUEST.split():
        if name not in request.__code__.co_names:
            return f"Request.{name} is gone"
    for name in (*_READ.split(), cap, mark):
        if name not in schedule.__code__.co_names:
            return f"Scheduler.schedule() does not read {name} any more"
    return None


def untested_feature(scheduler: Any) -> str | None:
    """The feature of this server that has to run as stock, None if there is none."""
    config = scheduler.vllm_config
    drafts, parallel = config.speculative_config, config.parallel_config
    n_gram = drafts and drafts.method == "ngram" and not config.scheduler_config.async_scheduling
    found = {
        "pipeline parallelism": parallel.pipeline_parallel_size > 1,
        "data parallelism": parallel.data_parallel_size > 1,
        "a KV connector": scheduler.connector is not None,
        "an encoder-cache connector": getattr(scheduler, "ec_connector", None) is not None,
        "encoder inputs": scheduler.max_num_encoder_input_tokens > 0,
        "speculative decoding other than synchronous n-gram": drafts and not n_gram,
        "Mamba layers": getattr(scheduler, "has_mamba_layers", False),
    }
    return next((feature for feature, used in found.items() if used), None)
