"""When to refill: the threshold k of EB(k) (THEORY section 2).

EB(k) decodes until k of its N slots are free and then prefills into them. A larger k shares the
fixed cost alpha_p of a prefill phase among more requests, but leaves slots idle for longer.
"(paper)" is arXiv 2606.00516.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import gammaln

from phasegate.errors import InputError
from phasegate.theory.cycle import cycle
from phasegate.theory.lengths import FloatArray, LengthLaw, Survival


def paper_theta(p0: float, alpha_p: float, alpha_d: float) -> float:
    """theta_0 = k/N for a constant hazard: theta/(1-theta) + ln(1-theta) = p0*alpha_p/alpha_d.

    Eq. (3) (paper).

    Args:
        p0: probability that a decoding request ends in an iteration, 1/mu_O.
        alpha_p, alpha_d: fixed cost of a prefill / decode iteration, seconds.

    Raises:
        InputError: an argument is not positive.
    """
    _positive(p0=p0, alpha_p=alpha_p, alpha_d=alpha_d)
    target = p0 * alpha_p / alpha_d
    # In w = theta/(1-theta) the left side is w - ln(1+w): convex, so Newton from the right of
    # the root falls onto it monotonically.
    w = target + math.sqrt(target * (target + 2.0))
    for _ in range(60):
        step = (w - math.log1p(w) - target) * (1.0 + w) / w
        w -= step
        if abs(step) <= 1e-14 * w:
            break
    return w / (1.0 + w)


def throughput(
    k: float,
    theta: float,
    *,
    alpha_p: float,
    alpha_d: float,
    beta_p: float,
    beta_d: float,
    mean_prompt: float,
    mean_output: float,
) -> float:
    """Requests per second of EB(k), with zeta = -ln(1-theta). Eq. (4) (paper).

        [ (alpha_p + alpha_d*zeta*mu_O)/k + beta_p*mu_L + beta_d*mu_O ]^-1

    Multiply by mu_L + mu_O for tokens/s.

    Args:
        k: refilled slots per cycle.
        theta: k/N, below 1.
        alpha_p, alpha_d: fixed cost of a prefill / decode iteration, seconds.
        beta_p, beta_d: cost per token, seconds.
        mean_prompt, mean_output: mu_L, mu_O, tokens.
    """
    zeta = -math.log1p(-theta)
    overhead = (alpha_p + alpha_d * zeta * mean_output) / k
    return 1.0 / (overhead + beta_p * mean_prompt + beta_d * mean_output)


def hazard_correction(theta: float, p0: float, eta: float, rho: float) -> float:
    """dtheta for a hazard h(t) = p0 + eta*t that rises with age. Eq. (5) (paper), no guards.

        eta*(1-theta)^2/(p0^2*theta) * [ zeta*(theta/(1-theta) - zeta/2) + rho*(zeta - theta) ]

    Args:
        theta: theta_0 of eq. (3).
        p0, eta: level and slope of the hazard, per iteration and per iteration^2.
        rho: beta_d*N/alpha_d.
    """
    zeta = -math.log1p(-theta)
    bracket = zeta * (theta / (1.0 - theta) - zeta / 2.0) + rho * (zeta - theta)
    return eta * (1.0 - theta) ** 2 / (p0 * p0 * theta) * bracket


def paper_k(
    n: int,
    mean_output: float,
    alpha_p: float,
    alpha_d: float,
    *,
    p0: float | None = None,
    eta: float = 0.0,
    beta_d: float = 0.0,
) -> int:
    """The paper's k: eqs. (3) and (5) with its authors' guards, rounded to the nearest integer.

    Guards: p0 >= 1/mean, dtheta <= 5*theta_0, theta in [1/N, 0.8]. Eq. (5) assumes that every
    request has age 0 when a decode phase starts, which steady state does not know, and costs up
    to 16 % of throughput for a steep hazard: `best_k` is the default, this the comparison.

    Args:
        n: N, slots.
        mean_output: mu_O, tokens.
        alpha_p, alpha_d: fixed cost of a prefill / decode iteration, seconds.
        p0, eta: fitted hazard; p0 None means 1/mean_output, and eta 0 leaves eq. (5) out.
        beta_d: decode cost per request and iteration, seconds (for rho = beta_d*N/alpha_d).
    """
    _positive(n=n, mean_output=mean_output)
    floor = 1.0 / mean_output
    hazard = floor if p0 is None else max(p0, floor)
    theta = paper_theta(hazard, alpha_p, alpha_d)
    if eta:
        correction = hazard_correction(theta, hazard, eta, beta_d * n / alpha_d)
        theta += min(correction, 5.0 * theta)
    theta = min(max(theta, 1.0 / n), 0.8)
    return max(1, round(theta * n))


def insensitive_k(n: int, mean_output: float, alpha_p: float, alpha_d: float) -> int:
    """k* = max(1, round(N / (1/2 + sqrt(mu_O*alpha_d/(2*alpha_p))))): needs only the mean.

    THEORY section 2 (ours). Never above n.

    Args:
        n: N, slots.
        mean_output: mu_O, tokens.
        alpha_p, alpha_d: fixed cost of a prefill / decode iteration, seconds.
    """
    _positive(n=n, mean_output=mean_output, alpha_p=alpha_p, alpha_d=alpha_d)
    ideal = n / (0.5 + math.sqrt(mean_output * alpha_d / (2.0 * alpha_p)))
    return min(n, max(1, round(ideal)))


def renewal_k(n: int, survival: Survival | LengthLaw, alpha_p: float, alpha_d: float) -> int:
    """k* = N / sum_j S(j*tau*), tau* = argmin (alpha_p/alpha_d + tau) * sum_j S(j*tau).

    Renewal-reward form, exact in the fluid limit for any law; THEORY section 2 (ours). For use
    off line: it tries every tau up to 4,096 and then steps by 1 %.

    Args:
        n: N, slots.
        survival: S(t) = P(decode iterations of a request > t), as a function, as values
            S[0..T], or as a law. A request of O output tokens decodes O - 1 times.
        alpha_p, alpha_d: fixed cost of a prefill / decode iteration, seconds.
    """
    _positive(n=n, alpha_p=alpha_p, alpha_d=alpha_d)
    law = survival if isinstance(survival, LengthLaw) else LengthLaw.from_survival(survival)
    longest = max(1, math.ceil(law.values[-1]))
    taus = np.arange(1.0, min(longest, 4096) + 1.0)
    if longest > 4096:
        steps = math.ceil(math.log(longest / 4096) / math.log(1.01))
        taus = np.concatenate((taus, np.ceil(np.geomspace(4096, longest, steps + 1)[1:])))
    ratio = alpha_p / alpha_d
    best, cycles_at_best = math.inf, 1.0
    for chunk in np.array_split(taus, max(1, taus.size * law.values.size // 1_000_000)):
        cycles = law.cycles(chunk)
        cost = (ratio + chunk) * cycles
        i = int(np.argmin(cost))
        if cost[i] < best:
            best, cycles_at_best = float(cost[i]), float(cycles[i])
    return min(n, max(1, round(n / max(cycles_at_best, 1.0))))


def best_k(
    n: int,
    mean_output: float,
    alpha_p: float,
    alpha_d: float,
    *,
    mean_prompt: float = 0.0,
    prompt_std: float = 0.0,
    token_budget: float = math.inf,
    law: LengthLaw | None = None,
) -> int:
    """The integer k with the least fixed cost per request; THEORY section 2 (ours), online use.

        J(k) = (alpha_p * E[prefill iterations(k)] + alpha_d * tau(k)) / freed(k)

    Unlike the closed forms it sees that a prefill of k prompts takes ceil(k*mu_L/B) iterations,
    that several requests may finish in one iteration, and, with `law`, any length law.

    Args:
        n: N, slots.
        mean_output: mu_O, tokens, the first one (made by the prefill) included.
        alpha_p, alpha_d: fixed cost of a prefill / decode iteration, seconds.
        mean_prompt, prompt_std: of the prompt lengths, tokens.
        token_budget: B, tokens per iteration.
        law: law of the output lengths. Used where it matters, when alpha_p/alpha_d > mu_O/8;
            without it lengths are then taken as geometric.
    """
    _positive(n=n, mean_output=mean_output, alpha_p=alpha_p, alpha_d=alpha_d)
    lengths = {"mean_prompt": mean_prompt, "prompt_std": prompt_std}
    ks = np.arange(1.0, n + 1.0)
    if mean_prompt > 0 and not math.isinf(token_budget):
        # A prefill takes between S/B and S/B + 1 iterations: that leaves few k worth a look.
        smooth = overhead_per_request(ks, n, mean_output, alpha_p, alpha_d, law=law)
        ks = ks[smooth - alpha_p / ks <= smooth.min()]
    overhead = overhead_per_request(
        ks, n, mean_output, alpha_p, alpha_d, law=law, token_budget=token_budget, **lengths
    )
    return int(ks[np.argmin(overhead)])


def long_phases(mean_output: float, alpha_p: float, alpha_d: float) -> bool:
    """Whether the best decode phase is so long against mu_O that the law of lengths matters."""
    return alpha_p / alpha_d > mean_output / 8.0


def overhead_per_request(
    k: FloatArray,
    n: int,
    mean_output: float,
    alpha_p: float,
    alpha_d: float,
    *,
    mean_prompt: float = 0.0,
    prompt_std: float = 0.0,
    token_budget: float = math.inf,
    law: LengthLaw | None = None,
) -> FloatArray:
    """J(k) of `best_k`, the fixed cost of iterations per request, seconds, for thresholds `k`."""
    coarse = long_phases(mean_output, alpha_p, alpha_d)
    phases = cycle(
        k,
        n,
        mean_output,
        law=law if coarse else None,
        memoryless=coarse,
        mean_prompt=mean_prompt,
        prompt_std=prompt_std,
        token_budget=token_budget,
    )
    fixed = alpha_p * phases.prefill_iterations + alpha_d * phases.decode_iterations
    result: FloatArray = fixed / phases.freed
    return result


def exact_geometric_overhead(
    n: int, mean_output: float, alpha_p: float, alpha_d: float
) -> FloatArray:
    """Fixed cost per request of EB(1), ..., EB(n) for geometric lengths, exactly, in seconds.

    Discrete time, finite N (ours). Each of n requests ends in each decode iteration with
    probability p = 1/mean_output, so after t iterations the number running is Binomial(n, q^t).
    It only falls; hence with V(a) = sum_t P(a running after t), the phase of EB(k) lasts
    sum_{a > n-k} V(a) iterations and frees p * sum_{a > n-k} a*V(a) slots - more than k when
    several requests end in the iteration that crosses the threshold. All of them are refilled.
    """
    _positive(n=n, alpha_p=alpha_p, alpha_d=alpha_d)
    if mean_output <= 1:
        raise InputError(f"mean_output: {mean_output:g} must be above 1")
    p = 1.0 / mean_output
    # After `horizon` iterations all n are gone, up to 1e-10.
    horizon = math.ceil((math.log(n) + 23.0) / -math.log1p(-p))
    running = np.arange(n, 0, -1.0)
    ways = gammaln(n + 1.0) - gammaln(running + 1.0) - gammaln(n - running + 1.0)
    visits = np.zeros(n)
    visits[0] = 1.0
    for times in np.array_split(np.arange(1.0, horizon), max(1, horizon * n // 200_000)):
        alive = times[:, None] * math.log1p(-p)
        gone = np.log(-np.expm1(alive))
        visits += np.exp(ways + running * alive + (n - running) * gone).sum(axis=0)
    lasted = np.cumsum(visits)
    freed = p * np.cumsum(running * visits)
    result: FloatArray = (alpha_p + alpha_d * lasted) / freed
    return result


def exact_geometric_k(n: int, mean_output: float, alpha_p: float, alpha_d: float) -> int:
    """The optimal k for geometric lengths, exactly; see `exact_geometric_overhead`.

    Args:
        n: N, slots.
        mean_output: mean decode iterations per request, above 1.
        alpha_p, alpha_d: fixed cost of a prefill / decode iteration, seconds.
    """
    return int(np.argmin(exact_geometric_overhead(n, mean_output, alpha_p, alpha_d))) + 1


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise InputError(f"{name}: {value!r} must be above 0")
