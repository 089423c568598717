"""Nobody has to watch a run: it goes on where its output cannot be written."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trajgym.trainers.telling import say

MANY = """
import sys
from trajgym.trainers.telling import say
for number in range(20000):
    say(f"update {number} of many")
print("the run is over", file=sys.stderr)
"""


def told(stdout: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", MANY], stdout=stdout, stderr=subprocess.PIPE, text=True, check=False, timeout=300
    )


def test_a_reader_that_goes_away() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = told(writing)
    os.close(writing)
    assert done.returncode == 0
    assert done.stderr.count("Standard output is gone") == 1
    assert "metrics.jsonl has everything" in done.stderr
    assert done.stderr.endswith("the run is over\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_disk_that_is_full() -> None:
    with open("/dev/full", "w") as full:
        done = told(full.fileno())
    assert done.returncode == 0
    assert "No space left on device" in done.stderr
    assert done.stderr.endswith("the run is over\n")


def test_an_output_that_is_closed_or_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    say("one line")
    assert capsys.readouterr().out == "one line\n"
    (closed := io.StringIO()).close()
    monkeypatch.setattr(sys, "stdout", closed)
    with pytest.warns(RuntimeWarning, match=r"Standard output is gone \(I/O operation on closed file"):
        say("nobody hears it")
    monkeypatch.setattr(sys, "stdout", None)  # what Python makes of `>&-`
    say("nobody hears it")
