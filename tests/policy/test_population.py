"""Closed and open loops are told apart by how the number in the system moves."""

from __future__ import annotations

import random

from phasegate.policy.population import Population


def test_a_list_of_requests_is_a_closed_loop_from_the_start() -> None:
    population = Population()
    population.see(64, 0)
    assert population.closed


def test_a_first_visitor_is_not() -> None:
    population = Population()
    population.see(1, 0)
    assert not population.closed


def test_clients_that_wait_for_answers_are_found_out() -> None:
    population = Population()
    population.see(1, 0)
    for completions in range(0, 200, 3):
        population.see(64 - (completions % 2), completions)  # one answer is always under way
    assert population.closed


def test_independent_arrivals_are_an_open_loop() -> None:
    """Whatever it looked like at the start."""
    rng = random.Random(0)
    population = Population()
    size, completions, closed = 100, 0, 0
    population.see(size, completions)
    for _ in range(3000):
        came, went = rng.randrange(5), rng.randrange(5)
        size = max(20, size + came - went)
        completions += went
        population.see(size, completions)
        closed += population.closed
    assert closed < 150


def test_a_change_of_concurrency_is_got_over() -> None:
    population = Population()
    for completions in range(0, 200, 2):
        population.see(32, completions)
    for completions in range(200, 500, 2):
        population.see(256, completions)
    assert population.closed
