"""phasegate: decides, iteration by iteration, how a large language model is served."""

from phasegate.errors import PhasegateError

__version__ = "0.1.0"

__all__ = ["PhasegateError", "__version__"]
