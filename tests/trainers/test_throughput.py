"""The forecast of a run with workers: against a simulation of its parts, and at its ends."""

from __future__ import annotations

import dataclasses
import heapq
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajgym.errors import ConfigError
from trajgym.trainers.throughput import Costs, forecast, send_seconds, workers_needed

COSTS = Costs(
    piece_seconds=20.0,
    piece_trajectories=8,
    weight_bytes=16e9,
    load_seconds=1.0,
    trajectory_bytes=50e3,
    read_seconds=1e-3,
    credit_seconds=2e-3,
    learn_seconds=0.01,
    link=10e9,
    workers_per_machine=8,
)


@given(st.integers(1, 60), st.integers(1, 60), st.floats(0.1, 10.0))
def test_playing_takes_what_workers_take_who_get_the_next_piece_when_they_are_free(
    workers: int, pieces: int, seconds: float
) -> None:
    free = [0.0] * workers
    for _ in range(pieces):
        heapq.heappush(free, heapq.heappop(free) + seconds)
    costs = Costs(seconds, 4, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    assert forecast(costs, workers=workers, batch=4 * pieces).update_seconds == pytest.approx(max(free))


@given(st.integers(1, 700))
def test_weights_reach_everybody_when_whoever_has_them_sends_them_on(machines: int) -> None:
    having, rounds = 1, 0
    while having < machines + 1:
        having, rounds = 2 * having, rounds + 1
    assert send_seconds(machines, 6.0, 2.0) == rounds * 3.0


def test_stages_in_turn_take_the_sum_of_their_times() -> None:
    found = forecast(COSTS, workers=16, batch=256)
    sending = 2 * 16e9 / 10e9 + 1.0  # two machines, two rounds
    playing = 2 * 20.0
    rest = 256 * (1e-3 + 2e-3 + 0.01)
    assert found.update_seconds == pytest.approx(sending + playing + rest)
    assert found.in_turn == pytest.approx(256 / found.update_seconds)
    assert found.limit == "workers"
    assert found.overlapped == pytest.approx(16 * 8 / 20.0)


@pytest.mark.parametrize(
    ("changes", "limit", "rate"),
    [
        ({}, "learner", 100.0),
        ({"learn_seconds": 1e-3}, "credit", 500.0),
        ({"learn_seconds": 1e-3, "credit_seconds": 1e-4}, "ingest", 1000.0),
        ({"learn_seconds": 1e-3, "credit_seconds": 1e-4, "trajectory_bytes": 50e6}, "ingest", 200.0),
        ({"learn_seconds": 1e-3, "weight_bytes": 16e10}, "weights", 80_000 / (10 * 16.0 + 1.0)),
    ],
)
def test_the_limit_moves_from_stage_to_stage(changes: dict[str, float], limit: str, rate: float) -> None:
    found = forecast(dataclasses.replace(COSTS, **changes), workers=5000, batch=80_000)
    assert (found.limit, found.overlapped) == (limit, pytest.approx(rate))
    assert found.in_turn < found.overlapped


def test_what_is_under_way_over_the_batch_is_how_old_it_is_when_it_comes() -> None:
    fast = dataclasses.replace(COSTS, learn_seconds=0.0, credit_seconds=0.0, read_seconds=0.0, weight_bytes=0.0)
    found = forecast(dataclasses.replace(fast, load_seconds=0.0), workers=100, batch=400)
    assert found.limit == "workers"
    assert found.staleness == pytest.approx(100 * 8 / 400)


def test_the_number_of_workers_at_which_they_are_enough() -> None:
    needed = workers_needed(COSTS, batch=8000)
    assert forecast(COSTS, workers=needed, batch=8000).limit != "workers"
    assert forecast(COSTS, workers=needed - 1, batch=8000).limit == "workers"
    assert needed == 251  # at 250 both do 100 trajectories per second
    free = Costs(1.0, 1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    assert workers_needed(free, batch=10, most=50) == 50


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"piece_seconds": 0.0}, "piece_seconds and link must be above 0"),
        ({"link": 0.0}, "piece_seconds and link must be above 0"),
        ({"learn_seconds": -1.0}, "learn_seconds must be a finite number"),
        ({"read_seconds": math.nan}, "read_seconds must be a finite number"),
        ({"workers_per_machine": 0}, "workers_per_machine must be at least 1"),
    ],
)
def test_costs_that_cannot_be_are_named(changes: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(COSTS, **changes)


def test_counts_below_one_are_named() -> None:
    for workers, batch in ((0, 1), (1, 0)):
        with pytest.raises(ConfigError, match="must be at least 1, got 0"):
            forecast(COSTS, workers=workers, batch=batch)


def test_the_table_of_the_page_is_the_forecast() -> None:
    one = Costs(40.0, 8, 16e9, 16e9 / 15e9, 47e3, 0.19e-3, 1e-3, 0.03, 10e9, 8)  # as the page says
    many = dataclasses.replace(one, learn_seconds=0.03 / 64)
    page = (Path(__file__).resolve().parents[2] / "docs" / "ray.md").read_text(encoding="utf-8")
    rows = [row.split("|")[1:-1] for row in page.splitlines() if row.startswith("| ") and row[2].isdigit()]
    assert len(rows) == 6
    for row in rows:
        first, batch, *said = (cell.strip().replace(",", "") for cell in row)
        a, b = (forecast(costs, workers=int(first), batch=int(batch)) for costs in (one, many))
        rates = [f"{x:.1f}" for x in (a.in_turn, a.overlapped, b.in_turn, b.overlapped, b.staleness)]
        assert said == [rates[0], rates[1], a.limit, rates[2], rates[3], b.limit, rates[4]]
    assert workers_needed(one, batch=8000) == 167
