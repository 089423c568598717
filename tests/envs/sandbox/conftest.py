"""What tests of the sandbox start: fresh processes with the jail's side, and drivers (``driver.py``) as several users.

A driver attacks and watches from outside; the jail must hold for root as well as for a user without any rights.
"""

from __future__ import annotations

import gc
import importlib.metadata
import json
import os
import pwd
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from trajgym.envs.sandbox import IsolationUnavailable, Pool

ROOT = Path(__file__).resolve().parents[3]
CASES = Path(os.environ.get("TRAJGYM_CASES") or ROOT.parent / "shared" / "cases")

HEADERS = {"x86_64": "/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "aarch64": "/usr/include/asm-generic/unistd.h"}

# Standard library and ``envs/sandbox``, nothing else. ``tried(f, …)`` is "ok", or the name of the error number; what is
# put into ``seen`` comes back as JSON.
BEFORE = f"""
import errno, json, os, sys, types
for name, folder in (("trajgym", "trajgym"), ("trajgym.envs", "envs"), ("trajgym.envs.sandbox", "envs/sandbox")):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [{str(ROOT)!r} + "/" + folder]
def tried(call, *args, **options):
    try:
        call(*args, **options)
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))
    return "ok"
seen = {{}}
"""
AFTER = """
print(json.dumps(seen), flush=True)
"""


@dataclass(frozen=True)
class Ended:
    """How a child ended: its exit status (negative: the signal), what it saw, what it complained of."""

    status: int
    seen: dict[str, Any] = field(default_factory=dict)
    errors: str = ""


@pytest.fixture
def child() -> Callable[..., Ended]:
    """Run code in a fresh process; ``given`` becomes the list ``given`` of strings there."""

    def run(code: str, *given: object) -> Ended:
        source = f"{BEFORE}given = {[str(value) for value in given]!r}\n{code}{AFTER}"
        command = [sys.executable, "-I", "-S", "-c", source]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)
        return Ended(done.returncode, json.loads(done.stdout or "{}"), done.stderr)

    return run


@pytest.fixture
def kernel_numbers() -> Callable[[str], dict[str, int]]:
    """Read the number of every system call of a machine from the kernel's headers."""

    def read(machine: str) -> dict[str, int]:
        header = Path(HEADERS[machine])
        if not header.exists():
            pytest.skip(f"{header} is not here (package linux-libc-dev)")
        text = header.read_text()
        found = {name: int(number) for name, number in re.findall(r"#define __NR(\w+)\s+(\d+)", text)}
        # The generic header names some of them in two steps.
        steps = re.findall(r"#define __NR(_\w+)\s+__NR(3264_\w+)", text)
        found |= {name: found[other] for name, other in steps if other in found}
        assert len(found) > 250
        return {name.removeprefix("_"): number for name, number in found.items() if name.startswith("_")}

    return read


@dataclass(frozen=True)
class User:
    """Somebody to run drivers as.

    Args:
        name: For the names of tests.
        uid: User id to become, or ``None`` to stay.
        python: The interpreter.
        path: Where it finds ``trajgym`` and what that needs, besides what it finds anyway.
    """

    name: str
    uid: int | None
    python: str
    path: str = ""

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """Start this user's Python with a clean environment."""
        if self.uid is not None:
            options |= {"user": self.uid, "group": self.uid, "extra_groups": []}
        environment = {"PATH": "", "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        if path := self.path or os.environ.get("PYTHONPATH"):
            environment["PYTHONPATH"] = path
        environment |= options.pop("environment", {})
        command = [self.python, *(["-S"] if self.path else []), *arguments]
        return subprocess.Popen(command, env=environment, cwd="/", text=True, **options)


class Machine:
    """A driver on one isolation, started when first needed and again after it died.

    Args:
        user: Who it runs as.
        tier: The isolation.
        folder: Everybody may enter it; the driver makes its own in there.
    """

    SECONDS = 60

    def __init__(self, user: User, tier: str, folder: str) -> None:
        self.user, self.tier = user, tier
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None
        self.facts = self._begin()

    def ask(self, do: str, **order: Any) -> Any:
        """Give one order and return the answer."""
        if self._process is None:
            self._begin()
        answer = self._talk({"do": do, **order})
        assert "failed" not in answer, answer["failed"]
        return answer["is"]

    def close(self) -> None:
        """End the driver, which ends with its input."""
        process, self._process = self._process, None
        if process is not None:
            try:
                process.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()

    def _begin(self) -> dict[str, Any]:
        own = tempfile.mkdtemp(dir=self._folder)
        os.chmod(own, 0o777)
        self._process = self.user.start(
            shutil.copy(Path(__file__).parent / "driver.py", self._folder),
            self.tier,
            own,
            environment={"TMPDIR": own},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        return self._talk(None)

    def _talk(self, order: dict[str, Any] | None) -> dict[str, Any]:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        line = ""
        try:
            if order is not None:
                print(json.dumps(order), file=process.stdin, flush=True)
            if select.select([process.stdout], [], [], self.SECONDS)[0]:
                line = process.stdout.readline()
        except BrokenPipeError:
            pass
        if not line:
            process.kill()
            self.close()
            pytest.fail(f"the driver died or hung (status {process.returncode}) over {order}")
        answer: dict[str, Any] = json.loads(line)
        return answer


@pytest.fixture(scope="module")
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    """A pool without packages, of the strongest isolation of this machine or of the one that is asked for."""
    try:
        pool = Pool(isolation=getattr(request, "param", None), packages=())
    except IsolationUnavailable as error:
        pytest.skip(str(error))
    with pool:
        yield pool


@pytest.fixture
def nothing_is_left(pool: Pool) -> Iterator[None]:
    """Check that a test closes its files."""
    gc.collect()  # what tests of other files left must not go meanwhile
    before = os.listdir("/proc/self/fd")
    yield
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= len(before)


@pytest.fixture
def zygote() -> Callable[[Pool], int]:
    """Find the process id of a pool's zygote: the only child of the process that was started."""

    def find(pool: Pool) -> int:
        children = []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    stat = Path(f"/proc/{entry}/stat").read_text()
                except OSError:
                    continue
                if int(stat.rpartition(")")[2].split()[1]) == pool._link.pid:
                    children.append(int(entry))
        (pid,) = children
        return pid

    return find


@pytest.fixture
def kill(zygote: Callable[[Pool], int]) -> Callable[[Pool], None]:
    """End a pool's zygote and wait until that is seen."""

    def end(pool: Pool) -> None:
        os.kill(zygote(pool), signal.SIGKILL)
        deadline = time.monotonic() + 20.0
        while pool._link.alive():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    return end


@pytest.fixture(scope="session")
def open_folder() -> Iterator[str]:
    """A folder that every user may enter, unlike those that pytest makes."""
    with tempfile.TemporaryDirectory(prefix="trajgym-tests-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o755)
        yield folder


@pytest.fixture(scope="session")
def users(open_folder: str) -> Callable[[str], User]:
    """Who can run things: ``self`` and, for root, ``unprivileged``; skips where there is no such user."""
    known = {"self": User("self", None, sys.executable)}

    def find(name: str) -> User:
        if name not in known:
            if os.geteuid() != 0:
                pytest.skip("only root can run things as somebody else")
            known[name] = _unprivileged(open_folder)
        return known[name]

    return find


MACHINES = [(user, tier) for user in ("self", "unprivileged") for tier in ("namespaces", "landlock")]


@pytest.hookimpl(trylast=True)  # so that a test's own parameters begin its name
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "host" in metafunc.fixturenames:
        # The case files run on all; of the many more attacks of our own, half of the combinations wait for `-m slow`.
        later = MACHINES[1:3] if metafunc.module.__name__.endswith("test_attacks") else []
        values = [pytest.param(pair, marks=pytest.mark.slow if pair in later else ()) for pair in MACHINES]
        names = ["-".join(pair) for pair in MACHINES]
        metafunc.parametrize("host", values, ids=names, indirect=True, scope="session")


@pytest.fixture(scope="session")
def host(request: pytest.FixtureRequest, users: Callable[[str], User], open_folder: str) -> Iterator[Machine]:
    """A driver for each kind of user and isolation."""
    user, tier = request.param
    machine = Machine(users(user), tier, open_folder)
    try:
        if "unavailable" in machine.facts:
            pytest.skip(machine.facts["unavailable"])
        yield machine
    finally:
        machine.close()


def _unprivileged(folder: str) -> User:
    """Return a user that nobody is, with copies of what it may not read where it is."""
    taken = {account.pw_uid for account in pwd.getpwall()}
    uid = next(number for number in range(61_500, 62_000) if number not in taken)
    site = f"{folder}/site"
    shutil.copytree(ROOT / "trajgym", f"{site}/trajgym", ignore=shutil.ignore_patterns("__pycache__"))
    rows = (CASES / "interpreter.jsonl").read_text(encoding="utf-8") if CASES.is_dir() else ""
    optional = [name for line in rows.split("\n") if line for name in json.loads(line).get("needs", ())]
    for distribution in _requirements(["trajgym", "sympy", *optional]):
        _copy(distribution, site)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    reasons = []
    for python in (os.path.realpath(sys.executable), *(f"{at}/{version}" for at in ("/usr/bin", "/usr/local/bin"))):
        user = User("unprivileged", uid, python, site)
        try:
            trial = user.start("-c", "import numpy, trajgym.envs.sandbox", stderr=subprocess.PIPE)
        except OSError as error:
            reasons.append(str(error))
            continue
        complaint = trial.communicate()[1]
        if not trial.returncode:
            return user
        reasons.append(f"{python}: {complaint.strip()[-300:]}")
    pytest.skip(f"no {version} that another user can run: {'; '.join(reasons)}")


def _requirements(names: Iterable[str]) -> Iterator[importlib.metadata.Distribution]:
    """Yield the distributions of these names, as far as they are installed, and all that they require."""
    queue = list(names)
    for name in queue:  # grows while it is walked
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        yield distribution
        for requirement in distribution.requires or ():
            other = re.match(r"[\w.-]+", requirement)
            if other is not None and "extra ==" not in requirement and other[0] not in queue:
                queue.append(other[0])


def _copy(distribution: importlib.metadata.Distribution, site: str) -> None:
    """Link the files of a distribution into a folder; where it is on another disk, copy them."""
    for file in distribution.files or ():
        if file.parts[0] != ".." and "tests" not in file.parts:
            source, target = str(distribution.locate_file(file)), f"{site}/{file}"
            if os.path.exists(target):  # some list a file twice
                continue
            os.makedirs(os.path.dirname(target), exist_ok=True)
            try:
                os.link(source, target)
            except OSError:
                shutil.copy2(source, target)  # with its time, by which compiled files are known to be current
