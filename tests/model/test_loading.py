"""Loading a model, and the one line that says why it cannot be loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny_models
import torch
import transformers
from byte_tokenizer import SIZE, byte_tokenizer

from phasegate.errors import ModelError
from phasegate.model import loading
from phasegate.model.loading import load_model
from phasegate.model.runner import TorchRunner


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    tiny_models.build(vocab_size=SIZE).save_pretrained(path)
    byte_tokenizer().save_pretrained(path)
    return path


def copy_with(folder: Path, target: Path, **changes: object) -> Path:
    """The model with some of its configuration changed."""
    target.mkdir()
    for file in folder.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, **changes}))
    return target


def test_a_folder(folder: Path) -> None:
    loaded = load_model(folder, device="cpu")
    assert loaded.model.dtype is torch.float32
    assert loaded.tokenizer is not None
    assert loaded.eos == {2}
    assert loaded.max_length == tiny_models.POSITIONS
    assert loaded.name == str(folder)


def test_dtype(folder: Path) -> None:
    assert load_model(folder, device="cpu", dtype="bfloat16").model.dtype is torch.bfloat16
    with pytest.raises(ModelError, match="dtype is 'int3'; use auto, float32, bfloat16, float16"):
        load_model(folder, dtype="int3")
    with pytest.raises(ModelError, match="float16 is for GPUs"):
        load_model(folder, device="cpu", dtype="float16")


def test_a_model_without_a_tokenizer(tmp_path: Path) -> None:
    tiny_models.build().save_pretrained(tmp_path)
    assert load_model(tmp_path, device="cpu").tokenizer is None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("/no/such/folder", "there is no such folder"),
        ("/no/such/file.gguf", "there is no such file"),
        ("nothing", r"there is no such folder \(a hub id looks like owner/name\)"),
    ],
)
def test_nothing_there(name: str, message: str) -> None:
    with pytest.raises(ModelError, match=message) as error:
        load_model(name)
    assert "\n" not in str(error.value)


def test_an_empty_folder_and_a_folder_with_two_files(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"neither config\.json nor a \.gguf file"):
        load_model(tmp_path)
    (tmp_path / "a.gguf").touch()
    (tmp_path / "b.gguf").touch()
    with pytest.raises(ModelError, match="holds 2 GGUF files; name one of them"):
        load_model(tmp_path)
    with pytest.raises(ModelError, match=r"a\.gguf cannot be loaded: "):
        load_model(tmp_path / "a.gguf")


def test_damaged_files(folder: Path, tmp_path: Path) -> None:
    broken = copy_with(folder, tmp_path / "weights")
    (broken / "model.safetensors").write_bytes(b"not safetensors at all")
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_model(broken)
    unknown = copy_with(folder, tmp_path / "type", model_type="hal9000")
    with pytest.raises(ModelError, match="hal9000"):
        load_model(unknown)
    (broken / "config.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_model(broken)


def test_not_a_decoder(tmp_path: Path) -> None:
    size = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    bert = transformers.BertForMaskedLM(transformers.BertConfig(**size, intermediate_size=32))
    bert.save_pretrained(tmp_path / "bert")
    with pytest.raises(ModelError, match=r"not a decoder-only language model but bert \(BertFor"):
        load_model(tmp_path / "bert")
    t5 = transformers.T5Config(vocab_size=99, d_model=32, num_layers=1)
    t5.save_pretrained(tmp_path / "t5")
    with pytest.raises(ModelError, match="not a decoder-only language model but t5"):
        load_model(tmp_path / "t5")


def test_bigger_than_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "free_memory", lambda device: 1000)
    with pytest.raises(ModelError, match=r"takes .* GiB, and 0\.0 GiB are free on cpu"):
        load_model(folder, device="cpu")


def test_a_kv_cache_that_does_not_fit(folder: Path) -> None:
    loaded = load_model(folder, device="cpu")
    with pytest.raises(ModelError, match=r"kv_tokens is .* the KV cache needs .* GiB"):
        TorchRunner(loaded, kv_tokens=10**15)
    with pytest.raises(ModelError, match="kv_tokens is 100, less than a page of 256"):
        TorchRunner(load_model(folder, device="cpu"), kv_tokens=100)


@pytest.mark.parametrize(
    ("device", "message"), [("tpu", "device is 'tpu'"), ("mps", "only cpu and cuda")]
)
def test_devices(folder: Path, device: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        load_model(folder, device=device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu(folder: Path) -> None:
    with pytest.raises(ModelError, match="finds no CUDA GPU"):
        load_model(folder, device="cuda")


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("Mamba", {"num_hidden_layers": 1, "hidden_size": 32}, "attention cannot be replaced"),
        ("Llama4Text", {"attention_chunk_size": 64}, "chunk"),
        ("Qwen3Next", {"num_hidden_layers": 4}, "attention cannot be replaced"),
    ],
)
def test_architectures_that_are_refused(
    family: str, changes: dict[str, object], message: str
) -> None:
    name = f"{family.removesuffix('Text')}ForCausalLM"
    small = {"vocab_size": 99, "hidden_size": 32, "intermediate_size": 32, **changes}
    model = getattr(transformers, name)(getattr(transformers, f"{family}Config")(**small))
    with pytest.raises(ModelError, match=f"architecture is not supported: .*{message}"):
        TorchRunner(load_model(model, device="cpu"), kv_tokens=1024)


def test_rotary_embeddings_that_depend_on_the_longest_context_are_held_to_what_is_safe() -> None:
    rope = {
        "rope_type": "dynamic",
        "factor": 4.0,
        "rope_theta": 10_000.0,
        "original_max_position_embeddings": 128,
    }
    model = tiny_models.build(rope_parameters=rope, max_position_embeddings=512)
    assert load_model(model, device="cpu").max_length == 128
