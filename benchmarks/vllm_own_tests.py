"""vLLM's own scheduler tests, on its class and on ours in mixed mode: the same results?

    python benchmarks/vllm_own_tests.py [--tests tests/v1/core/test_scheduler.py ...] [--source DIR]

Fetches the sdist of the installed version from the package index into a temporary folder (or
takes `--source`, an unpacked one), runs the tests twice and compares test by test. Needs pytest,
pytest-asyncio and tblib. Models are named by configs made on the spot; tests that need files from
a hub fail on both. Exit code 1 if the two differ.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

TESTS = (
    "tests/v1/core/test_scheduler.py",
    "tests/v1/core/test_async_scheduler.py",
    "tests/v1/core/test_priority_scheduler_random.py",
)

PLUGIN = """
import vllm.v1.core.sched.async_scheduler as ahead
import vllm.v1.core.sched.scheduler as plain

import phasegate.vllm.scheduler as ours

plain.Scheduler, ahead.AsyncScheduler = ours.PhaseScheduler, ours.PhaseAsyncScheduler
"""

CONFIGS = """
from transformers import LlavaConfig, OPTConfig

OPTConfig(architectures=["OPTForCausalLM"]).save_pretrained("facebook/opt-125m")
LlavaConfig(architectures=["LlavaForConditionalGeneration"]).save_pretrained(
    "llava-hf/llava-1.5-7b-hf"
)
"""


def fetch(folder: Path) -> Path:
    """Download and unpack the sdist of the installed version; returns its top folder."""
    import vllm

    number = vllm.__version__.split("+")[0]
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "vllm"]
    environment = {**os.environ, "VLLM_VERSION_OVERRIDE": number, "VLLM_TARGET_DEVICE": "empty"}
    subprocess.run([*command, "-d", str(folder), f"vllm=={number}"], check=True, env=environment)
    with tarfile.open(folder / f"vllm-{number}.tar.gz") as archive:
        members = [m for m in archive.getmembers() if f"vllm-{number}/tests/" in f"{m.name}/"]
        archive.extractall(folder, members, filter="data")
    return folder / f"vllm-{number}"


def run(source: Path, tests: list[str], plugin: bool, report: Path) -> dict[str, str]:
    """Outcome of every test: passed, failed or skipped."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(source), *filter(None, sys.path)]),
        "PHASEGATE_VLLM": '{"policy": "mixed"}',
        "HF_HUB_OFFLINE": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    command += [f"--junitxml={report}", *(["-p", "phasegate_plugin"] if plugin else [])]
    subprocess.run(command, cwd=source, env=environment, stdout=subprocess.DEVNULL, check=False)
    outcomes = {}
    for case in ElementTree.parse(report).iter("testcase"):
        bad = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
        outcomes[f"{case.get('classname')}::{case.get('name')}"] = bad[0] if bad else "passed"
    return outcomes


def main() -> int:
    """Compare, print a summary and every difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tests", nargs="+", default=list(TESTS))
    parser.add_argument("--source", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = args.source or fetch(folder)
        (source / "phasegate_plugin.py").write_text(PLUGIN)
        subprocess.run([sys.executable, "-c", CONFIGS], cwd=source, check=True)
        tests = [test for test in args.tests if (source / test).exists()]
        stock = run(source, tests, False, folder / "stock.xml")
        ours = run(source, tests, True, folder / "ours.xml")
    different = [t for t in stock.keys() | ours.keys() if stock.get(t) != ours.get(t)]
    for test in sorted(different):
        print(f"DIFFERENT {test}: stock {stock.get(test)}, ours {ours.get(test)}")
    passed = sum(outcome == "passed" for outcome in ours.values())
    print(f"{len(ours)} tests, {passed} pass on ours; {len(different)} differ from stock")
    return 1 if different or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
