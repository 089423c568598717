"""Every option of learning from a judge has an effect: one row for each."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

from trajgym.errors import ConfigError, EnvironmentFault
from trajgym.trainers import rlaif
from trajgym.trainers.rlaif import run_rlaif
from trajgym.trainers.rlaif_config import RLAIFConfig, load_rlaif_config

pytestmark = pytest.mark.usefixtures("frozen")

FORM = re.compile(r"([0-9a-f]{24}) (BETTER|GRADE): ")
POLICY = {"env": "TestIdentity-v0", "updates": 1, "groups_per_update": 2, "num_generations": 2, "monitors": (),
          "device": "cpu", "slots": 32, "max_turn_tokens": 12, "max_episode_tokens": 24}  # fmt: skip


class Chain:
    """A run whose two trainings are only asked for: what they are told is kept, and their models are the first one."""

    def __init__(self, model: Path, place: Path) -> None:
        self.model, self.place = model, place
        self.prompts: list[str] = []
        self.reward: Any = None
        self.policy: Any = None

    def __call__(self, ask: Any = None, **changes: Any) -> Path:
        policy = {"model": str(self.model), **POLICY, **changes.pop("policy", {})}
        reward = {"max_length": 64, "monitors": (), **changes.pop("reward_model", {})}
        base = {"policy": policy, "reward_model": reward, "tasks": 3, "candidates": 5, "eval_tasks": 1}
        config = load_rlaif_config({**base, "output_dir": str(self.place), "overwrite": True} | changes)
        self.prompts.clear()
        return run_rlaif(config, ask or self.judge).folder

    def judge(self, prompts: list[str]) -> list[str]:
        """Prefer what has more twos, as often as it is asked."""
        self.prompts += prompts
        replies = []
        for prompt in prompts:
            marker, form = FORM.findall(prompt)[-1]
            texts = dict(re.findall(r"(first|second|[0-9a-f]{24}) text begins\]\n(.*)\n", prompt))  # no empty ones
            first, second = (texts.get(name, "").count("2") for name in ("first", "second"))
            better = "first" if first > second else "second" if first < second else "equal"
            grade = min(10, texts.get(marker, "").count("2"))
            replies.append(f"{marker} {form}: {better if form == 'BETTER' else grade}")
        return replies

    def train_reward(self, options: Any, pairs: Any) -> None:
        self.reward = options
        place = options.output_dir / options.name
        place.mkdir(parents=True, exist_ok=True)
        (place / "report.json").write_text("{}")

    def train_policy(self, options: Any) -> Path:
        self.policy = options
        place: Path = options.output_dir / options.name
        shutil.copytree(self.model, place / "checkpoints" / "update-000001" / "model", dirs_exist_ok=True)
        return place


@pytest.fixture
def chain(digit_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Chain:
    made = Chain(digit_model, tmp_path)
    monkeypatch.setattr(rlaif, "train_reward_model", made.train_reward)
    monkeypatch.setattr(rlaif, "train", made.train_policy)
    monkeypatch.setattr(rlaif, "learned_reward", lambda model, device: lambda step, task, history: 0.5)
    return made


def rows(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def judged(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "judged.json").read_text())
    return found


def said(folder: Path) -> list[str]:
    return [str(row["messages"]) for row in rows(folder, "candidates.jsonl")]


def _algorithm(chain: Chain, **_: Any) -> None:
    with pytest.raises(ConfigError, match="got 'grpo'"):
        chain(algorithm="grpo")


def _policy(chain: Chain, **_: Any) -> None:
    assert said(chain(policy={"temperature": 0.5})) != said(chain())


def _terms(chain: Chain, **_: Any) -> None:
    chain(terms={"format": 0.1})
    assert set(chain.policy.env_kwargs["reward"]) == {"learned", "format"}


def _tasks(chain: Chain, **_: Any) -> None:
    assert len(said(chain(tasks=4))) == 4 * 5


def _candidates(chain: Chain, **_: Any) -> None:
    assert len(said(chain(candidates=6))) == 3 * 6


def _judge(chain: Chain, **_: Any) -> None:
    config = load_rlaif_config({"judge": "/nowhere/judge", "policy": {"updates": 1}, "output_dir": chain.place})
    with pytest.raises(ConfigError, match="/nowhere/judge"):
        run_rlaif(config)


def _answers(**options: Any) -> int:
    """Return how much the model that judges says."""
    config = load_rlaif_config({"policy": {"updates": 1, "device": "cpu"}, **options})
    (reply,) = rlaif._judge(config, config.policy_options())(["48 + 24? " * 8])
    return len(reply)


def _judge_tokens(**_: Any) -> None:
    assert 0 < _answers(judge_tokens=2, judge_context=256) < _answers(judge_tokens=12, judge_context=256)


def _judge_context(**_: Any) -> None:
    assert 0 == _answers(judge_tokens=4, judge_context=24) < _answers(judge_tokens=4, judge_context=256)


def _judge_timeout(chain: Chain, **_: Any) -> None:
    go_on = threading.Event()

    def hangs(prompts: list[str]) -> list[str]:
        go_on.wait(30)  # in time, if there is time enough
        return chain.judge(prompts)

    try:
        with pytest.raises(EnvironmentFault, match="judge is out of order"):
            chain(hangs, judge_timeout=0.05)
    finally:
        go_on.set()


def _judging(chain: Chain, **_: Any) -> None:
    for judging, form in (("choices", "BETTER"), ("grades", "GRADE")):
        chain(judging=judging)
        assert {FORM.findall(prompt)[-1][1] for prompt in chain.prompts} == {form}


def _criterion(chain: Chain, **_: Any) -> None:
    chain(criterion="It says two.")
    assert all("It says two." in prompt for prompt in chain.prompts)


def _reference(chain: Chain, **_: Any) -> None:
    chain()
    plain = list(chain.prompts)
    chain(reference=True)
    assert len(plain) == len(chain.prompts)
    assert all(len(shown) > len(hidden) for shown, hidden in zip(chain.prompts, plain, strict=True))


def _least_gap(chain: Chain, **_: Any) -> None:
    assert judged(chain(judging="grades"))["pairs"] > judged(chain(judging="grades", least_gap=1.0))["pairs"]


def _most_per_task(chain: Chain, **_: Any) -> None:
    for most in (1, 3):
        cases = judged(chain(most_per_task=most))["cases"]
        assert cases <= 3 * most
    assert cases > 3


def _reward_model(chain: Chain, **_: Any) -> None:
    chain(reward_model={"epochs": 3.0})
    assert chain.reward.epochs == 3.0


def _eval_tasks(chain: Chain, **_: Any) -> None:
    assert len(rows(chain(eval_tasks=4), "before.jsonl")) == 4


def _eval_kwargs(chain: Chain, **_: Any) -> None:
    folder = chain(eval_kwargs={"system": "!"})
    assert all(row["messages"][0]["role"] == "system" for row in rows(folder, "after.jsonl"))
    assert all(row["messages"][0]["role"] == "user" for row in rows(folder, "candidates.jsonl"))


def _seed(chain: Chain, **_: Any) -> None:
    assert said(chain(seed=3, tasks=9)) != said(chain(tasks=9))
    assert chain.reward.seed == chain.policy.seed == 0


def _places(chain: Chain, tmp_path: Path, **_: Any) -> None:
    assert chain(output_dir=str(tmp_path / "here"), name="mine") == tmp_path / "here" / "mine"
    assert chain().name == "rlaif-seed0"


def _resume_overwrite(chain: Chain, **_: Any) -> None:
    chain()
    asked = len(chain.prompts)
    with pytest.raises(ConfigError, match="holds a run already"):
        chain(overwrite=False)
    (chain(overwrite=False, resume=True) / "mark").touch()
    assert not chain.prompts
    assert not (chain(overwrite=True) / "mark").exists()
    assert len(chain.prompts) == asked


def _keep_checkpoints(chain: Chain, **_: Any) -> None:
    chain(keep_checkpoints=5)
    assert chain.policy.keep_checkpoints == 5  # whose training deletes the others


KEYS: dict[str, Callable[..., None]] = {
    "algorithm": _algorithm,
    "candidates": _candidates,
    "criterion": _criterion,
    "eval_kwargs": _eval_kwargs,
    "eval_tasks": _eval_tasks,
    "judge": _judge,
    "judge_context": _judge_context,
    "judge_timeout": _judge_timeout,
    "judge_tokens": _judge_tokens,
    "judging": _judging,
    "keep_checkpoints": _keep_checkpoints,
    "least_gap": _least_gap,
    "most_per_task": _most_per_task,
    "name": _places,
    "output_dir": _places,
    "overwrite": _resume_overwrite,
    "policy": _policy,
    "reference": _reference,
    "resume": _resume_overwrite,
    "reward_model": _reward_model,
    "seed": _seed,
    "tasks": _tasks,
    "terms": _terms,
}


def test_there_is_a_row_for_every_key() -> None:
    assert set(KEYS) == set(RLAIFConfig.model_fields)


@pytest.mark.parametrize(
    "key", sorted({check: key for key, check in KEYS.items()}.values())
)  # one of those that share a check
def test_it_has_an_effect(key: str, chain: Chain, tmp_path: Path) -> None:
    KEYS[key](chain=chain, tmp_path=tmp_path)
