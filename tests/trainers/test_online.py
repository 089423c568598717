"""Learning from a log: what is used, what is not and why, and what happens when the model forgets."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from trajgym.cli import main
from trajgym.errors import ConfigError, DataError, TemplateError
from trajgym.evaluation.evaluate import succeeded
from trajgym.evaluation.records import read_trajectories, to_parquet, trajectory_row, write_jsonl
from trajgym.policies.render import Renderer
from trajgym.trainers import online
from trajgym.trainers.config import load_config
from trajgym.trainers.grpo import GRPOTrainer
from trajgym.trainers.interrupt import Interrupt, Interrupted
from trajgym.trainers.models import load_model, token_logprobs
from trajgym.trainers.online import _FromLog, train_online
from trajgym.trainers.online_config import OnlineConfig, load_online_config
from trajgym.trainers.online_filter import Logged, Sifted, read_logs, sift, sift_for_imitation, sift_for_policy
from trajgym.trainers.preference_sources import by_task
from trajgym.trainers.ranks import Ranks
from trajgym.trainers.token_pass import per_token
from trajgym.trainers.trained import find_source, open_source
from trajgym.types import Group, Trajectory

BUDGET = {"slots": 64, "max_turn_tokens": 24, "max_episode_tokens": 400}
SUPERVISED = {"batch_size": 8, "max_length": 400, "warmup_ratio": 0.0, "monitors": []}
IMITATE = {"mode": "imitate", "eval_turn_tokens": 24}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run whose log is learned from."""
    folder = tmp_path_factory.mktemp("log")
    options = {"model": "tiny", "updates": 2, "groups_per_update": 4, "num_generations": 6, "kl_coef": 0.0, **BUDGET}
    more = {"learning_rate": 1e-5, "env_kwargs": {"reward": "hybrid"}, "log_trajectories": 64, "monitors": []}
    return GRPOTrainer(load_config({**options, **more, "output_dir": str(folder), "name": "run"})).run()


@pytest.fixture(scope="module")
def log(run: Path) -> list[Trajectory]:
    return read_trajectories(run / "trajectories" / "all.parquet")


@pytest.fixture
def options(run: Path, tmp_path: Path) -> dict[str, Any]:
    return {
        "logs": [str(run)],
        "env_kwargs": {"reward": "hybrid"},
        "options": {"groups_per_update": 4, "learning_rate": 1e-4, "kl_coef": 0.0, "monitors": [], **BUDGET},
        "eval_tasks": 12,
        "output_dir": str(tmp_path),
    }


def logged(trajectories: list[Trajectory]) -> list[Logged]:
    return [Logged(t, "log", i) for i, t in enumerate(trajectories)]


def _learned_from(log: list[Trajectory], run: str) -> float:
    """How much more probable a run has made what earned more than others of its task, and less probable the rest."""
    used = [item.trajectory for item in sift(logged(log)).used]
    log_probability = []
    for name in ("tiny", run):
        model = open_source(find_source(name))[0]
        tokens = per_token(
            used,
            lambda micro, model=model: token_logprobs(model, micro, 1.0)[0],
            ranks=Ranks(cpu=True, deadline=60.0),
            max_tokens=8192,
        )
        log_probability.append([sum(map(sum, turns)) for turns in tokens])
    total = 0.0
    for group in by_task(used):
        mean = sum(used[i].total_reward for i in group) / len(group)
        total += sum((used[i].total_reward - mean) * (log_probability[1][i] - log_probability[0][i]) for i in group)
    return total


def test_policy_mode_learns_and_tells(options: dict[str, Any], log: list[Trajectory]) -> None:
    result = train_online(load_online_config(options))
    audit = json.loads((result.folder / "audit.json").read_text())
    assert audit == result.audit
    assert audit["given"] == len(log)
    assert audit["used"] + sum(audit["dropped"].values()) == len(log)
    assert 0 < audit["gap_mean"] <= audit["gap_most"] < 0.2  # one small update after the log was begun
    learned = json.loads((result.folder / "train" / "data.json").read_text())
    assert (learned["rows"], learned["fingerprint"]) == (audit["used"], audit["fingerprint"])
    rows = [json.loads(line) for line in (result.folder / "audit.jsonl").read_text().splitlines()]
    assert Counter(row["dropped"] for row in rows if row["dropped"]) == audit["dropped"]
    used = yaml.safe_load((result.folder / "train" / "config.yaml").read_text())
    assert used["sampler_correction"] is True
    assert used["updates"] == -(-audit["tasks"] // min(4, audit["tasks"]))
    metrics = [json.loads(line) for line in (result.folder / "train" / "metrics.jsonl").read_text().splitlines()]
    assert metrics[0]["grad_norm"] > 0
    assert metrics[0]["sampler_gap"] < 0.2
    assert result.model == ("tiny" if result.rolled_back else str(result.folder / "train"))
    assert _learned_from(log, str(result.folder / "train")) > 0
    with pytest.raises(ConfigError, match=r"holds a run already\. Replace it with --overwrite, or choose"):
        train_online(load_online_config(options))


def test_imitation_needs_no_log_probabilities(options: dict[str, Any], log: list[Trajectory], tmp_path: Path) -> None:
    bare = [dataclasses.replace(t, rows=()) for t in log]
    write_jsonl(tmp_path / "bare.jsonl", [trajectory_row(t) for t in bare])
    to_parquet([tmp_path / "bare.jsonl"], tmp_path / "bare.parquet")
    bare_log = {"logs": [str(tmp_path / "bare.parquet")]}
    more = {**IMITATE, "options": {**SUPERVISED, "learning_rate": 1e-5}}
    result = train_online(load_online_config({**options, **bare_log, **more}))
    whole = [item.trajectory for item in sift(logged(bare)).used]
    right = {(t.prompt, tuple(s.action.text for s in t.steps)) for t in whole if succeeded(t)}
    assert result.audit["used"] == len(right)
    assert result.audit["gap_mean"] is None
    with pytest.raises(DataError, match=r"no log-probabilities.*take mode imitate"):
        train_online(load_online_config({**options, **bare_log, "name": "other"}))


def test_a_model_that_forgets_is_rolled_back(options: dict[str, Any]) -> None:
    """Of tasks that it could not solve before it can lose nothing: what it does at the guard's alone decides."""
    more = {**IMITATE, "epochs": 3, "options": {**SUPERVISED, "learning_rate": 1.0}}
    hard = {"env_kwargs": {"reward": "hybrid", "difficulty": 8}, "guard_env_kwargs": {"difficulty": 1}}
    result = train_online(load_online_config({**options, **more, **hard}))
    assert result.rolled_back
    assert result.guard.comparison.high < 0
    assert not result.target.forgot
    assert result.model == "tiny"
    assert result.audit["rolled_back"] is True
    assert result.audit["model"] == "tiny"


def test_quality(log: list[Trajectory]) -> None:
    good = next(t for t in log if t.valid and t.stop_reason.terminates and succeeded(t))
    last = good.steps[-1]
    ungraded = dataclasses.replace(good, steps=tuple(dataclasses.replace(s, reward_terms={}) for s in good.steps))
    short = dataclasses.replace(last, action=dataclasses.replace(last.action, finish="turn_tokens"))
    wrong = dataclasses.replace(last, reward=0.0, reward_terms={"accuracy": 0.0})
    bad = [
        dataclasses.replace(good, fault="ToolCrash"),
        ungraded,
        dataclasses.replace(good, steps=(*good.steps[:-1], short)),
        dataclasses.replace(good, steps=(*good.steps[:-1], wrong)),
        good,
    ]
    found = sift(logged([good, *bad]))
    sift_for_imitation(found, min_reward=None)
    assert [item.number for item in found.used] == [0]
    assert found.reasons == {
        "a fault of the machinery": 1, "not graded": 1, "cut by a budget": 1, "wrong answer": 1, "duplicate": 1
    }  # fmt: skip
    with pytest.raises(DataError, match="1 reward below 99"):
        sift_for_imitation(Sifted(logged([good])), min_reward=99.0)


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(load_model("tiny")[1])


def test_what_a_policy_gradient_can_use(log: list[Trajectory], renderer: Renderer) -> None:
    whole = sift(logged(log)).used
    pair = max(by_task([item.trajectory for item in whole]), key=len)[:2]
    first, second = (whole[i].trajectory for i in pair)
    single = next(t for t in log if t.valid and t.prompt != first.prompt)
    silent = tuple(dataclasses.replace(r, logprobs=(0.0,) * len(r.ids)) for r in first.rows)
    foreign = tuple(dataclasses.replace(r, ids=(*r.ids[1:], r.ids[0])) for r in first.rows)
    others = [
        first,
        dataclasses.replace(first, rows=silent),
        dataclasses.replace(first, rows=foreign),
        dataclasses.replace(first, seed=first.seed + 1),  # the same words, another episode
        dataclasses.replace(first, seed=-1),
        single,
    ]
    found = Sifted(logged([first, second, *others]))
    sift_for_policy(found, renderer, lambda ts: [9.0 if t.seed == -1 else 0.1 for t in ts], max_gap=1.0)
    assert [item.number for item in found.used] == [0, 1, 5]
    assert found.reasons == {
        "duplicate": 1,
        "no log-probabilities": 1,
        "tokens of another template or tokenizer": 1,
        "too far from the present policy": 1,
        "no other of its task to compare with": 1,
    }


def test_logs_of_another_model(log: list[Trajectory], renderer: Renderer, digit_model: Path) -> None:
    whole = sift(logged(log)).used
    with pytest.raises(TemplateError, match="another tokenizer or chat template"):
        sift_for_policy(Sifted(list(whole)), Renderer(load_model(str(digit_model))[1]), lambda ts: [], 1.0)
    with pytest.raises(DataError, match=r"nearest is 3.00 nats per token .* max_gap is 1"):
        sift_for_policy(Sifted(list(whole)), renderer, lambda ts: [3.0] * len(ts), 1.0)
    with pytest.raises(DataError, match="nearest is nan"):
        sift_for_policy(Sifted(list(whole)), renderer, lambda ts: [float("nan")] * len(ts), 1.0)


@pytest.mark.parametrize(
    ("more", "error", "message"),
    [
        ({"logs": []}, ConfigError, "no log to learn from"),
        ({"logs": ["/nowhere"]}, DataError, "nowhere"),
        ({"lgs": []}, ConfigError, "Did you mean 'logs'"),
        ({"options": {"learning_rat": 1}}, ConfigError, "Did you mean 'learning_rate'"),
        ({"options": {"updates": 3}}, ConfigError, "options holds updates"),
        ({"options": {"algorithm": "ppo"}}, ConfigError, "estimator vine"),
        ({"options": {"estimator": "nonsense", **BUDGET}}, ConfigError, "nonsense"),
        ({"options": {"monitors": ["tensorbord"]}}, ConfigError, "Did you mean 'tensorboard'"),
        ({"options": {"reward_schedule": {"nope": [[0, 1]]}, **BUDGET}}, ConfigError, "nope"),
        ({"options": {"use_lora": True, "lora_targets": ["nope"], **BUDGET}}, ConfigError, "lora_targets"),
        ({"mode": "imitate", "options": {"max_length": 10}}, DataError, "No row fits max_length"),
        ({"mode": "imitate", "options": {"eval_samples": 999}}, DataError, "nothing is left to train on"),
        ({"mode": "imitate", "options": {"use_lora": True, "lora_targets": ["nope"]}}, ConfigError, "lora_targets"),
        ({"min_reward": 0.5}, ConfigError, "needs what went wrong"),
        ({"eval_turn_tokens": 24}, ConfigError, r"eval_turn_tokens \(24\) acts with mode imitate; .*max_turn_tokens"),
        ({"mode": "imitate", "options": {}, "cap": 7.0}, ConfigError, r"cap \(7\.0\) acts with mode policy"),
        ({"mode": "imitate", "options": {}, "max_gap": 0.5}, ConfigError, r"max_gap \(0\.5\) acts with mode policy"),
        ({"guard_env": "TestNothing-v0", "guard_split": ""}, ConfigError, "does not pay for 'accuracy'"),
    ],
)
def test_bad_input(more: dict[str, Any], error: type[Exception], message: str, options: dict[str, Any]) -> None:
    with pytest.raises(error, match=message):
        train_online(load_online_config({**options, **more}))
    assert not (Path(options["output_dir"]) / "online-seed0").exists()


def test_who_stops_it_is_told_how_to_begin_again(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*args: Any, **kwargs: Any) -> Path:
        raise Interrupted("Go on with the same command and --resume.")

    monkeypatch.setattr(online, "train_sft", stopped)
    config = load_online_config({**options, **IMITATE, "options": SUPERVISED, "eval_tasks": 1})
    with pytest.raises(Interrupted, match="begin again with --overwrite"):
        train_online(config)


def test_a_file_that_is_no_log(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text('{"question": "?"}\n')
    with pytest.raises(DataError, match="does not hold trajectories"):
        read_logs([tmp_path / "log.jsonl"])


def test_every_group_is_dealt_once_per_pass(options: dict[str, Any], log: list[Trajectory], tmp_path: Path) -> None:
    config = OnlineConfig(**{**options, "cap": 3.0})
    groups = [Group(log[0].task, (dataclasses.replace(log[0], seed=i),)) for i in range(8)]
    trainer = _FromLog(config.policy_options(updates=4))
    assert trainer.config.sampler_cap == 3.0
    trainer.groups = groups
    passes = []
    with Interrupt() as interrupt:
        for trainer.update in range(4):
            passes += [group.trajectories[0].seed for group in trainer.gather(interrupt).groups]
    assert sorted(passes[:8]) == sorted(passes[8:]) == list(range(8))
    assert passes[:8] != passes[8:]


def test_the_command(options: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["online"]) == 2
    assert main(["online", "--help"]) == 0
    assert "docs/online.md" in capsys.readouterr().out
    file = tmp_path / "online.yaml"
    more = {**IMITATE, "epochs": 3, "options": {**SUPERVISED, "learning_rate": 1.0}}
    file.write_text(yaml.safe_dump({**options, **more}))
    assert main(["online", str(file), "--eval-tasks", "8"]) == 1
    printed = capsys.readouterr()
    assert "logged trajectories of" in printed.out
    assert "so use the model as it was: tiny" in printed.err
