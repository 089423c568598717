"""The embedded model improves on held-out problems: three seeds, and an interval that excludes zero."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean, stdev

import pytest

from trajgym.scripts.quickstart import measure
from trajgym.trainers.config import load_config
from trajgym.trainers.grpo import train


@pytest.mark.slow
def test_return_rises_on_held_out_problems(tmp_path: Path) -> None:
    differences: list[float] = []
    for seed in range(3):
        options = ["--seed", str(seed), "--updates", "20", "--output-dir", str(tmp_path), "--monitors"]
        config = load_config("quickstart", options)
        before = measure(config.model, config, 120)
        folder = train(config, name="learning")
        after = measure(str(folder / "checkpoints" / "update-000020" / "model"), config, 120)
        pairs = zip(before.trajectories, after.trajectories, strict=True)
        mine = [a.total_reward - b.total_reward for b, a in pairs]
        assert fmean(mine) > 0
        differences += mine
    error = stdev(differences) / len(differences) ** 0.5
    assert fmean(differences) - 1.96 * error > 0
