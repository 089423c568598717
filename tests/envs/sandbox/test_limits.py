"""What a session may use: the values that can be, and what is said about those that cannot."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from trajgym.envs.sandbox import Limits
from trajgym.errors import ConfigError


def test_the_wall_time_is_five_times_the_processor_time_unless_told() -> None:
    assert Limits(cpu=0.3).wall_seconds == pytest.approx(1.5)
    assert Limits(cpu=0.3, wall=20).wall_seconds == 20
    assert Limits(cpu=0.3, wall=5 * 0.3).wall_seconds == pytest.approx(1.5)
    assert Limits(cpu=0.1, wall=0.5).wall_seconds == 0.5


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(
            (name, value)
            for name in ("cpu", "session_cpu")
            for value in (0, -1, 0.0, math.inf, math.nan, True, "1", None)
        ),
        *(("wall", value) for value in (9.99, 0, -1, math.inf, math.nan, True, "20")),
        *(("memory", value) for value in (0, -1, (16 << 20) - 1, 1 << 62, 64e6, True, None, "64")),
        *(("output", value) for value in (0, 99, -5, 1e4, 1 << 62, False, None)),
        *(("output_bytes", value) for value in (0, 4095, 1e6, 1 << 62, None)),
        *(("scratch", value) for value in (-1, 1.5, 1 << 62, True, "1")),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"Limits: {field} must be .*got {value!r}"):
        Limits(**{field: value})


def test_a_wall_time_too_close_to_the_processor_time_is_refused_with_the_reason() -> None:
    with pytest.raises(
        ConfigError, match=r"10 to 1,000,000,000 seconds \(5 × cpu, 2 s: a busy machine must not decide"
    ):
        Limits(cpu=2, wall=9)


@pytest.mark.parametrize(
    ("field", "value"),
    [("cpu", 0.001), ("memory", 16 << 20), ("output", 100), ("output_bytes", 4096), ("scratch", 0), ("scratch", 1)],
)
def test_the_least_values_are_allowed(field: str, value: Any) -> None:
    assert getattr(Limits(**{field: value}), field) == value


def test_they_cannot_be_changed_and_are_checked_when_replaced() -> None:
    limits = Limits()
    with pytest.raises(dataclasses.FrozenInstanceError):
        limits.cpu = 9.0  # type: ignore[misc]
    assert dataclasses.replace(limits, cpu=1.0).wall_seconds == 5
    with pytest.raises(ConfigError):
        dataclasses.replace(limits, cpu=-1.0)
