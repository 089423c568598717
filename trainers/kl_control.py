"""A coefficient of the KL that keeps the KL in a band.

``e = clip(KL / edge − 1, ±0.2)`` is how far the KL lies outside, ``edge`` being the nearer end of the band, and 0
inside; ``β ← β·(1 + 0.1·e)``. A band takes the place of the single target, so that a healthy KL is left alone.

Source: D. Ziegler et al., Fine-Tuning Language Models from Human Preferences, arXiv 1909.08593, section 2.2.

>>> [round(next_kl_coef(kl, 0.05), 4) for kl in (0.0, 0.009, 0.05, 0.105, 5.0)]
[0.049, 0.0495, 0.05, 0.0502, 0.051]
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from trajgym.errors import ConfigError

__all__ = ["KL_BAND", "KLControl", "next_kl_coef"]

KL_BAND = (0.01, 0.1)
"""Nats per token between which a run is healthy."""

_GAIN, _LIMIT = 0.1, 0.2
_LEAST, _MOST = 1e-4, 1.0  # of the coefficient: it must be able to come back


def next_kl_coef(kl: float, coef: float, target_band: tuple[float, float] = KL_BAND) -> float:
    """Return the coefficient for the next update.

    Args:
        kl: KL to the reference in this one, nats per token. What is not a finite number changes nothing.
        coef: The coefficient in this one, above 0.
        target_band: Lowest and highest KL that is wanted, nats per token.

    Raises:
        ConfigError: For a coefficient that is not above 0, or a band that is none.
    """
    low, high = target_band
    if not 0 < low <= high < math.inf:
        raise ConfigError(f"The band of the KL must be 0 < low <= high, got {target_band}.")
    if not 0 < coef < math.inf:
        raise ConfigError(f"kl_coef must be above 0 to be controlled, got {coef}; without a KL there is no reference.")
    if not math.isfinite(kl) or low <= kl <= high:
        return coef
    error = max(-_LIMIT, min(_LIMIT, kl / (low if kl < low else high) - 1.0))
    # Only a step out of the bounds is cut: a coefficient that was set outside of them stays as it is.
    return max(min(coef, _LEAST), min(max(coef, _MOST), coef * (1.0 + _GAIN * error)))


class KLControl:
    """The coefficient over a run.

    Args:
        coef: The one to begin with, above 0.
        target_band: See :func:`next_kl_coef`.
    """

    def __init__(self, coef: float, target_band: tuple[float, float] = KL_BAND) -> None:
        next_kl_coef(math.nan, coef, target_band)  # refuses what cannot be controlled
        self.coef, self._band = coef, target_band

    def update(self, kl: float) -> float:
        """Take in the KL of a finished update, nats per token, and return the coefficient for the next one."""
        self.coef = next_kl_coef(kl, self.coef, self._band)
        return self.coef

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run must know; the coefficient is all there is."""
        return {"coef": self.coef}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        if state:
            self.coef = float(state["coef"])
