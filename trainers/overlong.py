"""A soft limit on length, for use beside a hard one."""

from __future__ import annotations

from trajgym.errors import ConfigError

__all__ = ["overlong_penalty"]


def overlong_penalty(tokens: int, *, limit: int, buffer: int) -> float:
    """Return what to add to the reward of a reply for its length.

    0 up to ``limit − buffer`` tokens, from there linearly down to −1 at the limit, and −1 beyond. Being cut at the
    limit is then no longer the first sign that a reply grew too long.

    Args:
        tokens: Length of the reply, at least 0.
        limit: L_max, the hard limit in tokens.
        buffer: L_cache, the tokens before the limit in which the penalty grows, from 1 to ``limit``.

    Raises:
        ConfigError: When a number is out of its range, naming it.

    Source: DAPO, arXiv 2503.14476, equation 13.

    >>> [overlong_penalty(n, limit=100, buffer=20) for n in (50, 80, 90, 100, 101)]
    [0.0, 0.0, -0.5, -1.0, -1.0]
    """
    if not 1 <= buffer <= limit:
        raise ConfigError(f"The buffer of the overlong penalty must lie in 1 … limit ({limit!r}), got {buffer!r}.")
    if tokens < 0:
        raise ConfigError(f"A reply cannot have {tokens!r} tokens.")
    beyond = tokens - (limit - buffer)
    return -min(beyond / buffer, 1.0) if beyond > 0 else 0.0
