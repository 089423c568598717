"""What a run folder says of the data: which there were, and that a run does not go on with others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trajgym.envs.make import make
from trajgym.errors import ConfigError
from trajgym.trainers.config import load_config
from trajgym.trainers.data_kept import keep_problems
from trajgym.trainers.data_rows import fingerprint
from trajgym.trainers.grpo import GRPOTrainer
from trajgym.types import Task


def kept(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "data.json").read_text()))


def keep(folder: Path, answer: str = "1", **options: Any) -> None:
    tasks = [Task(str(n), f"{n}?", answer) for n in range(3)]
    env = make("ArithmeticTool-v0", tasks=tasks)
    keep_problems(folder, env, load_config({"updates": 1, "output_dir": folder, **options}))


def test_problems_that_can_be_counted(tmp_path: Path) -> None:
    keep(tmp_path, max_samples=2)
    rows = [{"id": str(n), "question": f"{n}?", "answer": "1"} for n in range(2)]
    assert kept(tmp_path) == {
        "name": "ArithmeticTool-v0", "rows": 2, "columns": ["answer", "id", "question"],
        "fingerprint": fingerprint(rows), "max_samples": 2,
    }  # fmt: skip


def test_what_an_environment_makes_up_is_no_data(tmp_path: Path) -> None:
    keep_problems(tmp_path, make("ArithmeticTool-v0"), load_config({"updates": 1}))
    assert not (tmp_path / "data.json").exists()


def test_a_run_goes_on_with_the_same_problems_only(tmp_path: Path) -> None:
    keep(tmp_path, resume=True)  # of a run that did not write them down nothing is known
    keep(tmp_path, resume=True)
    with pytest.raises(ConfigError, match="other problems than the run began with: their fingerprint was sha256:"):
        keep(tmp_path, answer="2", resume=True)
    first = kept(tmp_path)
    keep(tmp_path, answer="2")
    assert kept(tmp_path)["fingerprint"] != first["fingerprint"]


def test_a_policy_s_run_says_what_it_learns_from(identity_options: dict[str, Any]) -> None:
    trainer = GRPOTrainer(load_config(identity_options))
    assert (kept(trainer.folder.path)["name"], kept(trainer.folder.path)["rows"]) == ("TestIdentity-v0", 4)
