"""Tiny models made on the fly: seeded random weights, nothing downloaded.

The weights are scaled up, so that logits are far from flat: the most likely token then wins by
far more than rounding, and greedy outputs can be compared token by token.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

VOCABULARY = 199
POSITIONS = 512

_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": POSITIONS,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_MORE: dict[str, dict[str, Any]] = {
    "Mistral": {"sliding_window": 24},
    "Gemma2": {"sliding_window": 24, "query_pre_attn_scalar": 32, "tie_word_embeddings": False},
    "Gemma3Text": {"sliding_window": 24, "tie_word_embeddings": False},
    "GptOss": {"sliding_window": 24, "num_local_experts": 4, "num_experts_per_tok": 2},
    "Mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "Granite": {"attention_multiplier": 0.2, "logits_scaling": 2.0},
}


def config(family: str = "Llama", **changes: Any) -> Any:
    """The configuration of a tiny model of this family ("Llama", "Qwen3", ...)."""
    sizes = {**_SIZES, **_MORE.get(family, {}), **changes}
    return getattr(transformers, f"{family}Config")(**sizes)


def build(family: str = "Llama", seed: int = 0, **changes: Any) -> PreTrainedModel:
    """A new tiny model, float32, on the CPU."""
    torch.manual_seed(seed)
    name = f"{family.removesuffix('Text')}ForCausalLM"
    model = getattr(transformers, name)(config(family, **changes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn(parameter.shape) * 1.5 * parameter.shape[-1] ** -0.5)
    assert isinstance(model, PreTrainedModel)
    return model


@lru_cache(maxsize=4)
def reference(family: str = "Llama") -> PreTrainedModel:
    """A model left as transformers made it, to compare with."""
    return build(family)


@torch.inference_mode()
def generate(model: PreTrainedModel, prompt: list[int], tokens: int) -> list[int]:
    """transformers' own greedy output of one prompt."""
    ids = torch.tensor([prompt])
    output = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False
    )
    return output[0, len(prompt) :].tolist()


def prompts(count: int, longest: int, seed: int = 0) -> list[list[int]]:
    """Random prompts of mixed length, at least one token each."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (count,), generator=generator).tolist()
    return [torch.randint(3, VOCABULARY, (n,), generator=generator).tolist() for n in lengths]
