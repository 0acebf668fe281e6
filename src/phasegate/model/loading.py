"""Load a model: a folder, a GGUF file or a hub id - or say in one line why not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from phasegate.errors import ModelError

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_DECODERS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to serve.

    Attributes:
        model: in evaluation mode, on its device.
        tokenizer: None if there is none (token ids in, token ids out).
        name: what it was loaded from.
        eos: token ids that end an output.
        max_length: the most tokens of prompt and output together.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    name: str
    eos: frozenset[int]
    max_length: int


def load_model(
    source: str | os.PathLike[str] | PreTrainedModel,
    device: str = "auto",
    dtype: str = "auto",
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> LoadedModel:
    """Load a decoder-only language model.

    Args:
        source: folder with config.json and safetensors, a .gguf file (dequantised), a hub id, or
            a model that is loaded already.
        device: "cpu", "cuda", "cuda:1" ...; "auto": the GPU if there is one.
        dtype: "float32", "bfloat16", "float16"; "auto": bfloat16 on GPUs, float32 on CPUs
            (bfloat16 for a bfloat16 model if the CPU multiplies it in hardware).
        tokenizer: instead of the one that comes with the model.

    Raises:
        ModelError: nothing there, not a decoder-only model, unreadable, or too big.
    """
    target = _device(device)
    if isinstance(source, PreTrainedModel):
        name = source.config.name_or_path or type(source).__name__
        model = source if device == "auto" else _place(source, target, name)
        return _describe(model, tokenizer, name)
    name = os.fspath(source)
    where = _locate(name)
    with _plain_errors(name):
        config = AutoConfig.from_pretrained(**where)
    _check_decoder(config, name)
    chosen = _dtype(dtype, config, target)
    _check_size(name, where, target)
    arguments: dict[str, Any] = {**where, "dtype": chosen}
    if "gguf_file" in where and hasattr(transformers, "GgufConfig"):
        arguments["quantization_config"] = transformers.GgufConfig(dequantize=True)
    with _plain_errors(name):
        model = AutoModelForCausalLM.from_pretrained(**arguments)
    if tokenizer is None:
        tokenizer = _tokenizer(where)
    return _describe(_place(model, target, name), tokenizer, name)


def _device(device: str) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        target = torch.device(device)
    except RuntimeError:
        raise ModelError(f"device is {device!r}; use auto, cpu or cuda") from None
    if target.type not in ("cpu", "cuda"):
        raise ModelError(f"device is {device!r}; only cpu and cuda are supported")
    if target.type == "cuda" and not torch.cuda.is_available():
        raise ModelError(f"device is {device!r}, but PyTorch finds no CUDA GPU; use cpu")
    return target


def _dtype(dtype: str, config: Any, device: torch.device) -> torch.dtype:
    if dtype != "auto":
        if dtype not in DTYPES:
            raise ModelError(f"dtype is {dtype!r}; use auto, {', '.join(DTYPES)}")
        if dtype == "float16" and device.type == "cpu":
            raise ModelError("dtype float16 is for GPUs; use bfloat16 or float32 on the CPU")
        return DTYPES[dtype]
    if device.type == "cuda":
        return torch.bfloat16
    wants_half = config.get_text_config().dtype in (torch.bfloat16, "bfloat16")
    has_half = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if wants_half and has_half else torch.float32


def _locate(name: str) -> dict[str, Any]:
    """Arguments of from_pretrained for a folder, a GGUF file or a hub id."""
    path = Path(name).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ModelError(f"{name}: there is no such file")
        return {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    if path.is_dir():
        if (path / "config.json").is_file():
            return {"pretrained_model_name_or_path": str(path)}
        ggufs = sorted(path.glob("*.gguf"))
        if len(ggufs) == 1:
            return {"pretrained_model_name_or_path": str(path), "gguf_file": ggufs[0].name}
        if ggufs:
            raise ModelError(f"{name} holds {len(ggufs)} GGUF files; name one of them")
        raise ModelError(f"{name} is no model: there is neither config.json nor a .gguf file in it")
    if path.exists():
        raise ModelError(f"{name} is no model; give a folder, a .gguf file or a hub id")
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or "/" not in name:
        raise ModelError(f"{name}: there is no such folder (a hub id looks like owner/name)")
    return {"pretrained_model_name_or_path": name}


@contextmanager
def _plain_errors(name: str) -> Iterator[None]:
    """Whatever goes wrong while reading a model becomes one line."""
    try:
        yield
    except ModelError:
        raise
    except MemoryError as error:
        raise ModelError(f"{name} does not fit into memory; use a smaller model") from error
    except Exception as error:
        if "out of memory" in str(error).lower() or "can't allocate memory" in str(error):
            raise ModelError(f"{name} does not fit into memory; use a smaller model") from error
        line = next((x.strip() for x in str(error).splitlines() if x.strip()), repr(error))
        raise ModelError(f"{name} cannot be loaded: {line[:300]}") from error


def _check_decoder(config: Any, name: str) -> None:
    kind = config.model_type
    architectures = getattr(config, "architectures", None) or []
    known = type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    decoder = not architectures or any(a.endswith(_DECODERS) for a in architectures)
    if getattr(config, "is_encoder_decoder", False) or not known or not decoder:
        what = f"{kind} ({', '.join(architectures)})" if architectures else kind
        raise ModelError(f"{name} is not a decoder-only language model but {what}")


def _check_size(name: str, where: dict[str, Any], device: torch.device) -> None:
    """Refuse a local model whose files alone are bigger than the free memory."""
    folder = Path(where["pretrained_model_name_or_path"])
    if not folder.is_dir():
        return
    if "gguf_file" in where:
        files = [folder / where["gguf_file"]]
    else:
        files = [*folder.glob("*.safetensors")] or [*folder.glob("*.bin")]
    size = sum(file.stat().st_size for file in files)
    free = free_memory(device)
    if free is not None and size > free:
        raise ModelError(
            f"{name} takes {size / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free on "
            f"{device}; use a smaller model or free some memory"
        )


def free_memory(device: torch.device) -> int | None:
    """Free bytes on a device; None if that cannot be found out."""
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what PyTorch keeps for later counts as free
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        with open("/proc/meminfo") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        return None
    return None


def _place(model: PreTrainedModel, device: torch.device, name: str) -> PreTrainedModel:
    try:
        model.to(device)  # type: ignore[arg-type]
        return model
    except torch.OutOfMemoryError as error:
        raise ModelError(f"{name} does not fit into the memory of {device}") from error


def _tokenizer(where: dict[str, Any]) -> PreTrainedTokenizerBase | None:
    try:
        tokenizer = AutoTokenizer.from_pretrained(**where)
    except (OSError, ValueError, KeyError):
        return None
    return tokenizer if isinstance(tokenizer, PreTrainedTokenizerBase) else None


def _describe(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, name: str
) -> LoadedModel:
    eos: set[int] = set()
    for holder in (model.generation_config, model.config.get_text_config(), tokenizer):
        ids = getattr(holder, "eos_token_id", None)
        if ids is not None and not eos:
            eos.update([ids] if isinstance(ids, int) else ids)
    model.train(False)
    return LoadedModel(model, tokenizer, name, frozenset(eos), _max_length(model))


def _max_length(model: PreTrainedModel) -> int:
    """Positions the model knows. Rotary embeddings that change with the longest context in a
    batch are held to the length before the change: a token must not depend on its neighbours."""
    config = model.config.get_text_config()
    length = getattr(config, "max_position_embeddings", None)
    limit = int(length) if length else 1 << 30
    rope = getattr(config, "rope_parameters", None) or {}
    nested = [rope, *(value for value in rope.values() if isinstance(value, dict))]
    for part in nested:
        if part.get("rope_type") in ("dynamic", "longrope"):
            original = part.get("original_max_position_embeddings")
            limit = min(limit, int(original)) if original else limit
    return limit
