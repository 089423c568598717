from __future__ import annotations

import json
from typing import Any

import pytest

from trajgym.envs.sandbox import IsolationUnavailable
from trajgym.scripts import doctor, doctor_isolation

MISSING = "This machine cannot isolate code:\n  {tier}: no such thing; get another kernel.\nAsk the doctor."


class Unavailable:
    """Stands in for a pool on a machine that has nothing."""

    def __init__(self, isolation: str) -> None:
        raise IsolationUnavailable(MISSING.format(tier=isolation))


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("COLUMNS", raising=False)


def run(args: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    status = doctor.main(args)
    return status, capsys.readouterr().out


def test_shows_what_works_here(capsys: pytest.CaptureFixture[str]) -> None:
    status, out = run(["--json"], capsys)
    found = json.loads(out)
    working = [tier for tier, facts in found["isolation"].items() if facts["works"]]
    assert list(found["isolation"]) == ["namespaces", "landlock"]
    assert {"machine", "versions", "extras", "peaks", "data", "hub"} <= set(found)
    assert found["chosen"] == (working[0] if working else None)
    assert status == (0 if working else 1)
    for tier in working:
        facts = found["isolation"][tier]
        assert {"seccomp", "rlimits", "capabilities"} <= set(facts["layers"])
        assert ("namespaces" in facts["layers"]) == (tier == "namespaces")
        assert 0 < facts["call_s"] < facts["start_s"]
    for tier in set(found["isolation"]) - set(working):
        assert found["isolation"][tier]["reason"]


def test_a_person_can_read_it(capsys: pytest.CaptureFixture[str]) -> None:
    status, out = run([], capsys)
    for word in ("machine", "Landlock", "versions", "gymnasium", "optional", "peaks", "data", "hub", "isolation"):
        assert word in out
    assert ("harmless attacks were stopped" in out) == (status == 0)
    assert max(map(len, out.splitlines())) <= 110


@pytest.mark.parametrize("width", [80, 120])
def test_it_fits_the_screen(width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in: Any = Unavailable
    monkeypatch.setattr(doctor_isolation, "Pool", stand_in)
    monkeypatch.setenv("COLUMNS", str(width))
    _, out = run([], capsys)
    table = out.splitlines()[:-1]  # the sentence below it wraps as the terminal likes
    assert max(map(len, table)) <= width
    assert len({len(line) for line in table}) == 1
    assert "…" not in out  # nothing is cut


def test_says_what_is_missing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in: Any = Unavailable
    monkeypatch.setattr(doctor_isolation, "Pool", stand_in)
    status, out = run([], capsys)
    assert status == 1
    assert out.count("get another kernel") == 2
    assert "cannot isolate code" not in out
    assert "IsolationUnavailable" in out
    assert run(["--json"], capsys)[0] == 1
