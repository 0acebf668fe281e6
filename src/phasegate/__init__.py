"""phasegate: decides, iteration by iteration, how a large language model is served."""

from typing import TYPE_CHECKING, Any

from phasegate.errors import PhasegateError

if TYPE_CHECKING:
    from phasegate.model import LLM, SamplingParams

__version__ = "0.1.0"

__all__ = ["LLM", "PhasegateError", "SamplingParams", "__version__"]


def __getattr__(name: str) -> Any:
    """The embedded engine is imported when it is asked for: it brings PyTorch."""
    if name in ("LLM", "SamplingParams"):
        from phasegate import model

        return getattr(model, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
