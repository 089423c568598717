"""What a call gives: one text to show, and errors that are told apart."""

from __future__ import annotations

import dataclasses
import pickle
import re

import pytest

from trajgym.envs.sandbox import IsolationUnavailable, Kind, PoolClosed, Result
from trajgym.envs.sandbox.text import join
from trajgym.errors import EnvironmentFault, TrajgymError

MARKER = re.compile(r"\n\[… (\d+) characters dropped …\]\n")


def test_only_ok_is_success() -> None:
    assert [kind for kind in Kind if Result(kind).ok] == [Kind.OK]
    assert not Result(Kind.EXIT, exit_code=0).ok


def test_a_kind_is_written_as_its_value() -> None:
    assert (f"{Kind.CPU_TIMEOUT}", Kind("CpuTimeout"), Kind.CPU_TIMEOUT.value) == (
        "CpuTimeout",
        Kind.CPU_TIMEOUT,
        "CpuTimeout",
    )


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (Result(Kind.OK), ""),
        (Result(Kind.OK, "4\n", message="not shown"), "4\n"),
        (Result(Kind.USER_ERROR, "", traceback="Traceback …\nE: x\n"), "Traceback …\nE: x\n"),
        (Result(Kind.USER_ERROR, "half a line", traceback="Traceback …"), "half a line\nTraceback …"),
        (Result(Kind.USER_ERROR, "a line\n", traceback="Traceback …"), "a line\nTraceback …"),
        (Result(Kind.CPU_TIMEOUT, "", message="More than 1 s."), "CpuTimeout: More than 1 s."),
        (Result(Kind.EXIT, "bye", exit_code=3), "bye\nExit: "),
    ],
)
def test_the_text_is_the_output_and_then_what_went_wrong(result: Result, text: str) -> None:
    assert result.text == text
    assert result.text_within(10_000) == text


@pytest.mark.parametrize("length", [100, 9_000, 10_000, 30_000])
def test_within_a_limit_the_output_gives_way_and_the_count_stays_right(length: int) -> None:
    output, dropped = ("o" * length, 0) if length <= 10_000 else (join("o" * 5_000, "o" * 5_000, 20_000), 20_000)
    trace = "Traceback\n" + "t" * 3_000
    text = Result(Kind.USER_ERROR, output, dropped, traceback=trace).text_within(10_000)
    assert len(text) <= 10_000
    assert text.endswith("\n" + trace)
    shown = text.removesuffix("\n" + trace)
    head, *rest = MARKER.split(shown)
    counted, tail = (int(rest[0]), rest[1]) if rest else (0, "")
    assert set(head + tail) == {"o"}
    assert len(head) + counted + len(tail) == length


def test_a_result_cannot_be_changed_and_can_be_sent_and_compared() -> None:
    result = Result(Kind.CRASH, signal=11, state_lost=True)
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.kind = Kind.OK  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(result)) == result


@pytest.mark.parametrize("error", [IsolationUnavailable, PoolClosed])
def test_errors_of_the_machinery_make_a_trajectory_invalid(error: type[Exception]) -> None:
    assert issubclass(error, EnvironmentFault)
    assert issubclass(error, TrajgymError)
