"""The cells that the benchmarks of `auto` run on: devices x workloads x concurrencies."""

from __future__ import annotations

from dataclasses import dataclass

from phasegate.cost.profile import load_profile
from phasegate.scheduler.limits import Limits
from phasegate.workload import RequestTable, WorkloadSpec
from phasegate.workload.draw import draw

DEVICES = ("h200/qwen3-8b", "rtx-pro-6000/qwen3-8b")

WORKLOADS = {
    "decode-heavy": "prompt=128,output=1024,prompt_dist=uniform:0.5,output_dist=uniform:0.5",
    "balanced": "prompt=512,output=512,prompt_dist=uniform:0.5,output_dist=uniform:0.5",
    "prefill-heavy": "prompt=1024,output=128,prompt_dist=uniform:0.5,output_dist=uniform:0.5",
    "chat": "prompt=512,output=256,prompt_dist=lognormal:1,output_dist=geometric",
    # Means and CV of the Azure traces of 2023 (conversation and code).
    "conversation": "prompt=1155,output=211,prompt_dist=lognormal:0.96,output_dist=lognormal:0.77",
    "code": "prompt=2048,output=28,prompt_dist=lognormal:0.9,output_dist=lognormal:1",
    "long-prompts": "prompt=512,output=256,prompt_dist=lognormal:1,output_dist=geometric,"
    "long=0.05:16384-32768",
    "reasoning": "prompt=512,output=3000,prompt_dist=lognormal:1,output_dist=lognormal:1",
    "summaries": "prompt=4096,output=256,prompt_dist=uniform:0.5,output_dist=gamma:2",
}

CONCURRENCIES = (32, 128, 512, 1024, 2048)


@dataclass(frozen=True)
class Cell:
    """One device under one closed-loop workload."""

    device: str
    workload: str
    concurrency: int

    @property
    def name(self) -> str:
        """A short name for tables."""
        return f"{self.device.split('/')[0]} {self.workload} {self.concurrency}"

    @property
    def kv_capacity(self) -> int:
        """KV cache of the device, tokens."""
        return load_profile(self.device).kv_capacity_tokens

    @property
    def limits(self) -> Limits:
        """An engine that leaves N and B to the policy."""
        return Limits(self.kv_capacity, slots=2048, token_budget=16384)

    def table(self, seed: int) -> RequestTable:
        """The requests of the cell: long enough for a steady state, short enough for a grid."""
        requests = 6 * self.concurrency if self.concurrency > 500 else 3000
        spec = WorkloadSpec.parse(WORKLOADS[self.workload])
        return draw(spec.resolve(concurrency=self.concurrency, requests=requests), seed)


def all_cells() -> list[Cell]:
    """The full grid of 2 x 9 x 5 cells."""
    return [Cell(d, w, c) for d in DEVICES for w in WORKLOADS for c in CONCURRENCIES]
