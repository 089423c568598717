"""Protocols by name, and what every written form has in common."""

from __future__ import annotations

from collections.abc import Mapping
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
    with pytest.raises(UnknownNameError, match="Known: 'hermes'"):
        get_protocol(thing)


def test_registering() -> None:
    shout = register_protocol(Shout())
    assert get_protocol("shout") is shout
    with pytest.raises(ConfigError, match="exists already"):
        register_protocol(Shout())
    assert register_protocol(Shout(), replace=True) is not shout


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
