"""Profiles that come with phasegate, as plain data (`phasegate.cost.profile` validates them).

The Qwen3-8B constants are the interference model fitted to the end-to-end results of
"Threshold-Based Exclusive Batching for LLM Inference" (arXiv 2606.00516); the Llama-3.1-8B
constants come from that paper's measurements of single iterations.
"""

from __future__ import annotations

from typing import Any

DEFAULT_PRESET = "rtx-pro-6000/qwen3-8b"
"""What commands use, and say that they use, when nobody names a profile."""

# The Llama measurement has one number per decoding request, beta_d, taken at context 512.
# Decode attention reads K and V of every layer. Both models have 8 KV heads of 128, so k_d goes
# with the number of layers, and what is left of beta_d belongs to the request itself.
_QWEN_LAYERS, _LLAMA_LAYERS = 36, 32
_H200_QWEN_K_D = 36.8e-9
_H200_QWEN_KV = 780_000
_LLAMA_BETA_D = 4.439905141646743e-05
_LLAMA_K_D = _H200_QWEN_K_D * _LLAMA_LAYERS / _QWEN_LAYERS
_LLAMA_B_D = _LLAMA_BETA_D - 512 * _LLAMA_K_D

PRESETS: dict[str, dict[str, Any]] = {
    "h200/qwen3-8b": {
        "schema": 1,
        "name": "h200/qwen3-8b",
        "model": "Qwen/Qwen3-8B",
        "device": "NVIDIA H200",
        "cost": {
            "kind": "interference",
            "alpha_p": 1.28e-3,
            "alpha_d": 4.89e-3,
            "beta_p": 24.9e-6,
            "b_d": 26.9e-6,
            "k_d": _H200_QWEN_K_D,
            "kappa": 1.15,
        },
        "kv_capacity_tokens": _H200_QWEN_KV,
        "provenance": {
            "how": "fitted to published results",
            "source": "one set of constants fitted to the end-to-end results of arXiv 2606.00516 "
            "(host time is inside alpha)",
            "date": "2026-11-30",
        },
    },
    "rtx-pro-6000/qwen3-8b": {
        "schema": 1,
        "name": "rtx-pro-6000/qwen3-8b",
        "model": "Qwen/Qwen3-8B",
        "device": "NVIDIA RTX PRO 6000 Blackwell",
        "cost": {
            "kind": "interference",
            "alpha_p": 4.69e-3,
            "alpha_d": 8.07e-3,
            "beta_p": 46.8e-6,
            "b_d": 56.0e-6,
            "k_d": 97.3e-9,
            "kappa": 3.5,
        },
        "kv_capacity_tokens": 488_000,
        "provenance": {
            "how": "fitted to published results",
            "source": "one set of constants fitted to the end-to-end results of arXiv 2606.00516 "
            "(host time is inside alpha)",
            "date": "2026-11-30",
        },
    },
    "h200/llama-3.1-8b": {
        "schema": 1,
        "name": "h200/llama-3.1-8b",
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "device": "NVIDIA H200",
        "cost": {
            "kind": "interference",
            "alpha_p": 0.0003467386563619085,
            "alpha_d": 0.006790685528010598,
            "beta_p": 2.4204084930080235e-05,
            "b_d": _LLAMA_B_D,
            "k_d": _LLAMA_K_D,
            "kappa": 1.15,
        },
        "kv_capacity_tokens": _H200_QWEN_KV * _QWEN_LAYERS // _LLAMA_LAYERS,
        "provenance": {
            "how": "derived",
            "source": "alpha and beta measured by the authors of arXiv 2606.00516 (eager mode, "
            "decode context 512; alpha_d is lower with CUDA graphs); beta_d split into b_d + "
            "512 k_d with k_d and KV size of h200/qwen3-8b scaled by layers (32/36); kappa taken "
            "from h200/qwen3-8b",
            "date": "2026-11-30",
        },
        "fit": {"r2": 0.99031},
    },
}
