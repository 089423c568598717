"""The controlled coefficient: it follows the published rule, stays put in the band, and comes back from anywhere."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajgym.errors import ConfigError
from trajgym.trainers.kl_control import KL_BAND, KLControl, next_kl_coef

LOW, HIGH = KL_BAND


@pytest.mark.parametrize(
    ("kl", "error"), [(0.11, 0.1), (0.12, 0.2), (0.5, 0.2), (0.009, -0.1), (0.0, -0.2), (-0.1, -0.2)]
)
def test_a_band_of_no_width_is_the_published_rule(kl: float, error: float) -> None:
    target = HIGH if error > 0 else LOW
    expected = 0.05 * (1 + 0.1 * max(-0.2, min(0.2, (kl - target) / target)))
    assert next_kl_coef(kl, 0.05, (target, target)) == pytest.approx(expected)
    assert next_kl_coef(kl, 0.05) == pytest.approx(0.05 * (1 + 0.1 * error))


@given(st.floats(LOW, HIGH), st.floats(1e-6, 10))
def test_inside_of_the_band_nothing_changes(kl: float, coef: float) -> None:
    assert next_kl_coef(kl, coef) == coef


@pytest.mark.parametrize("kl", [math.nan, math.inf, -math.inf])
def test_a_kl_that_is_no_number_changes_nothing(kl: float) -> None:
    assert next_kl_coef(kl, 0.05) == 0.05


@given(st.floats(-1, 100), st.floats(1e-4, 1.0))
def test_it_moves_the_right_way_by_two_percent_at_most(kl: float, coef: float) -> None:
    after = next_kl_coef(kl, coef)
    assert 1e-4 <= after <= 1.0
    assert abs(after / coef - 1) <= 0.02 + 1e-12
    assert (after - coef) * (kl - HIGH if kl > HIGH else kl - LOW if kl < LOW else 0) >= 0


def test_it_stays_in_its_bounds_and_comes_back() -> None:
    control = KLControl(0.05)
    for _ in range(1000):
        control.update(3.0)
    assert control.coef == 1.0
    for _ in range(1000):
        control.update(0.0)
    assert control.coef == 1e-4
    assert control.update(3.0) > 1e-4


def test_a_coefficient_outside_of_the_bounds_is_not_thrown_back() -> None:
    assert next_kl_coef(3.0, 5.0) == 5.0
    assert next_kl_coef(0.0, 5.0) == pytest.approx(4.9)
    assert next_kl_coef(0.0, 1e-6) == 1e-6


def test_it_holds_a_kl_that_answers_to_it() -> None:
    control = KLControl(0.01)
    for _ in range(400):
        kl = 0.005 / control.coef  # the stronger the penalty, the smaller the KL
        control.update(kl)
    assert LOW <= 0.005 / control.coef <= HIGH * 1.01


def test_a_resumed_run_goes_on_exactly() -> None:
    series = [0.3, 0.2, 0.15, 0.05, 0.004, 0.0]
    whole = KLControl(0.05)
    expected = [whole.update(kl) for kl in series]
    before = KLControl(0.05)
    first = [before.update(kl) for kl in series[:3]]
    after = KLControl(0.05)
    after.load_state_dict(before.state_dict())
    assert first + [after.update(kl) for kl in series[3:]] == expected
    after.load_state_dict({})  # a checkpoint from before there was a control
    assert after.coef == expected[-1]


@pytest.mark.parametrize("band", [(0.0, 0.1), (0.2, 0.1), (0.1, math.inf), (math.nan, 0.1)])
def test_a_band_that_is_none_is_refused(band: tuple[float, float]) -> None:
    with pytest.raises(ConfigError, match="band"):
        KLControl(0.05, band)


@pytest.mark.parametrize("coef", [0.0, -0.1, math.nan, math.inf])
def test_there_must_be_something_to_control(coef: float) -> None:
    with pytest.raises(ConfigError, match="kl_coef"):
        KLControl(coef)
