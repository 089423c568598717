"""Values of options: what several commands read in the same way."""

from __future__ import annotations

import argparse

import pytest

from trajgym.cli import main
from trajgym.scripts.arguments import env_kwargs


def test_an_object_is_read() -> None:
    assert env_kwargs('{"difficulty": [1, 3], "tools": null}') == {"difficulty": [1, 3], "tools": None}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"a": NaN}', "NaN is no number"),
        ('{"a": 1, "a": 2}', "a name stands twice among 'a', 'a'"),
        ("[1]", "must be an object"),
        ("3", "must be an object"),
    ],
)
def test_anything_else_is_refused(text: str, reason: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=reason):
        env_kwargs(text)


@pytest.mark.parametrize("name", ["id", "env_id"])
def test_the_id_is_no_argument_of_an_environment(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "ArithmeticTool-v0", "--env-kwargs", f'{{"{name}": "x"}}']) == 2
    assert f"'{name}'" in capsys.readouterr().err
