"""Mixed and exclusive batching with a cost model, iteration by iteration, the queue never empty.

The brute force for the throughput formulas: chunked prefill within the token budget, first come
first served, decodes first; the first token comes from the prefill.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Iterator

import numpy as np
from decode_world import Draw

from phasegate.cost.model import CostModel


def requests(prompts: Draw, outputs: Draw, seed: int) -> Iterator[tuple[int, int]]:
    """(prompt, output) lengths, without end."""
    rng = np.random.default_rng(seed)
    while True:
        yield from zip(prompts(rng, 4096).tolist(), outputs(rng, 4096).tolist(), strict=True)


def mixed_rate_by_simulation(
    cost: CostModel, n: int, source: Iterator[tuple[int, int]], budget: int, iterations: int
) -> float:
    """Requests per second over the last two thirds of `iterations`."""
    waiting = deque([list(next(source)) for _ in range(n)])  # prompt tokens left, output
    prompt_of = deque(prompt for prompt, _ in waiting)
    ends: dict[int, list[tuple[int, int]]] = defaultdict(list)
    decoding = context = done = 0
    seconds = began = 0.0
    counted = 0
    for now in range(iterations):
        if now == iterations // 3:
            began, counted = seconds, done
        room, attention = budget - decoding, 0.0
        first_tokens = []
        while waiting and room > 0:
            left, output = waiting[0]
            chunk = min(left, room)
            attention += chunk * (prompt_of[0] - left + chunk / 2)
            room -= chunk
            waiting[0][0] -= chunk
            if chunk == left:
                waiting.popleft()
                first_tokens.append((prompt_of.popleft(), output))
        seconds += cost.seconds(budget - decoding - room, attention, decoding, context)
        context += decoding
        left_now = 0
        for prompt, output in ends.pop(now, ()):
            decoding -= 1
            context -= prompt + output
            left_now += 1
        for prompt, output in first_tokens:
            if output == 1:
                left_now += 1
            else:
                ends[now + output - 1].append((prompt, output))
                decoding += 1
                context += prompt + 1
        done += left_now
        for _ in range(left_now):
            prompt, output = next(source)
            waiting.append([prompt, output])
            prompt_of.append(prompt)
    return (done - counted) / (seconds - began)


def exclusive_rate_by_simulation(
    cost: CostModel, n: int, k: int, source: Iterator[tuple[int, int]], budget: int, cycles: int
) -> float:
    """Requests per second of EB(k) over the last two thirds of `cycles`.

    Decode iterations between two completions are summed in one go (the cost must be affine in
    the context).
    """
    ends: list[tuple[int, int, int]] = []
    tick = context = done = counted = 0
    seconds = began = 0.0
    for turn in range(cycles):
        if turn == cycles // 3:
            began, counted = seconds, done
        while n - len(ends) >= k or not ends:
            batch = [next(source) for _ in range(n - len(ends))]
            left = sum(prompt for prompt, _ in batch)
            attention = sum(prompt * prompt / 2 for prompt, _ in batch) / -(-left // budget)
            while left > 0:
                seconds += cost.seconds(min(budget, left), attention, 0, 0)
                left -= budget
            for prompt, output in batch:
                if output == 1:
                    done += 1
                else:
                    heapq.heappush(ends, (tick + output - 1, prompt, output))
                    context += prompt + 1
        while ends and n - len(ends) < k:
            steps, decoding = ends[0][0] - tick, len(ends)
            seconds += steps * cost.seconds(0, 0, decoding, context + decoding * (steps - 1) / 2)
            tick += steps
            context += decoding * steps
            while ends and ends[0][0] == tick:
                _, prompt, output = heapq.heappop(ends)
                context -= prompt + output
                done += 1
    return (done - counted) / (seconds - began)
