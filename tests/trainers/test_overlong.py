"""The soft limit on length."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajgym.errors import ConfigError
from trajgym.trainers.overlong import overlong_penalty


@pytest.mark.parametrize(
    ("tokens", "penalty"),
    [(0, 0.0), (16384, 0.0), (16385, -1 / 4096), (18432, -0.5), (20479, -4095 / 4096), (20480, -1.0), (99999, -1.0)],
)
def test_the_published_setting(tokens: int, penalty: float) -> None:
    assert overlong_penalty(tokens, limit=20480, buffer=4096) == pytest.approx(penalty)


def test_a_buffer_may_be_the_whole_reply() -> None:
    assert overlong_penalty(0, limit=10, buffer=10) == 0.0
    assert overlong_penalty(3, limit=10, buffer=10) == pytest.approx(-0.3)


@given(st.integers(1, 500), st.integers(1, 500), st.integers(0, 1200))
def test_it_falls_from_zero_to_minus_one(limit: int, buffer: int, tokens: int) -> None:
    buffer = min(buffer, limit)
    here, longer = (overlong_penalty(n, limit=limit, buffer=buffer) for n in (tokens, tokens + 1))
    assert -1.0 <= longer <= here <= 0.0
    assert here - longer <= 1 / buffer + 1e-12


@pytest.mark.parametrize(("limit", "buffer"), [(10, 0), (10, 11), (10, -3), (0, 0)])
def test_a_buffer_that_does_not_fit_is_refused(limit: int, buffer: int) -> None:
    with pytest.raises(ConfigError, match="buffer"):
        overlong_penalty(5, limit=limit, buffer=buffer)


def test_a_negative_length_is_refused() -> None:
    with pytest.raises(ConfigError, match="-1 tokens"):
        overlong_penalty(-1, limit=10, buffer=5)
