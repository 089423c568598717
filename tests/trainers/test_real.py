"""The same trainer on real input: GSM8K, and a pretrained model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trajgym.evaluation.records import read_trajectories
from trajgym.trainers.config import load_config
from trajgym.trainers.grpo import train


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_smollm2_trains_on_gsm8k_with_a_calculator(
    smollm2_folder: Path, gsm8k_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAJGYM_DATA", str(gsm8k_data))
    options = [
        "--model",
        str(smollm2_folder),
        "--updates",
        "2",
        "--output-dir",
        str(tmp_path),
        "--max-turn-tokens",
        "96",
    ]
    folder = train(load_config("gsm8k_tool_smollm2", options), name="real")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().split("\n") if line]
    assert [line["update"] for line in lines] == [1, 2]
    assert lines[0]["kl"] == 0.0
    for line in lines:
        assert line["fault_share"] == 0.0
        assert line["sampler_gap"] < 1e-4
    trajectories = read_trajectories(folder / "trajectories" / "all.parquet")
    assert len(trajectories) == 32
    for trajectory in trajectories:
        assert trajectory.task.id.startswith("gsm8k/train/")
        (row,) = trajectory.rows
        sampled = [i for step in trajectory.steps for i in step.action.token_ids]
        assert [i for i, m in zip(row.ids, row.mask, strict=True) if m] == sampled
    assert (folder / "checkpoints" / "update-000002" / "model" / "adapter_model.safetensors").is_file()
