"""What the benchmark of rollout workers plays, without Ray."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def ray_workers() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module("ray_workers")
    for name in ("ray_workers", "rounds", "machine"):
        sys.modules.pop(name, None)


def test_every_episode_has_as_many_turns_as_are_counted(ray_workers: Any) -> None:
    player = ray_workers.Player(0.0)
    player.prepare().open()
    for piece in ray_workers.pieces_of(2):
        (group,) = player.play(piece).open().share.groups
        assert [len(t.steps) for t in group] == [ray_workers.TURNS] * ray_workers.SIZE
        assert all(t.valid and not any(step.error for step in t.steps) for t in group)
        assert [r.content for step in group[0].steps for r in step.results] == ["0", "1", "2"]
    player.close().open()


def test_weights_are_copied_and_timed(ray_workers: Any) -> None:
    seconds = ray_workers.Player(0.0).load({"w": ("float32", np.ones(4, np.float32))}, 0.0).open()
    assert seconds >= 0.0
