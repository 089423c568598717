"""The benchmark's statistics, tables, options and child processes; never its speed."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import io
import json
import math
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
MODULES = ("rounds", "machine", "interpreter_contenders", "interpreter_peers", "interpreter_report",
           "interpreter_parts", "interpreter")  # fmt: skip


@pytest.fixture(scope="module")
def bench() -> Iterator[SimpleNamespace]:
    """The modules of the folder, which is no package: scripts there find each other beside them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
    for name in MODULES:
        del sys.modules[name]


class StandInSession:
    """Runs programs in this process; knows what the benchmark calls."""

    dead = None

    def __init__(self, answer: str | None) -> None:
        self._names: dict[str, Any] = {}
        self._answer = answer

    def call(self, code: str) -> SimpleNamespace:
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            try:
                exec(code, self._names)
            except Exception:
                traceback.print_exc(file=output)
        return SimpleNamespace(text=output.getvalue() if self._answer is None else self._answer)

    async def acall(self, code: str) -> SimpleNamespace:
        await asyncio.sleep(0)
        return self.call(code)

    def close(self) -> None:
        pass

    def __enter__(self) -> StandInSession:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class StandInPool:
    """Gives sessions that are not isolated, or that answer everything alike."""

    isolation = "stand-in"
    answer: str | None = None

    def __init__(self, **options: object) -> None:
        self.options = options

    def open(self, seed: int = 0) -> StandInSession:
        return StandInSession(self.answer)

    def run(self, pairs: list[tuple[StandInSession, str]]) -> list[SimpleNamespace]:
        return [session.call(code) for session, code in pairs]

    def __enter__(self) -> StandInPool:
        return self

    def __exit__(self, *error: object) -> None:
        pass


@pytest.fixture
def stand_in(bench: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> type[StandInPool]:
    class Pool(StandInPool):
        pass

    monkeypatch.setattr(bench.interpreter, "Pool", Pool)
    monkeypatch.setattr(bench.interpreter_parts, "Pool", Pool)
    return Pool


# Statistics


def test_an_estimate_of_equal_rounds_is_exact(bench: SimpleNamespace) -> None:
    assert bench.rounds.estimate(bench.rounds.median, [3.0] * 9) == bench.rounds.Estimate(3.0, 3.0, 3.0)


def test_rounds_are_drawn_whole(bench: SimpleNamespace) -> None:
    # Both contenders are slow in the same rounds: a ratio of the two must not see that as noise.
    slow = list(np.random.default_rng(0).lognormal(size=50))
    median = bench.rounds.median
    got = bench.rounds.estimate(lambda s, t: median(s) / median(t), slow, [x / 8 for x in slow])
    assert (got.value, got.low, got.high) == pytest.approx((8, 8, 8))


def test_percentiles(bench: SimpleNamespace) -> None:
    assert bench.rounds.estimate(bench.rounds.p95, list(range(101))).value == pytest.approx(95)


def test_intervals_hold_the_truth_as_often_as_they_say(bench: SimpleNamespace) -> None:
    source = np.random.default_rng(1)
    samples = [source.exponential(size=60) for _ in range(100)]
    intervals = [bench.rounds.estimate(bench.rounds.median, sample) for sample in samples]
    assert 85 <= sum(one.low <= math.log(2) <= one.high for one in intervals) <= 100
    assert all(one.high - one.low < 1 for one in intervals)


@pytest.mark.parametrize("samples", [([],), ([1.0], [1.0, 2.0])])
def test_samples_must_match(bench: SimpleNamespace, samples: tuple[list[float], ...]) -> None:
    with pytest.raises(ValueError, match="from the same rounds"):
        bench.rounds.estimate(lambda *arrays: arrays[0], *samples)


def test_a_round_may_give_several_figures(bench: SimpleNamespace) -> None:
    rounds = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    whole = bench.rounds.estimate(bench.rounds.median, rounds)
    assert (whole.value, whole.low, whole.high) == (3.5, 2.0, 5.0)  # rounds are drawn whole


def test_every_round_begins_with_the_next_contender(bench: SimpleNamespace) -> None:
    order = ""

    def contender(name: str) -> Callable[[], float]:
        def run() -> float:
            nonlocal order
            order += name
            return float(len(order))

        return run

    seconds = bench.rounds.interleave({name: contender(name) for name in "abc"}, rounds=3, warmup=1)
    assert order == "cab" + "abc" + "bca" + "cab"
    assert seconds == {"a": [4.0, 9.0, 11.0], "b": [5.0, 7.0, 12.0], "c": [6.0, 8.0, 10.0]}


# Tables


@pytest.mark.parametrize(
    ("low", "high", "bound", "target", "verdict"),
    [
        (60, 70, {"least": 50}, "≥ 50 ×", "pass"),
        (40, 70, {"least": 50}, "≥ 50 ×", "unclear"),
        (10, 20, {"least": 50}, "≥ 50 ×", "fail"),
        (1, 2, {"most": 8}, "≤ 8 ×", "pass"),
        (9, 10, {"most": 8}, "≤ 8 ×", "fail"),
        (9, 10, {}, "", ""),
    ],
)
def test_verdicts(
    bench: SimpleNamespace, low: float, high: float, bound: dict[str, float], target: str, verdict: str
) -> None:
    line = bench.interpreter_report.Line("x", "×", bench.rounds.Estimate((low + high) / 2, low, high), **bound)
    assert (line.target, line.verdict) == (target, verdict)


def test_what_was_not_measured_passes_nothing(bench: SimpleNamespace) -> None:
    assert bench.interpreter_report.Line("x", "MB", None, most=8, note="why").verdict == "unclear"


@pytest.mark.parametrize(
    ("value", "shown"), [(0.001234, "0.00123"), (7.5, "7.5"), (99.94, "99.9"), (123.4, "123"), (12345.6, "12,346")]
)
def test_numbers_are_short(bench: SimpleNamespace, value: float, shown: str) -> None:
    assert bench.interpreter_report._number(value) == shown


# Options and the whole


@pytest.mark.parametrize(("arguments", "rounds"), [([], 200), (["--quick"], 20), (["--quick", "--rounds", "7"], 7)])
def test_rounds_option(bench: SimpleNamespace, arguments: list[str], rounds: int) -> None:
    assert bench.interpreter._options(arguments).rounds == rounds


@pytest.mark.parametrize("arguments", [["--rounds", "1"], ["--rounds", "many"], ["--rouns"]])
def test_wrong_options(bench: SimpleNamespace, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        bench.interpreter.main(arguments)
    assert stop.value.code == 2
    assert "interpreter.py: error" in capsys.readouterr().err


def test_the_whole_run(
    bench: SimpleNamespace,
    stand_in: type[StandInPool],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Its environment exists and has no pip.
    bench.interpreter_peers.make_environment(tmp_path / "cache" / "other", pip=False)
    monkeypatch.setattr(
        bench.interpreter, "PEERS", (bench.interpreter_peers.Release("Other 1.0", "other", ("other==1.0",)),)
    )
    file = tmp_path / "figures" / "interpreter.json"
    assert bench.interpreter.main(["--rounds", "2", "--json", str(file), "--cache", str(tmp_path / "cache")]) == 0
    assert bench.interpreter.CANARY not in os.environ
    shown = " ".join(capsys.readouterr().out.split())  # lines end where the page does
    assert "Other 1.0: does not install here: " in shown
    assert "No module named pip" in shown
    figures = json.loads(file.read_text(encoding="utf-8"))
    assert figures["isolation"] == "stand-in"
    assert figures["machine"]["python"] in shown
    contests = {contest["name"]: contest for contest in figures["contests"]}
    assert contests["subprocess"]["probes"] == {
        "reads_files": True, "sees_environment": True, "connects": True, "keeps_state": False,
    }  # fmt: skip
    assert contests["trajgym"]["probes"]["keeps_state"] is True
    assert contests["Other 1.0"]["median"] is None
    lines = {(line["what"], line["unit"]): line for line in figures["lines"]}
    assert lines["call, median", "×"]["estimate"]["value"] > 1
    assert lines["256 sessions, memory each", "MB"]["note"] == "no process was started"
    assert len([line for line in figures["lines"] if line["target"]]) == 11
    assert len(figures["seconds"]["32 sessions"]["asyncio"]) == 2
    assert (tmp_path / "cache" / ".gitignore").read_text(encoding="utf-8") == "*\n"


def test_a_wrong_answer_is_no_result(
    bench: SimpleNamespace, stand_in: type[StandInPool], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in.answer = "7.7"
    assert bench.interpreter.main(["--rounds", "2", "--no-peers", "--cache", str(tmp_path)]) == 1
    assert "expected '7.75' in the output, got '7.7'" in capsys.readouterr().err


# Processes


def test_descendants_and_their_memory(bench: SimpleNamespace) -> None:
    before = bench.machine.descendants(os.getpid())
    nested = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    with subprocess.Popen([sys.executable, "-c", nested], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        started = bench.machine.descendants(os.getpid()) - before
        assert child.pid in started
        assert len(started) == 2
        assert all(10_000 < bench.machine.private_bytes(one) < 10**9 for one in started)
        child.communicate(b"\n")
    assert not started & bench.machine.descendants(os.getpid())
    with pytest.raises(OSError, match=str(child.pid)):
        bench.machine.private_bytes(child.pid)


@pytest.mark.parametrize(("load", "busy"), [(0.0, False), (1.0, False), (1.1, True)])
def test_a_busy_machine(bench: SimpleNamespace, load: float, busy: bool) -> None:
    assert bench.machine.Machine(2, "x", "3.11.0", "6.1", 0, load).busy is busy


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("WARNING: a\nERROR: first\nERROR: No matching distribution\nhint: x\n", "No matching distribution"),
        ("Traceback (most recent call last):\n  File\nModuleNotFoundError: No module named 'x'\n",
         "ModuleNotFoundError: No module named 'x'"),
        ("", "no reason given"),
    ],
)  # fmt: skip
def test_reasons(bench: SimpleNamespace, text: str, reason: str) -> None:
    assert bench.interpreter_peers._reason(text) == reason


@pytest.fixture
def release(bench: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A package laid out as GEM is, with a tool of the worst manners."""
    tools = tmp_path / "gem" / "tools"
    tools.mkdir(parents=True)
    (tmp_path / "gem" / "__init__.py").write_text("import something_huge\n", encoding="utf-8")
    (tools / "python_code_tool.py").write_text(
        "import subprocess, sys, time\n"
        "class PythonCodeTool:\n"
        "    def execute_action(self, action):\n"
        "        print('noise', flush=True)\n"
        "        subprocess.run([sys.executable, '-c', 'input()'], check=False)\n"
        "        if 'end' in action: sys.exit('the tool gave up')\n"
        "        time.sleep(0.05)\n"
        "        return True, False, action, action\n",
        encoding="utf-8",
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return bench.interpreter_peers.Release("GEM", "gem", ())


def test_a_peer_is_timed_where_it_runs(bench: SimpleNamespace, release: Any) -> None:
    with bench.interpreter_peers.running(release, Path(sys.executable)) as peer:
        for code in ("print('é')", "two\nlines"):
            output, seconds = peer.call(code)
            assert output == f"<python>{code}</python>"
            assert 0.05 <= seconds < 60


def test_a_peer_that_ends_says_why(bench: SimpleNamespace, release: Any) -> None:
    with bench.interpreter_peers.running(release, Path(sys.executable)) as peer:
        for _ in range(2):
            with pytest.raises(bench.interpreter_peers.PeerError, match="the tool gave up"):
                peer.call("end")


def test_a_peer_that_is_not_installed(bench: SimpleNamespace) -> None:
    release = bench.interpreter_peers.Release("SkyRL-gym", "skyrl", ())
    with (
        bench.interpreter_peers.running(release, Path(sys.executable)) as peer,
        pytest.raises(bench.interpreter_peers.PeerError, match="No module named 'skyrl_gym'"),
    ):
        peer.call("print(1)")


def test_memory_that_only_root_may_see(bench: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(process: int) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(bench.interpreter_parts, "private_bytes", refuse)
    line = bench.interpreter_parts._memory(2, {1, 2})
    assert (line.estimate, line.verdict) == (None, "unclear")
    assert "Permission denied" in line.note


def test_memory_is_shared_out_among_the_sessions(bench: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.interpreter_parts, "private_bytes", lambda process: 6_000_000)
    assert bench.interpreter_parts._memory(4, {1, 2}).estimate.value == pytest.approx(3)


def test_no_isolation_no_benchmark(
    bench: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> None:
        raise bench.interpreter.IsolationUnavailable("no namespaces")

    monkeypatch.setattr(bench.interpreter, "Pool", refuse)
    assert bench.interpreter.main(["--quick", "--no-peers"]) == 1
    assert "interpreter: no namespaces" in capsys.readouterr().err
