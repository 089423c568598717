"""Attacks that no case file has, by family in ``attacks/*.toml``, on every kind of user and isolation that there is.

A file may begin with a ``prelude``, which the first cell of every session starts with, and with a ``machine``, the only
one it is for. Of each attack it tells

* ``name`` and ``code``. A line ``# %%`` begins the next cell, ``# %% sibling`` one in another session of the pool;
* ``allowed``: the kinds of result that the last cell may give;
* ``shows``, optional: what it then has as output, if it ran to its end, as a regular expression for the whole;
* ``next``, optional: the kinds that `1+1` may give afterwards, besides a plain 2 and a session that is over.

Code that got through prints ``BREACH``. Whatever the attack, what is shown is clean text, the sibling lives on, and
the driver finds its files, sockets, processes and descriptors as they were.
"""

from __future__ import annotations

import platform
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from trajgym.envs.sandbox import Kind

FAMILIES = sorted((Path(__file__).parent / "attacks").glob("*.toml"))
MARK = re.compile(r"^# %%( sibling)?\n", re.MULTILINE)
UNCLEAN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
FIELDS = {"name", "code", "allowed", "shows", "next", "prelude", "machine"}


def attacks() -> list[Any]:
    found = []
    for path in FAMILIES:
        family = tomllib.loads(path.read_text(encoding="utf-8"))
        common = {"prelude": family.pop("prelude", ""), "machine": family.pop("machine", platform.machine())}
        (rows,) = family.values()
        found += [pytest.param(common | row, id=f"{path.stem}-{row['name']}".replace(" ", "-")) for row in rows]
    return found


ATTACKS = attacks()


def cells(attack: dict[str, Any]) -> list[tuple[str, str]]:
    """Return pairs of a session and code."""
    first, *rest = MARK.split(attack["code"])
    pairs = [("attacker", first)] if first else []
    pairs += [("sibling" if mark else "attacker", code) for mark, code in zip(rest[::2], rest[1::2], strict=True)]
    begun = set()
    for place, (session, code) in enumerate(pairs):
        if session not in begun:
            pairs[place] = (session, attack["prelude"] + code)
            begun.add(session)
    return pairs


@pytest.mark.parametrize("attack", ATTACKS)
def test_attack(host: Any, attack: dict[str, Any]) -> None:
    if attack["machine"] != platform.machine():
        pytest.skip(f"for {attack['machine']} alone")
    seen = host.ask("attack", cells=cells(attack), scratch=True)
    *before, last = seen["results"]
    assert last["kind"] in attack["allowed"], last
    if "shows" in attack and last["kind"] == "Ok":
        assert re.fullmatch(attack["shows"], last["output"].strip()), last["output"]
    for result in (*before, last, seen["next"]):
        assert "BREACH" not in result["output"]
        assert not UNCLEAN.search(result["text"])
        assert len(result["text"]) < 30_000
    following = seen["next"]
    assert (
        (following["kind"], following["output"]) == ("Ok", "2")
        or following["kind"] == "SessionDead"
        or following["kind"] in attack.get("next", ())
    ), following
    assert seen["complaints"] == []


def test_the_tables_are_well_formed() -> None:
    rows = [param.values[0] for param in ATTACKS]
    assert len(rows) >= 90
    assert len({param.id for param in ATTACKS}) == len(rows)
    for row in rows:
        assert row.keys() <= FIELDS, row["name"]
        assert row["allowed"]
        assert {*row["allowed"], *row.get("next", ())} <= {kind.value for kind in Kind}, row["name"]
        assert "shows" not in row or "Ok" in row["allowed"], row["name"]
