"""The lower bound of an update and what it is compared with, against numbers reckoned by hand."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from trajgym.trainers.efficiency import (
    Passes,
    StepCounts,
    count_step,
    efficiency,
    peak_memory,
    telling_tokens,
)
from trajgym.trainers.flops import Chain, Work
from trajgym.trainers.peaks import Peaks
from trajgym.trainers.shape import ModelShape
from trajgym.types import Action, Group, Observation, Step, Task, TokenStream, Trajectory

# 100 weights in the body, 21 in the head, no attention to speak of: heads have width 0
SHAPE = ModelShape(121, 21, True, 7, 3, 1, 1, 1, 0, 6, False, ())
PEAKS = Peaks(flops=1000.0, bandwidth=484.0, device="paper", dtype="float32")
COUNTS = StepCounts(
    generated=Work(tokens=40, keys=0, logits=10),
    chains=(Chain(3, 0.5), Chain(5, 0.0)),
    read=0,
    slots=4,
    learned=Work(tokens=20, keys=0, logits=5),
    passes=Passes(old=1, reference=1, train=1),
    processed=200,
    telling=6,
)


def test_by_hand() -> None:
    found = efficiency(SHAPE, COUNTS, {"train": 20.0, "lockstep": 5.0}, 50.0, PEAKS)
    generation = (2 * 100 * 40 + 2 * 21 * 10) / 1000
    decoding = 5 * 4 * 121 / 484  # the longest episode's steps each read all weights
    assert (generation, decoding) == (8.42, 5.0)
    forward = 2 * 100 * 20 + 2 * 21 * 5
    assert found.limit == "compute"
    assert found.bound == pytest.approx(generation + (2 * forward + 3 * forward) / 1000)
    assert found.eta == pytest.approx(found.bound / 50)
    assert found.mfu == pytest.approx(3 * forward / 1000 / 20)
    assert found.useful_token_share == (40 + 3 * 20) / 200
    assert found.goodput == 6 / 50
    assert found.lockstep_loss == 0.1


def test_decoding_is_bound_by_reading_weights_and_cache() -> None:
    slow = dataclasses.replace(PEAKS, bandwidth=121.0)
    wide = dataclasses.replace(SHAPE, kv_heads=1, head_size=11, layers=1)
    counts = dataclasses.replace(COUNTS, chains=(Chain(3, 0.5), Chain(5, 0.0)), read=22, slots=1)
    found = efficiency(wide, counts, {}, 50.0, slow, itemsize=2)
    # with one slot the eight steps come one after the other; each of 22 keys is two times eleven numbers
    rollout = 8 * 2 * 121 / 121 + 2 * 22 * 22 / 121
    assert found.limit == "bandwidth"
    assert found.bound == pytest.approx(rollout + 5 * (2 * 100 * 20 + 2 * 21 * 5) / 1000)


def test_a_slow_tool_bounds_its_episode() -> None:
    counts = dataclasses.replace(COUNTS, chains=(Chain(3, 60.0), Chain(5, 0.0)))
    found = efficiency(SHAPE, counts, {}, 100.0, PEAKS)
    assert found.limit == "latency"
    assert found.bound == pytest.approx(3 * 1.0 + 60.0 + 5 * 4210 / 1000)


def test_what_is_played_beside_the_learning_shares_its_device_and_hides_waiting() -> None:
    learning = 5 * 4210 / 1000
    compute = efficiency(SHAPE, COUNTS, {"lockstep": 5.0}, 50.0, PEAKS, waited=2.0)
    assert compute.limit == "compute"
    assert compute.bound == pytest.approx(8.42 + learning)
    assert compute.lockstep_loss == 2 / 50
    assert efficiency(SHAPE, COUNTS, {"lockstep": 5.0}, 50.0, PEAKS, waited=9.0).lockstep_loss == 5 / 50
    counts = dataclasses.replace(COUNTS, chains=(Chain(3, 60.0), Chain(5, 0.0)))
    latency = efficiency(SHAPE, counts, {}, 100.0, PEAKS, waited=0.0)
    assert latency.limit == "latency"
    assert latency.bound == pytest.approx(3 * 1.0 + 60.0)
    counts = dataclasses.replace(COUNTS, chains=(Chain(3, 10.0), Chain(5, 0.0)))
    both = efficiency(SHAPE, counts, {}, 100.0, PEAKS, waited=0.0)
    assert both.limit == "compute"  # episodes that wait for less than the learning takes are hidden behind it
    assert both.bound == pytest.approx(8.42 + learning)


def test_adapters_need_less_and_ranks_share() -> None:
    full = efficiency(SHAPE, COUNTS, {"train": 1.0}, 50.0, PEAKS)
    adapted = efficiency(SHAPE, COUNTS, {"train": 1.0}, 50.0, PEAKS, adapters=1)
    assert full.bound - adapted.bound == pytest.approx((4210 - 6 * 20) / 1000)
    assert adapted.mfu == pytest.approx(full.mfu - (4210 - 120) / 1000)
    two = efficiency(SHAPE, COUNTS, {"train": 1.0}, 50.0, PEAKS, ranks=2)
    assert two.mfu == pytest.approx(full.mfu / 2)
    # each rank decodes its own streams, but the longest episode takes as long as before
    assert (two.limit, two.bound) == ("bandwidth", pytest.approx(5.0 + 5 * 4210 / 1000 / 2))


def test_workers_play_in_the_place_of_ranks() -> None:
    learning = 5 * 4210 / 1000
    four = efficiency(SHAPE, COUNTS, {}, 50.0, PEAKS, workers=4)
    assert four.bound == pytest.approx(5.0 + learning)  # the longest episode; what is learned is learned by one
    beside = efficiency(SHAPE, COUNTS, {}, 50.0, PEAKS, waited=0.0, workers=4)
    assert beside.bound == pytest.approx(learning)  # on a device of its own


def test_a_value_model_has_no_head() -> None:
    counts = dataclasses.replace(COUNTS, passes=Passes(train=0, value=1, value_train=2))
    found = efficiency(SHAPE, counts, {"train": 4.0}, 50.0, PEAKS)
    assert found.bound == pytest.approx(8.42 + (4000 + 2 * 3 * 4000) / 1000)
    assert found.mfu == pytest.approx(24 / 4)
    assert found.useful_token_share == (40 + 3 * 20) / 200


def test_nothing_done_is_no_division_by_zero() -> None:
    nothing = StepCounts(Work(), (), 0, 1, Work(), Passes(), 0, 0)
    metrics = efficiency(SHAPE, nothing, {}, 0.0, PEAKS).metrics()
    assert set(metrics.values()) == {0.0}
    assert all(name.startswith("efficiency/") for name in metrics)


def played(task: str, ids: tuple[int, ...], mask: tuple[int, ...]) -> Trajectory:
    stream = TokenStream(ids, mask, tuple(m - 1 for m in mask), (0.0,) * len(ids))
    return Trajectory(Task(task, "", ""), (), (Step(Action(""), Observation()),), (stream,))


def test_counts_of_a_batch() -> None:
    right, wrong = played("a", (1, 2, 3, 4), (0, 0, 1, 1)), played("a", (1, 2, 5), (0, 0, 1))
    dull = played("b", (7, 8, 9), (0, 1, 1))
    groups = [Group(right.task, (right, wrong)), Group(dull.task, (dull, dull))]
    advantages = [[[0.5], [-0.5]], [[0.0], [0.0]]]
    passes = Passes(reference=1)
    counts = count_step([right, wrong, dull, dull], groups, advantages, passes=passes, slots=8, processed=99)
    assert counts.generated == Work(3 + 2, 6 + 3, 2 + 2)  # what the other ones begin with is there already
    assert counts.chains == (Chain(1, 0.0), Chain(0, 0.0), Chain(1, 0.0), Chain(1, 0.0))
    assert counts.read == 3 + 2  # of the two equal rows, once
    assert counts.learned == Work(3, 6, 2)
    assert (counts.telling, counts.processed, counts.slots, counts.passes) == (3, 99, 8, passes)
    with_kl = count_step([right], groups, advantages, passes=passes, slots=8, processed=99, kl_acts=True)
    assert with_kl.learned == Work(3 + 2, 6 + 3, 2 + 2)  # of two equal rows one is computed
    half = count_step([right, wrong], groups[:1], [[[0.5], [0.0]]], passes=passes, slots=8, processed=99)
    assert half.learned == Work(3, 6, 2)
    none = count_step([right, wrong], groups[:1], [[[0.0], [-0.5]]], passes=passes, slots=8, processed=99)
    assert none.learned == Work(2, 3, 1)


def test_credit_by_token_is_told_by_token() -> None:
    right = played("a", (1, 2, 3, 4), (0, 0, 1, 1))
    assert telling_tokens([Group(right.task, (right,))], [[[[0.0, 0.3]]]]) == 1


def test_peak_memory_of_this_process() -> None:
    before = peak_memory("cpu")
    kept = torch.ones(1 << 25)  # 128 MiB
    assert before > 1 << 20
    assert peak_memory("cpu") >= max(before, kept.nbytes)
