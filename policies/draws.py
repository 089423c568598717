"""Random draws that depend on a stream's seed and on how many tokens it has drawn, and on nothing else.

A generator with a state would hand out different numbers when streams run beside one another or start at
different times. A hash of ``(seed, counter)`` cannot.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["int64", "pick", "uniforms"]


def int64(value: int) -> int:
    """Return the signed 64-bit integer that is congruent to ``value`` modulo 2^64."""
    return (value + 2**63) % 2**64 - 2**63


_GOLDEN = int64(0x9E3779B97F4A7C15)
_FIRST = int64(0xBF58476D1CE4E5B9)
_SECOND = int64(0x94D049BB133111EB)


def _mix(z: Tensor) -> Tensor:
    # Tensors have no unsigned shift: the mask takes away the copies of the sign bit.
    z = (z ^ ((z >> 30) & (2**34 - 1))) * _FIRST
    z = (z ^ ((z >> 27) & (2**37 - 1))) * _SECOND
    return z ^ ((z >> 31) & (2**33 - 1))


def uniforms(seeds: Tensor, counters: Tensor) -> Tensor:
    """Return one number in [0, 1) for each pair of seed and counter.

    Args:
        seeds: int64, any values.
        counters: int64, any values.

    Shape: ``seeds`` and ``counters`` are broadcast against each other, and the float64 result is as both together.

    Source: the finaliser of SplitMix64 (Steele, Lea and Flood 2014), applied to the seed and then to the seed's
    hash plus the counter's multiple of the golden ratio.
    """
    z = _mix(_mix(seeds + _GOLDEN) + counters * _GOLDEN)
    return ((z >> 11) & (2**53 - 1)).to(torch.float64) * 2.0**-53


def pick(logprobs: Tensor, uniform: Tensor) -> Tensor:
    """Invert each row's cumulative distribution at one number.

    Args:
        logprobs: Log-probabilities (nats), of any floating type.
        uniform: float64 in [0, 1).

    Shape: ``(n, vocabulary)`` and ``(n,)`` give ``(n,)`` int64.
    """
    # Summed in float64: in float32 the last tokens of a large vocabulary would vanish.
    # softmax, though exp would do: exp of what is all but impossible is denormal, and takes many times as long.
    cumulative = torch.cumsum(torch.softmax(logprobs, dim=-1), dim=-1, dtype=torch.float64)
    target = uniform[:, None] * cumulative[:, -1:]
    # right=True: the first token whose sum exceeds the target, so one with probability 0 is never picked.
    return torch.searchsorted(cumulative, target, right=True)[:, 0].clamp(max=logprobs.shape[-1] - 1)
