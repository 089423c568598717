"""What stage 1 looks through is what is trained on: what SFT imitates, and what GRPO draws."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import trajgym  # noqa: F401  # registers the environments
from trajgym.envs.make import make
from trajgym.errors import ConfigError, DataError
from trajgym.policies.scripted import ExpertPolicy
from trajgym.rollout import EnvPool, collect
from trajgym.trainers.config import load_config
from trajgym.trainers.models import load_model
from trajgym.trainers.pipeline_config import PipelineConfig, load_pipeline_config
from trajgym.trainers.pipeline_problems import Problems, drawn_by_grpo, find_problems
from trajgym.trainers.schedule import TaskSchedule
from trajgym.trainers.sft import policy_of
from trajgym.trainers.sft_rows import find_samples
from trajgym.types import Task, Trajectory

DATA: dict[str, Any] = {"env": "ArithmeticTool-v0", "env_kwargs": {"difficulty": [1, 2]}, "max_samples": 6}


def found(config: PipelineConfig) -> Problems:
    return find_problems(config, config.sft_config(Path("x")) if config.sft is not None else None)


def config_of(data: dict[str, Any] | None = None, **sections: Any) -> PipelineConfig:
    return load_pipeline_config({"data": {**DATA, **(data or {})}, "eval": {"max_samples": 3}, **sections})


@pytest.mark.parametrize("sft", [{}, {"eval_samples": 2}, {"eval_samples": 2, "eval_split": "test"}])
def test_made_up_problems_are_those_that_sft_imitates(small_model: Path, sft: dict[str, Any]) -> None:
    config = config_of(sft=sft, model={"base_model": str(small_model)})
    options = config.sft_config(Path("x"))
    model, tokenizer = load_model(str(small_model))
    samples = find_samples(options, policy_of(options, model, tokenizer), tokenizer)
    imitated = [sample.task for sample in samples.train if isinstance(sample, Trajectory)]
    assert [t.id for t in found(config).train] == [t.id for t in imitated]
    assert len(imitated) == 6


def test_a_data_set_is_trained_on_from_its_beginning(gsm8k_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAJGYM_DATA", str(gsm8k_data))
    problems = found(config_of({"env": "GSM8KTool-v0", "env_kwargs": {}, "max_samples": 4}))
    assert [t.id for t in problems.train] == [f"gsm8k/train/{i}" for i in range(4)]
    told = problems.check(drawn_by_grpo(load_config({"env": "GSM8KTool-v0", "updates": 1})))
    assert (told["train"], told["train_available"], told["drawn"], told["rows"]) == (4, 7473, None, None)


@pytest.mark.parametrize("rounds", [0, 1])
def test_what_grpo_draws_is_what_is_played(rounds: int) -> None:
    options = load_config({"updates": 2, "groups_per_update": 2, "num_generations": 2, "dynamic_sampling": rounds})
    drawn = [task.id for task in drawn_by_grpo(options)]
    env = make(options.env)
    schedule = TaskSchedule(env, options)
    episodes = [e for u in range(2) for turn in range(rounds + 1) for e in schedule.episodes(u, turn)]
    with EnvPool(lambda: make(options.env), threads=1) as pool:
        played = collect(ExpertPolicy(env.unwrapped.protocol, capacity=8), pool, episodes)  # type: ignore[attr-defined]
    assert drawn == [trajectory.task.id for trajectory in played][::2]
    assert len(drawn) == 4 * (rounds + 1)


def test_what_is_told_of_them() -> None:
    told = found(config_of()).check(drawn_by_grpo(load_config({"updates": 2, "groups_per_update": 3})))
    assert (told["train"], told["train_available"], told["drawn"], told["test"]) == (6, None, 6, 3)
    assert sum(told["steps"].values()) == 6
    nothing = found(config_of(sft=None))
    assert nothing.train == ()
    assert nothing.fingerprints["train"] is None
    assert nothing.check()["drawn"] == 0


def test_grpo_keeps_away_from_what_is_measured() -> None:
    problems = found(config_of())
    other = Task("other/1", problems.test[1].question + "  ", "0")
    with pytest.raises(DataError, match=r"GRPO would draw 1 problems that are measured on .*eval\.split"):
        problems.check([problems.train[0], other])
    assert problems.check([problems.train[0]])["drawn"] == 1


def test_what_is_made_up_may_come_twice() -> None:
    problems = found(config_of())
    again = Task("other/1", problems.train[0].question, problems.train[0].answer)
    twice = [*problems.train, again]
    assert Problems(twice, problems.test, None, {}).check()["train"] == 7
    with pytest.raises(DataError, match="the same question and truth"):
        Problems(twice, problems.test, 7, {}).check()


def rows_file(folder: Path, problems: list[Task], form: str) -> Path:
    def row(task: Task) -> dict[str, Any]:
        if form == "raw":
            return {"question": task.question, "answer": f"#### {task.answer}"}
        if form == "prompt":
            prompt = f"<|im_start|>user\n{task.question}<|im_end|>\n<|im_start|>assistant\n"
            return {"prompt": prompt, "completion": f"#### {task.answer}"}
        answer = {"role": "assistant", "content": f"#### {task.answer}"}
        return {"messages": [{"role": "user", "content": task.question}, answer]}

    file = folder / f"{form}.jsonl"
    file.write_text("".join(json.dumps(row(task)) + "\n" for task in problems))
    return file


@pytest.mark.parametrize("form", ["raw", "prompt", "messages"])
def test_rows_that_hold_what_is_measured_are_refused(tmp_path: Path, form: str) -> None:
    known = found(config_of())
    leaking = rows_file(tmp_path, [*known.train[:2], known.test[1]], form)
    with pytest.raises(DataError, match=r"jsonl: .*3.*a question of the test problems"):
        found(config_of({"dataset": str(leaking)})).check()
    # A row that nobody trains on does no harm.
    behind = found(config_of({"dataset": str(leaking), "max_samples": 2})).check()
    assert (behind["rows"], behind["train"]) == (2, 0)
    held_out = found(config_of({"dataset": str(leaking)}, sft={"eval_samples": 1})).check()
    assert held_out["rows"] == 2
    clean = found(config_of({"dataset": str(rows_file(tmp_path, list(known.train), form))}))
    assert clean.check()["rows"] == 6
    assert clean.fingerprints["imitated"]


def test_too_few_problems_are_told_at_once() -> None:
    with pytest.raises(ConfigError, match="max_samples must be given"):
        found(config_of({"max_samples": None}))
    few = {"env": "Grid-v0", "env_kwargs": {"difficulty": 1}}
    assert len(found(config_of(few)).train) == 6
    assert found(config_of({"max_samples": None}, sft=None)).train == ()
