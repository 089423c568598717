"""Protocols by name, and what every written form has in common."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from trajgym.errors import ConfigError, UnknownNameError
from trajgym.protocols import PROTOCOLS, Hermes, Parsed, Protocol, get_protocol, register_protocol
from trajgym.types import ExpertTurn, ToolCall, ToolSpec


class Shout(Protocol):
    """A call is its name in capitals; there are no arguments."""

    name = "shout"

    def parse(self, text: str, tools: Mapping[str, ToolSpec]) -> Parsed:
        return Parsed("", tuple(ToolCall(word.lower()) for word in text.split() if word.isupper()))

    def render(self, call: ToolCall) -> str:
        return call.name.upper()

    def instructions(self, tools: Mapping[str, ToolSpec], style: str = "schema") -> str:
        return f"Shout {', '.join(tools)}."


@pytest.fixture(autouse=True)
def _own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PROTOCOLS, "_items", dict(PROTOCOLS))


def test_by_name_or_as_an_object() -> None:
    assert isinstance(get_protocol("hermes"), Hermes)
    shout = Shout()
    assert get_protocol(shout) is shout
    with pytest.raises(
        UnknownNameError, match=r"Unknown protocol 'hermse'\. Did you mean 'hermes'\?.*register_protocol"
    ):
        get_protocol("hermse")


@pytest.mark.parametrize("thing", [None, 3, ["hermes"], Shout])
def test_other_things_are_no_protocols(thing: Any) -> None:
    with pytest.raises(UnknownNameError, match=r"Known: 'deepseek', .*'hermes'"):
        get_protocol(thing)


def test_registering() -> None:
    shout = register_protocol(Shout())
    assert get_protocol("shout") is shout
    with pytest.raises(ConfigError, match="exists already"):
        register_protocol(Shout())
    assert register_protocol(Shout(), replace=True) is not shout
    with pytest.raises(ConfigError, match="takes an instance of a Protocol, got <class"):
        register_protocol(Shout)  # type: ignore[arg-type]


def test_other_packages_add_protocols_by_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "forms_plugin.py").write_text(
        "from trajgym.protocols import Hermes\nclass Mine(Hermes):\n    name = 'mine'\nMINE = Mine()\n"
    )
    metadata = tmp_path / "forms_plugin-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: forms-plugin\nVersion: 1.0\n")
    points = "[trajgym.protocols]\nmine = forms_plugin:MINE\nclass_of_mine = forms_plugin:Mine\n"
    (metadata / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(PROTOCOLS, "_promised", None)
    importlib.invalidate_caches()
    assert get_protocol("mine").name == "mine"
    with pytest.raises(ConfigError, match="must be an instance"):
        get_protocol("class_of_mine")


def test_ten_forms_ship() -> None:
    names = ["deepseek", "gsm8k_annotation", "hermes", "llama3_json", "mistral", "python_block", "pythonic"]
    assert sorted(PROTOCOLS) == [*names, "qwen3_coder", "react", "xml_tool"]
    assert all(protocol.name == name for name, protocol in PROTOCOLS.items())


@pytest.mark.parametrize(
    ("turn", "written"),
    [
        (ExpertTurn("#### 72"), "#### 72"),
        (ExpertTurn("", (ToolCall("look"),)), "LOOK"),
        (ExpertTurn("First\nthis.", (ToolCall("look"), ToolCall("go"))), "First\nthis.\nLOOK\nGO"),
        (ExpertTurn(), ""),
    ],
)
def test_a_turn_is_its_text_and_then_its_calls(turn: ExpertTurn, written: str) -> None:
    assert Shout().render_turn(turn) == written


def test_an_environment_takes_a_protocol_of_ones_own() -> None:
    import gymnasium

    env: Any = gymnasium.make("ArithmeticTool-v0", protocol=Shout()).unwrapped
    assert env.system.startswith("Shout calculator.")
