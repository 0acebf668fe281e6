"""Can our attention stand in for this model's own? Find out before anything is served.

`own_logits` notes what the untouched model computes for a short prompt. `inspect_model` runs a few
tokens through it with an attention that only looks: it learns the heads of every layer and refuses
what our attention cannot do. `verify` then runs the prompt in slices and decodes through the real
thing and compares. A model that gets past this is right; one that does not is refused, never
served wrong.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from transformers import PreTrainedModel

from phasegate.errors import ModelError
from phasegate.model.attention import NAME, DecodeKernels, PackedStep, Piece, Scores
from phasegate.model.kv_memory import KVMemory, LayerShape

# Keyword arguments that models pass along and that say nothing about the attention itself.
_HARMLESS = frozenset(
    (
        "position_ids",
        "position_embeddings",
        "cache_position",
        "use_cache",
        "past_key_values",
        "return_dict",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "deterministic",
    )
)
_VERIFY_TOKENS = 24
_LONGEST_WINDOW_VERIFIED = 512


class _Probe:
    """An attention that records how it is called and returns zeros."""

    def __init__(self) -> None:
        self.shapes: dict[int, LayerShape] = {}
        self.windows: list[int] = []
        self.problem = ""

    def attend(
        self,
        layer: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        scores: Scores,
        extra: dict[str, Any],
    ) -> torch.Tensor:
        if layer in self.shapes:
            self.problem = f"layer {layer} attends more than once"
        self.shapes[layer] = LayerShape(
            q.shape[1], k.shape[1], q.shape[2], v.shape[2], scores.plain
        )
        if scores.window:
            self.windows.append(scores.window)
        if not extra.pop("is_causal"):
            self.problem = f"layer {layer} looks at later tokens (it is not a decoder)"
        unknown = [n for n, x in extra.items() if n not in _HARMLESS and x is not None]
        if unknown:
            self.problem = f"layer {layer} asks its attention for {', '.join(sorted(unknown))}"
        if k.shape[0] != q.shape[0] or q.shape[1] % k.shape[1]:
            self.problem = f"layer {layer} has keys of a shape that is not supported"
        return q.new_zeros(q.shape[0], q.shape[1], v.shape[2])


def _refuse(name: str, why: str) -> ModelError:
    return ModelError(f"{name}: this architecture is not supported: {why}; use another model")


@torch.inference_mode()
def inspect_model(model: PreTrainedModel, name: str) -> list[LayerShape]:
    """The attention shape of every layer, in order.

    Switches the model to our attention. Raises ModelError for a model that it cannot serve:
    one without pluggable attention, with layers that keep other state than keys and values,
    with attention to later tokens, or with options our attention does not know.
    """
    config = model.config.get_text_config()
    layers = config.num_hidden_layers
    if not getattr(model, "_supports_attention_backend", False):
        raise _refuse(name, "its attention cannot be replaced")
    kinds = set(getattr(config, "layer_types", None) or ())
    strange = kinds - {"full_attention", "sliding_attention"}
    if strange:
        raise _refuse(name, f"it has layers of type {', '.join(sorted(strange))}")
    if "logits_to_keep" not in inspect.signature(model.forward).parameters:
        raise _refuse(name, "it cannot leave out logits")
    if getattr(config, "attention_chunk_size", None):
        raise _refuse(name, "it attends in chunks")
    model.set_attn_implementation(NAME)
    probe = _Probe()
    ids = torch.zeros(1, 4, dtype=torch.int64, device=model.device)
    positions = torch.arange(4, device=model.device).unsqueeze(0)
    try:
        model(input_ids=ids, position_ids=positions, use_cache=False, step=probe)
    except (TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise _refuse(name, str(error).splitlines()[0]) from error
    if probe.problem:
        raise _refuse(name, probe.problem)
    if sorted(probe.shapes) != list(range(layers)):
        raise _refuse(name, f"{len(probe.shapes)} of its {layers} layers have attention")
    return [probe.shapes[layer] for layer in range(layers)]


@torch.inference_mode()
def own_logits(model: PreTrainedModel, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """A short random prompt, int64 [tokens], and the logits [tokens, vocabulary] (float32) that
    the model computes for it with its own attention. Raises ModelError if it computes none."""
    config = model.config.get_text_config()
    window = getattr(config, "sliding_window", None) or 0
    tokens = _VERIFY_TOKENS + (window if window <= _LONGEST_WINDOW_VERIFIED else 0)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(config.vocab_size, (tokens,), generator=generator).to(model.device)
    try:
        model.set_attn_implementation("eager")
        logits = model(input_ids=ids.unsqueeze(0), use_cache=False).logits[0]
    except (TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise _refuse(name, str(error).splitlines()[0]) from error
    return ids, logits.float()


@torch.inference_mode()
def verify(
    model: PreTrainedModel,
    shapes: list[LayerShape],
    kernels: DecodeKernels,
    expected: tuple[torch.Tensor, torch.Tensor],
    name: str,
) -> None:
    """Compare what the model computes now with `own_logits`.

    Two copies of the prompt run interleaved, one of them in slices, and then decode, as in
    serving. Raises ModelError if the logits differ by more than rounding.
    """
    ids, own = expected
    tokens = len(ids)
    memory = KVMemory(shapes, 2 * tokens, model.dtype, model.device)
    cut, end = tokens // 3, tokens - 2
    first = _run(model, memory, kernels, ids[:cut], [Piece(0, cut, 0, 0)])
    mixed_ids = torch.cat([ids[:end], ids[cut:end]])
    pieces = [Piece(0, end, tokens, 0), Piece(end, end - cut, 0, cut)]
    second = _run(model, memory, kernels, mixed_ids, pieces)[end:]
    ours = [first, second]
    for at in range(end, tokens):
        ours.append(_run(model, memory, kernels, ids[at : at + 1].repeat(2), [], at)[:1])
    difference = (torch.cat(ours) - own).norm() / (own - own.mean(dim=-1, keepdim=True)).norm()
    # Half precision: rounding adds up over the layers; what is wrong differs by about 1.
    tolerance = 2e-3 if model.dtype is torch.float32 else 0.25
    if not difference <= tolerance:  # also when it is NaN
        raise _refuse(name, f"its logits come out wrong (relative difference {difference:.1e})")


def _run(
    model: PreTrainedModel,
    memory: KVMemory,
    kernels: DecodeKernels,
    ids: torch.Tensor,
    pieces: list[Piece],
    position: int = 0,
) -> torch.Tensor:
    """Logits of packed `ids`: the pieces, or without any one decode at `position` of each of
    the two prompts."""
    device = ids.device
    decodes = 0 if pieces else len(ids)
    starts = torch.tensor([0, memory.tokens // 2], device=device)[:decodes]
    lengths = torch.full((decodes,), position + 1, device=device)
    spans = [torch.arange(p.before, p.before + p.length, device=device) for p in pieces]
    positions = torch.cat(spans) if spans else lengths - 1
    step = PackedStep(memory, kernels, decodes, starts, lengths, pieces)
    output = model(
        input_ids=ids.unsqueeze(0), position_ids=positions.unsqueeze(0), use_cache=False, step=step
    )
    logits: torch.Tensor = output.logits[0].float()
    return logits
