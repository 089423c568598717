"""The code in README and docs runs as it stands, and is as short as it says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from trajgym.envs.sandbox import IsolationUnavailable

ROOT = Path(__file__).parents[1]


def blocks_of(name: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(encoding="utf-8"), flags=re.DOTALL)


BLOCKS = blocks_of("README.md")


def block(containing: str) -> list[str]:
    """The lines of the one block that has this text, blank ones left out."""
    (found,) = [b for b in BLOCKS if containing in b]
    return [line for line in found.split("\n") if line.strip()]


@pytest.mark.parametrize(("containing", "most"), [("def price", 5), ("class ShopEnv", 12), ("while not over", 6)])
def test_snippets_are_short(containing: str, most: int) -> None:
    assert len(block(containing)) <= most


def test_snippets_run_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "readme"}
    try:
        for code in BLOCKS:
            exec(compile(code, "README.md", "exec"), names)
        shop = gymnasium.make("Shop-v0")
        _, info = shop.reset(seed=0)
        call = '<tool_call>\n{"name": "price", "arguments": {"item": "tea"}}\n</tool_call>'
        assert shop.step(call)[0] == "3.5"
        assert shop.step(f"#### {info['task'].answer}")[1] == 1.0
    finally:
        gymnasium.registry.pop("Shop-v0", None)
    assert "[answered]" in capsys.readouterr().out
    lines = (names["folder"] / "metrics.jsonl").read_text().split("\n")[:-1]
    assert len(lines) == 2
    assert all(json.loads(line)["tokens_per_trajectory"] > 0 for line in lines)


def test_security_page_says_what_happens(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = blocks_of("docs/security.md")
    try:
        exec(compile(code, "security.md", "exec"), {})
    except IsolationUnavailable as error:
        pytest.skip(str(error))
    assert capsys.readouterr().out.split() == re.findall(r"  # (\w+)$", code, flags=re.MULTILINE)
