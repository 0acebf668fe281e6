"""Print what an installed vLLM needs, less what breaks or is not needed here.

torchvision, torchaudio and torchcodec come as CUDA builds that fail to import beside a CPU torch,
and vLLM runs text models without them. Used by `make test` after `pip install --no-deps`.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import requires

LEFT_OUT = {"torch", "torchvision", "torchaudio", "torchcodec"}


def main() -> None:
    """Print one requirement per line."""
    for requirement in requires(sys.argv[1]) or ():
        name = re.split(r"[^A-Za-z0-9_.-]", requirement, maxsplit=1)[0].lower().replace("_", "-")
        if name not in LEFT_OUT and "extra ==" not in requirement:
            print(requirement)


if __name__ == "__main__":
    main()
