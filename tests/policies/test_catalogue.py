from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import gymnasium
import pytest

from trajgym.envs.make import make
from trajgym.errors import ConfigError, UnknownNameError
from trajgym.policies.base import TextPolicy
from trajgym.policies.catalogue import POLICIES, register_policy
from trajgym.policies.scripted import ExpertPolicy
from trajgym.rollout import EnvPool, Episode, collect
from trajgym.types import Message, Task


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package with a policy."""
    (tmp_path / "players.py").write_text(
        "from trajgym.policies.base import TextPolicy\n"
        "class Always(TextPolicy):\n"
        "    def __init__(self, env):\n"
        "        super().__init__(8)\n"
        "        self.text = f'#### {len(env.tools)}'\n"
        "    def act(self, messages, task, seed=0):\n"
        "        return self.text\n"
    )
    metadata = tmp_path / "players-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: players\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[trajgym.policies]\nalways = players:Always\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(POLICIES, "_items", POLICIES.registered())
    monkeypatch.setattr(POLICIES, "_promised", None)


@pytest.mark.parametrize("protocol", ["hermes", "react"])
def test_those_without_a_model_play_in_the_environments_form(protocol: str) -> None:
    env = make("ArithmeticTool-v0", protocol=protocol)
    with EnvPool(lambda: env, threads=0) as pool:
        (played,) = collect(POLICIES["expert"](env.unwrapped), pool, [Episode(0, 0)])
        assert played.steps[-1].reward_terms["accuracy"] == 1.0
        (played,) = collect(POLICIES["random"](env.unwrapped), pool, [Episode(1, 0)])
        assert played.valid


def test_an_environment_that_is_no_dialogue_has_no_protocol() -> None:
    assert isinstance(POLICIES["expert"](gymnasium.make("CartPole-v1").unwrapped), ExpertPolicy)


@pytest.mark.usefixtures("elsewhere")
def test_a_packages_policy_is_found_and_given_the_environment() -> None:
    policy = POLICIES["always"](make("ArithmeticTool-v0").unwrapped)
    assert isinstance(policy, TextPolicy)
    assert policy.act((), Task("t", "?", "1")) == "#### 1"


def test_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(POLICIES, "_items", POLICIES.registered())

    @register_policy("silent")
    class Silent(TextPolicy):
        def __init__(self, env: object) -> None:
            super().__init__(1)

        def act(self, messages: Sequence[Message], task: Task, seed: int = 0) -> str:
            return ""

    assert isinstance(POLICIES["silent"](None), Silent)
    with pytest.raises(ConfigError, match="exists already"):
        register_policy("silent")(ExpertPolicy)
    for name in (None, ""):
        with pytest.raises(ConfigError, match="a text such as 'expert'"):
            register_policy(name)  # type: ignore[arg-type]
    with pytest.raises(UnknownNameError, match=r"Did you mean 'expert'.*register_policy"):
        POLICIES["expret"]
