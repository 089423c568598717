"""Scratch folders: each session's own, bounded, and gone with it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trajgym.envs.sandbox import IsolationUnavailable, Kind, Limits, Pool, selftest
from trajgym.errors import ConfigError

MEBIBYTE = 1 << 20
SECONDS = 20.0  # for what should happen at once, on a machine that is busy


def make(tier: str, **options: object) -> Pool:
    try:
        return Pool(isolation=tier, packages=(), **options)  # type: ignore[arg-type]
    except IsolationUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary files go, a place that every user may enter."""
    with tempfile.TemporaryDirectory(prefix="trajgym-tests-", dir="/tmp") as made:
        os.chmod(made, 0o755)
        monkeypatch.setattr(tempfile, "tempdir", made)
        yield Path(made)


def test_a_pool_that_dies_and_comes_back_makes_new_folders(folder: Path, kill: Callable[[Pool], None]) -> None:
    with make("landlock", limits=Limits(scratch=MEBIBYTE)) as pool:
        for restarts in range(3):
            with pool.open() as session:
                assert session.call("open('file', 'w').write('text')").output == "4"
            assert pool.restarts == restarts
            kill(pool)
        assert pool.open().call("open('file').read()").error_type == "FileNotFoundError"
    assert list(folder.iterdir()) == []


def test_scratch_without_namespaces_is_asked_for_beforehand(folder: Path) -> None:
    with make("landlock") as pool:
        with pool.open() as session:
            assert session.call("open('file', 'w')").kind is Kind.USER_ERROR
            assert session.call("import tempfile; tempfile.mkdtemp()").kind is Kind.USER_ERROR
        with pytest.raises(ConfigError, match=r"asked for when the pool is made: Pool\(limits=Limits\(scratch"):
            pool.open(limits=Limits(scratch=MEBIBYTE))
        assert list(folder.iterdir()) == []


def test_scratch_without_namespaces_is_each_sessions_own_and_goes_with_it(folder: Path) -> None:
    with make("landlock", limits=Limits(scratch=MEBIBYTE)) as pool:
        with pool.open() as one, pool.open() as other:
            assert one.call("open('file', 'w').write('mine')").output == "4"
            assert (
                one.call("import os, tempfile; tempfile.gettempdir() == os.getcwd() == os.environ['HOME']").output
                == "True"
            )
            path = one.call("print(os.getcwd())").output.strip()
            assert Path(path, "file").read_text() == "mine"
            assert other.call("open('file')").error_type == "FileNotFoundError"
            assert other.call(f"open({path + '/file'!r})").kind is Kind.USER_ERROR
            result = one.call("f = open('big', 'wb')\nf.write(bytes(2 << 20))\nf.flush()")
            assert (result.kind, Path(path, "big").stat().st_size <= MEBIBYTE) == (Kind.USER_ERROR, True)
            assert one.call("open('file').read()").output == "'mine'"
        assert not os.path.exists(path)
        lost = pool.open()
        lost.call("open('file', 'w').write('x')")
        assert lost.call("import os\nos._exit(0)").kind is Kind.PROCESS_EXIT
        kept = pool.open()
        kept.call("open('file', 'w').write('x')")
        none = pool.open(limits=Limits(scratch=0))
        assert none.call("open('file', 'w')").kind is Kind.USER_ERROR
        (inner,) = folder.iterdir()
        assert len(list(inner.iterdir())) == 1  # of the one that is still open
    assert list(folder.iterdir()) == []


def test_scratch_with_namespaces_is_in_memory(folder: Path) -> None:
    with make("namespaces") as pool:
        with pool.open(limits=Limits(scratch=MEBIBYTE)) as session:
            assert session.call("open('file', 'wb').write(bytes(1 << 19))").ok
            assert session.call("open('more', 'wb').write(bytes(1 << 20))").kind is Kind.USER_ERROR
        with pool.open(limits=Limits(scratch=0)) as session:
            assert session.call("open('file', 'w')").kind is Kind.USER_ERROR
        with pool.open() as session:
            assert session.call("open('file', 'wb').write(bytes(8 << 20))").ok
        assert list(folder.iterdir()) == []


def test_a_pool_that_cannot_be_had_leaves_no_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make("landlock").close()
    monkeypatch.setattr(selftest, "misses", lambda session, packages: ["forks"])
    before = os.listdir("/proc/self/fd")
    with pytest.raises(IsolationUnavailable, match=r"namespaces: .*\n  landlock: its self-test failed: forks"):
        Pool(packages=(), limits=Limits(scratch=MEBIBYTE))
    assert list(folder.iterdir()) == []
    assert os.listdir("/proc/self/fd") == before


def test_a_scratch_folder_that_cannot_be_made_is_the_machines_fault(folder: Path) -> None:
    with make("landlock", limits=Limits(scratch=MEBIBYTE)) as pool:
        (inner,) = folder.iterdir()
        shutil.rmtree(inner)
        with pytest.raises(IsolationUnavailable, match="scratch folder could not be made"):
            pool.open()
