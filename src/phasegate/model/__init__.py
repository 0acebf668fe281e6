"""A real model behind the engine: PyTorch, transformers' model code, our attention and KV."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phasegate.model.llm import LLM
    from phasegate.model.params import SamplingParams

__all__ = ["LLM", "SamplingParams"]


def __getattr__(name: str) -> Any:
    """PyTorch and transformers are imported only by those who use them."""
    if name == "LLM":
        from phasegate.model.llm import LLM

        return LLM
    if name == "SamplingParams":
        from phasegate.model.params import SamplingParams

        return SamplingParams
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
