"""Environments by id: whatever is wrong with the id, the error says which ids there are."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import trajgym  # noqa: F401  # registers the environments
from trajgym.envs.make import ids, make
from trajgym.errors import ConfigError, UnknownNameError


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Write a package ``elsewhere`` that is on the path."""
    monkeypatch.syspath_prepend(tmp_path)
    yield lambda source: (tmp_path / "elsewhere.py").write_text(source)
    sys.modules.pop("elsewhere", None)
    gymnasium.registry.pop("Elsewhere-v0", None)


def test_ours_are_listed_in_order() -> None:
    assert ids() == [
        *("Arithmetic-v0", "ArithmeticTool-v0", "CodeTool-v0", "Debug-v0", "Detour-v0", "GSM8K-v0", "GSM8KTool-v0"),
        *("Grid-v0", "Memory-v0", "ToolChoice-v0"),
    ]
    assert "CartPole-v1" in gymnasium.registry


def test_arguments_reach_the_environment() -> None:
    env = make("ArithmeticTool-v0", max_turns=5)
    assert env.unwrapped.max_turns == 5  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="max_turns"):
        make("ArithmeticTool-v0", max_turns=0)
    assert make("trajgym:ArithmeticTool-v0").spec.id == "ArithmeticTool-v0"  # type: ignore[union-attr]


def test_other_packages_environments_work_too(package: Any) -> None:
    package(
        "import gymnasium\n"
        "entry_point = 'trajgym.envs.arithmetic:ArithmeticEnv'\n"
        "gymnasium.register('Elsewhere-v0', entry_point=entry_point, kwargs={'tools': ()})\n"
    )
    assert make("elsewhere:Elsewhere-v0").unwrapped.tools == {}  # type: ignore[attr-defined]
    assert make("CartPole-v1").action_space.n == 2  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "env_id",
    [
        "Nope-v0",
        "ArithmeticTool-v9",
        "nope/ArithmeticTool-v0",
        "",
        "a b",
        "a:b:c",
        ":X",
        "x:",
        "..:X",
        "ä\n",
        None,
        3,
        [],
    ],
)
def test_no_such_id(env_id: Any) -> None:
    with pytest.raises(
        UnknownNameError,
        match="Known: 'Arithmetic-v0', 'ArithmeticTool-v0', 'CodeTool-v0', 'Debug-v0', 'Detour-v0', 'GSM8K-v0', 'GSM",
    ):
        make(env_id)


def test_an_argument_that_another_packages_environment_does_not_have() -> None:
    with pytest.raises(ConfigError, match=r"CartPole-v1 refuses an argument.*'split'"):
        make("CartPole-v1", split="train")


def test_a_version_that_is_gone() -> None:
    gymnasium.register("Old-v2", entry_point="trajgym.envs.arithmetic:ArithmeticEnv")
    try:
        old = pytest.warns(DeprecationWarning, match="out of date")
        with old, pytest.raises(UnknownNameError, match="Unknown environment 'Old-v1'"):
            make("Old-v1")
    finally:
        del gymnasium.registry["Old-v2"]


@pytest.mark.parametrize(
    ("env_id", "missing"),
    [("nowhere:X-v0", "nowhere"), ("nowhere.sub:X-v0", "nowhere"), ("trajgym.no:X-v0", "trajgym.no")],
)
def test_no_such_package(env_id: str, missing: str) -> None:
    with pytest.raises(UnknownNameError, match=f"There is no package '{missing}'"):
        make(env_id)


def test_a_package_that_lacks_another_one_says_which(package: Any) -> None:
    package("import nowhere_to_be_found")
    with pytest.raises(ModuleNotFoundError) as caught:
        make("elsewhere:Elsewhere-v0")
    assert caught.value.name == "nowhere_to_be_found"
