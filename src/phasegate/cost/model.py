"""Cost models: the composition of an iteration in, seconds out (THEORY section 1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class CostModel(Protocol):
    """Seconds of one iteration, host time included."""

    @property
    def alpha_prefill(self) -> float:
        """Fixed cost of a prefill-only iteration, host time included, seconds."""
        ...

    @property
    def alpha_decode(self) -> float:
        """Fixed cost of a decode-only iteration, host time included, seconds."""
        ...

    def seconds(
        self, prefill_tokens: float, prefill_attention: float, decodes: float, context: float
    ) -> float:
        """Seconds of an iteration.

        Args:
            prefill_tokens: n_p, prompt tokens processed now.
            prefill_attention: Q = sum over prompt slices of length*(start + length/2), tokens^2.
            decodes: n_d, requests that decode.
            context: X, sum of the context lengths of the decoding requests, tokens.
        """
        ...


@dataclass(frozen=True, slots=True)
class InterferenceCost:
    """The default model: prefill disturbs decode *attention*, so it grows with context.

        T = host + alpha + beta_p*n_p + beta_q*Q + b_d*n_d + k_d*X*(kappa if mixed else 1)

    with alpha = alpha_p if no request decodes in the iteration, else alpha_d.

    Attributes:
        alpha_p, alpha_d: fixed cost of an iteration without / with decodes, seconds.
        beta_p: seconds per prompt token.
        beta_q: seconds per token^2 of prefill attention.
        b_d: seconds per decoding request.
        k_d: seconds per context token of the decoding requests.
        kappa: >= 1, factor on decode attention when the iteration also prefills.
        host: seconds between two iterations (scheduling, sampling, streaming).
    """

    alpha_p: float
    alpha_d: float
    beta_p: float
    b_d: float
    k_d: float
    kappa: float = 1.0
    beta_q: float = 0.0
    host: float = 0.0

    @property
    def alpha_prefill(self) -> float:
        """alpha_p + host, seconds."""
        return self.alpha_p + self.host

    @property
    def alpha_decode(self) -> float:
        """alpha_d + host, seconds."""
        return self.alpha_d + self.host

    def seconds(
        self, prefill_tokens: float, prefill_attention: float, decodes: float, context: float
    ) -> float:
        """Seconds of an iteration; see `CostModel.seconds`. An empty iteration costs nothing."""
        if decodes > 0:
            attention = self.k_d * context
            if prefill_tokens > 0:
                return (
                    self.host
                    + self.alpha_d
                    + self.b_d * decodes
                    + self.kappa * attention
                    + self.beta_p * prefill_tokens
                    + self.beta_q * prefill_attention
                )
            return self.host + self.alpha_d + self.b_d * decodes + attention
        if prefill_tokens > 0:
            return (
                self.host
                + self.alpha_p
                + self.beta_p * prefill_tokens
                + self.beta_q * prefill_attention
            )
        return 0.0


@dataclass(frozen=True, slots=True)
class LinearCost:
    """The linear model of the paper (arXiv 2606.00516): T = alpha + beta * tokens.

    A mixed iteration costs alpha_m + (a + b*r + c*r^2) * tokens, r = decodes / tokens
    (beta_MB(r), convex in r). Context lengths do not matter here.

    Attributes:
        alpha_p, beta_p: prefill-only iteration, seconds and seconds per token.
        alpha_d, beta_d: decode-only iteration, seconds and seconds per request.
        alpha_m, a, b, c: mixed iteration.
        host: seconds between two iterations.
    """

    alpha_p: float
    beta_p: float
    alpha_d: float
    beta_d: float
    a: float
    b: float
    c: float = 0.0
    alpha_m: float = 0.0
    host: float = 0.0

    @property
    def alpha_prefill(self) -> float:
        """alpha_p + host, seconds."""
        return self.alpha_p + self.host

    @property
    def alpha_decode(self) -> float:
        """alpha_d + host, seconds."""
        return self.alpha_d + self.host

    def seconds(
        self, prefill_tokens: float, prefill_attention: float, decodes: float, context: float
    ) -> float:
        """Seconds of an iteration; see `CostModel.seconds`. An empty iteration costs nothing."""
        if prefill_tokens > 0 and decodes > 0:
            tokens = prefill_tokens + decodes
            r = decodes / tokens
            return self.host + self.alpha_m + (self.a + self.b * r + self.c * r * r) * tokens
        if prefill_tokens > 0:
            return self.host + self.alpha_p + self.beta_p * prefill_tokens
        if decodes > 0:
            return self.host + self.alpha_d + self.beta_d * decodes
        return 0.0
