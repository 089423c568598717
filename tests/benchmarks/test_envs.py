"""The benchmark of environments: what it counts, judges and leaves out; never its speed."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
LINES = BENCHMARKS / "envs_lines"
MODULES = ("rounds", "machine", "interpreter_contenders", "interpreter_peers", "interpreter_report",
           "envs_driver", "envs_peers", "envs_parts", "envs_report", "envs")  # fmt: skip
PROBLEMS = [{"question": "What is 48 + 24?", "answer": "72"}, {"question": "What is 8 + 1?", "answer": "9"}]

# A contender that writes where it must not, and lies on request.
OTHER = """
import os
from envs_driver import Contender

class Make(Contender):
    def open(self, number):
        return {"steps": 0}
    def step(self, episode, kind):
        print("noise")
        episode["steps"] += 1
        return ("73" if os.environ.get("LIE") else "72"), float(kind == "final")
    def text(self, outcome):
        return outcome[0]
    def reward(self, outcome):
        return outcome[1]
    def slow(self):
        return list
    def try_tool(self, tool):
        return ""
    def try_env(self, module):
        return "", 0.0
"""


@pytest.fixture(scope="module")
def bench() -> Iterator[SimpleNamespace]:
    """The modules of the folder, which is no package: scripts there find each other beside them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
    for name in MODULES:
        del sys.modules[name]


@pytest.fixture
def other(bench: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "envs_other.py").write_text(OTHER, encoding="utf-8")
    monkeypatch.setattr(bench.envs_peers, "HERE", tmp_path)
    return bench.envs_peers.Release("Other 1.0", "other")


# Lines


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("", 0),
        ('"""About."""\n\nimport os\n\n\nos.getpid()  # why\n', 2),
        ('# ruff\n"""About,\n\nat length."""\nx = 1\n', 1),
        ('def f():\n    """Its docstring is code here: tools need one."""\n    # no\n    return """\n\n1"""\n', 4),
    ],
)
def test_lines_of_code(bench: SimpleNamespace, source: str, lines: int) -> None:
    assert bench.envs_parts.count_lines(source) == lines


def test_every_contender_has_its_three_files(bench: SimpleNamespace) -> None:
    names = [one.name for one in (bench.envs_peers.OURS, *bench.envs_peers.PEERS)]
    files = {f"{name}_{file}.py" for name in names for file in bench.envs_parts.FILES}
    assert {path.name for path in LINES.glob("*.py")} == files


def test_our_lines_meet_their_targets_and_run(bench: SimpleNamespace) -> None:
    with bench.envs_peers.running(bench.envs_peers.OURS, sys.executable, PROBLEMS) as ours:
        counted = bench.envs_parts.lines([ours], LINES)["trajgym"]
    assert counted.outcome == "all run"
    assert all(number <= most for number, most in zip(counted.numbers, (5, 12, 6), strict=True))


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        ({}, "all run"),
        ({"tool": "17"}, "the tool answered '17'"),
        ({"env": ["What is 48 + 24?", 0.0]}, "the environment gave ['What is 48 + 24?', 0.0]"),
        ({"episode": 0.5}, "the episode was paid 0.5"),
    ],
)
def test_what_the_files_do_is_judged(bench: SimpleNamespace, change: dict[str, Any], outcome: str) -> None:
    right = {"tool": "72.0", "env": ["What is 48 + 24?", 1.0], "episode": 1.0}
    assert bench.envs_parts.judged(right | change) == outcome


# The driver


@pytest.mark.parametrize(("expression", "value"), [("48/2+48", "72"), ("-3*(2-4)", "6"), ("1/4", "0.25")])
def test_the_users_calculator(bench: SimpleNamespace, expression: str, value: str) -> None:
    assert bench.envs_driver.arithmetic(expression) == value


@pytest.mark.parametrize("expression", ["__import__('os')", "2**9", "x", "'a'*9"])
def test_the_users_calculator_knows_nothing_else(bench: SimpleNamespace, expression: str) -> None:
    with pytest.raises((ValueError, KeyError)):
        bench.envs_driver.arithmetic(expression)


def test_the_clock_counts_the_work_of_children(bench: SimpleNamespace) -> None:
    busy = "import time\nwhile time.process_time() < 0.3: pass\n"
    clock = bench.envs_driver.Clock()
    subprocess.run([sys.executable, "-c", busy], check=True)
    _, processor = clock.stop()
    assert processor >= 0.3
    code = f"{busy}print(flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        clock = bench.envs_driver.Clock()
        child.stdout.readline()
        _, alive = clock.stop()
        clock = bench.envs_driver.Clock()
        child.communicate(b"\n")
        _, ended = clock.stop()
    # What the child had done before the second clock began is not counted again when it is reaped.
    assert alive + processor > 0.3
    assert ended < 0.3


def test_processes_that_end_while_they_are_looked_for(bench: SimpleNamespace, tmp_path: Path) -> None:
    assert bench.envs_driver._listed(tmp_path / "gone") == []
    assert bench.envs_driver.descendants(2**30) == set()


def test_our_own_contender_plays(bench: SimpleNamespace) -> None:
    with bench.envs_peers.running(bench.envs_peers.OURS, sys.executable, PROBLEMS) as ours:
        for kind in ("final", "calculator", "python"):
            answer = ours.ask(do="steps", kind=kind)
            assert len(answer["first"]) == 2
            assert len(answer["later"]) == (0 if kind == "final" else 3)
        ours.ask(do="open_fleet", count=3)
        for _ in range(2):  # the second time after all of them have ended
            assert len(ours.ask(do="fly", count=3, kinds=["calculator", "python", "final"])["times"]) == 3
        for _ in range(2):  # a third of the episodes has ended, and all begin anew
            assert len(ours.ask(do="fly", count=3, kinds=["python", "mixed"])["times"]) == 2
        ours.ask(do="close_fleet")


# Parts


def test_parts_with_another_contender(bench: SimpleNamespace, other: Any) -> None:
    parts = bench.envs_parts
    with bench.envs_peers.running(other, sys.executable, PROBLEMS) as one:
        single = parts.singles([one], 2)["other"]
        assert {kind: len(rounds) for kind, rounds in single.first.items()} == dict.fromkeys(parts.KINDS, 2)
        assert [len(calls) for calls in single.later["python"]] == [3, 3]
        fleet = parts.fleets([one], 2, 2)["other"]
        assert [len(times) for times in fleet.times] == [len(parts.EPISODE)] * 2
        assert len(fleet.final) == len(fleet.mixed) == 2
        assert fleet.peak.processes >= 1
        assert fleet.peak.megabytes > 1
        rows = parts.growth([one], (1, 2), 1e6, passes=1)["other"]
        assert [row.count for row in rows] == [1, 2]
        assert all(set(row.times) == set(parts.KINDS) and not row.note for row in rows)


def test_a_contender_that_lies_is_not_timed(
    bench: SimpleNamespace, other: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIE", "1")
    with (
        bench.envs_peers.running(other, sys.executable, PROBLEMS) as one,
        pytest.raises(bench.envs_peers.PeerError, match="calculator: expected 72 in '73'"),
    ):
        one.ask(do="steps", kind="calculator")


def test_a_contender_that_fails_is_left_out_of_what_follows(
    bench: SimpleNamespace, other: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIE", "1")
    results = bench.envs_report.Results(titles={"other": "Other 1.0"})
    with bench.envs_peers.running(other, sys.executable, PROBLEMS) as one:
        there = [one]
        measured = bench.envs._part("single steps", lambda those: bench.envs_parts.singles(those, 2), there, results)
        assert (measured, there) == ({}, [])
        assert results.failed["other"].startswith("single steps: steps: AssertionError: ")
        assert bench.envs_parts.fleets([one], 2, 2) == {}
        assert bench.envs_parts.growth([one], (1, 2), 1e6) == {"other": []}
        assert bench.envs_parts.slow([one], 2) == {}


def test_without_ours_it_ends_at_once(
    bench: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = SimpleNamespace(
        name="trajgym", title="trajgym", lacks={}, error="", process=SimpleNamespace(pid=os.getpid())
    )

    def attempt(**request: Any) -> dict[str, Any]:
        ours.error = "fly: it is broken"
        return {}

    ours.attempt = attempt
    monkeypatch.setattr(bench.envs, "_start", lambda *rest: [ours])
    assert bench.envs.main(["--only", "trajgym", "--rounds", "2"]) == 1
    assert "envs: 64 at once: fly: it is broken" in capsys.readouterr().err


@pytest.mark.parametrize("patient", [True, False])
def test_right_answers_that_go_unpaid(bench: SimpleNamespace, other: Any, tmp_path: Path, patient: bool) -> None:
    reason = "" if patient else '    gives_up = "it has no time"\n'
    (tmp_path / "envs_other.py").write_text(
        OTHER.replace('float(kind == "final")', "0.0").replace("    def open", f"{reason}    def open"),
        encoding="utf-8",
    )
    with bench.envs_peers.running(other, sys.executable, PROBLEMS) as one:
        if patient:
            with pytest.raises(bench.envs_peers.PeerError, match="the right answer was paid 0"):
                one.ask(do="steps", kind="final")
        else:
            one.ask(do="steps", kind="final")
            assert one.ask(do="unpaid") == {"unpaid": 16, "answers": 16, "why": "it has no time"}


def test_a_contender_that_is_not_installed_says_so(bench: SimpleNamespace) -> None:
    release = bench.envs_peers.Release("SkyRL-gym", "skyrl")
    with (
        pytest.raises(bench.envs_peers.PeerError, match="No module named 'skyrl_gym'"),
        bench.envs_peers.running(release, sys.executable, PROBLEMS),
    ):
        pass


def test_memory_of_a_tree(bench: SimpleNamespace) -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        peak = bench.envs_peers.Peak()
        peak.look(child.pid)
        child.communicate(b"\n")
    assert (peak.processes, peak.hidden) == (2, 0)
    assert 2 < peak.megabytes < 1000
    peak.look(child.pid)  # it has ended
    assert peak.processes == 2


def test_memory_that_nobody_may_see_is_said(bench: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.envs_peers, "_proportional", lambda process: bench.envs_peers.HIDDEN)
    peak = bench.envs_peers.Peak()
    peak.look(os.getpid())
    assert peak.hidden == peak.processes >= 1
    assert "only root may ask" in bench.envs_report._weight(peak)


# Tables


@pytest.fixture
def results(bench: SimpleNamespace) -> Any:
    """Ours twice as slow as the target asks on the wall, and another that lacks python."""
    parts, pair, twice = bench.envs_parts, [100e-6, 40e-6], [200e-6, 80e-6]
    full = parts.Single({kind: [pair, pair] for kind in parts.KINDS})
    full.later = {kind: [[pair] * 3] * 2 for kind in ("calculator", "python")}
    less = parts.Single({"final": [pair] * 2, "calculator": [pair] * 2}, {"calculator": [[pair] * 3] * 2})
    peak = bench.envs_peers.Peak(300.0, 70)
    return bench.envs_report.Results(
        titles={"trajgym": "trajgym", "asked": "Asked 1.0", "gone": "Gone 2.0"},
        failed={"gone": "does not install here: no such release"},
        lacks={"trajgym": {}, "asked": {"python": "it has none"}},
        singles={"trajgym": full, "asked": less},
        fleets={
            "trajgym": parts.Fleet(64, [pair] * 2, [[pair] * 5] * 2, [twice] * 2, peak),
            "asked": parts.Fleet(64, [pair] * 2, [[pair] * 2] * 2, [], peak),
        },
        unpaid={"asked": {"unpaid": 3, "answers": 1000, "why": "it gives up"}},
        growth={
            "trajgym": [
                parts.Growth(64, dict.fromkeys(parts.KINDS, pair), 500.0, 100.0),
                parts.Growth(1024, dict.fromkeys(parts.KINDS, twice), 6500.0, 100.0),
            ],
            "asked": [parts.Growth(16, note="not run: too big")],
        },
        slow={"trajgym": [0.2, 0.2], "asked": [0.8, 0.8]},
        lines={"trajgym": parts.Counted((5, 8, 5), "all run"), "asked": parts.Counted((9, 9, 9), "all run")},
    )


def test_targets(bench: SimpleNamespace, results: Any) -> None:
    verdicts = {line.what: line.verdict for line in bench.envs_report.target_lines(results)}
    assert verdicts["final-answer step, wall"] == "fail"
    assert verdicts["final-answer step, CPU"] == "pass"
    assert verdicts["64 at once, final answers, wall"] == "fail"  # 10,000 a second
    assert verdicts["64 at once, final answers, CPU"] == "pass"
    assert verdicts["64 at once, python, all calls, wall"] == "pass"
    assert verdicts["64 at once, mixed, wall"] == "fail"  # 5,000 a second, where 5,882 are asked for
    assert verdicts["64 at once, mixed, CPU"] == "pass"
    assert verdicts["64 at once, peak memory"] == "pass"
    assert verdicts["python of an episode, 1,024 at once beside 64"] == "fail"
    assert verdicts["memory of an episode, 1,024 at once beside 64"] == "pass"
    assert verdicts["lines of a new env"] == "pass"


def test_the_page(bench: SimpleNamespace, results: Any) -> None:
    machine = bench.machine.Machine(2, "Some CPU", "3.11.0", "6.1", 0, 3.0)
    page = bench.envs_report.text(results, machine, 2, bench.envs_report.target_lines(results))
    assert "Something else is running" in page
    assert "**Gone 2.0** could not be measured: does not install here: no such release" in page
    assert "Asked 1.0 did not pay 3 of 1,000 right answers: it gives up." in page
    assert "| one step, µs | trajgym | Asked 1.0 |" in page
    assert "| python, later call, wall | 100 | – |" in page
    assert "| final-answer steps/s, CPU | 25,000 | 25,000 |" in page
    assert "| Asked 1.0 | 16 | not run: too big | | | | |" in page
    assert "| mixed steps/s, wall | 5,000 | – |" in page
    assert "– Asked 1.0 takes no mixed step: it lacks python." in page
    assert "trajgym: final ×2.00 (1,024 beside 64), not linear; calculator ×2.00 (1,024 beside 64), not linear" in page
    assert "memory ×1.00 (1,024 beside 64), linear." in page
    assert "Asked 1.0: too few sizes to tell." in page
    assert "| lines: new tool / new environment / scripted episode | 5 / 8 / 5 | 9 / 9 / 9 |" in page
    assert "What is not comparable" in page


def test_our_vector_environment_is_the_one_that_the_page_names(bench: SimpleNamespace) -> None:
    envs = gymnasium.make_vec("trajgym:ArithmeticTool-v0", num_envs=1)
    assert f"trajgym in the {type(envs).__name__} that" in bench.envs_report.COMPARABLE
    envs.close()


def test_the_json_file(bench: SimpleNamespace, results: Any, tmp_path: Path) -> None:
    machine = bench.machine.Machine(2, "Some CPU", "3.11.0", "6.1", 0, 0.0)
    targets = bench.envs_report.target_lines(results)
    bench.envs_report.write_json(tmp_path / "new" / "envs.json", results, machine, targets)
    content = importlib.import_module("json").loads((tmp_path / "new" / "envs.json").read_text(encoding="utf-8"))
    assert content["results"]["fleets"]["trajgym"]["peak"]["processes"] == 70
    assert len(content["targets"]) == len(targets)


# Options and problems


@pytest.mark.parametrize(("arguments", "rounds"), [([], 20), (["--quick"], 4), (["--quick", "--rounds", "7"], 7)])
def test_rounds_option(bench: SimpleNamespace, arguments: list[str], rounds: int) -> None:
    assert bench.envs._options(arguments).rounds == rounds


@pytest.mark.parametrize(
    "arguments", [["--rounds", "1"], ["--only", "gem"], ["--only", "nobody"], ["--sizes", "64", "16"], ["--rouns"]]
)
def test_wrong_options(bench: SimpleNamespace, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        bench.envs.main(arguments)
    assert stop.value.code == 2
    assert "envs.py: error" in capsys.readouterr().err


def test_problems_without_data_are_the_embedded_ones(bench: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(split: str) -> None:
        raise bench.envs.DataError("no data")

    monkeypatch.setattr(bench.envs, "GSM8KTasks", nothing)
    source, problems = bench.envs._problems()
    assert source == "embedded arithmetic"
    assert len(problems) == bench.envs.PROBLEMS
    assert all(problem["answer"].isdecimal() for problem in problems)


def test_a_peer_that_does_not_install_is_reported(
    bench: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.interpreter_peers.make_environment(tmp_path / "envs" / "other", pip=False)  # it exists and has no pip
    release = bench.envs_peers.Release("Other 1.0", "other", ("other==1.0",))
    with pytest.raises(bench.envs_peers.PeerError, match=r"does not install here: .*No module named pip"):
        bench.envs._python(release, tmp_path)
    (tmp_path / "envs" / "other" / "installed.txt").write_text("other==1.0\n", encoding="utf-8")
    assert bench.envs._python(release, tmp_path).exists()  # once it has been installed, pip is not asked again
