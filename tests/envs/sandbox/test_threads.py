"""Threads that run in the call that starts them; each test in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

BEFORE = """
import _thread, concurrent.futures as cf, threading, time
from trajgym.envs.sandbox.threads import install
def refuse(*args, **kwargs):
    raise RuntimeError("a real thread")
_thread.start_new_thread = threading._start_new_thread = refuse
install()
def raised(call, *args):
    try:
        call(*args)
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
def main():
"""


@pytest.fixture
def seen(child: Callable[..., Any]) -> Callable[[str], Any]:
    """Run the body of a function after ``install()`` and return what it returns."""

    def run(body: str) -> Any:
        ended = child(BEFORE + "\n".join("    " + line for line in body.splitlines()) + "\nseen['it'] = main()\n")
        assert ended.status == 0, ended.errors
        return ended.seen["it"], ended.errors

    return run


class TestThread:
    def test_start_runs_to_the_end(self, seen: Callable[[str], Any]) -> None:
        out, _ = seen(
            """
out = []
t = threading.Thread(target=lambda x: out.append((x, t.is_alive(), threading.current_thread() is t)), args=(72,))
before = t.is_alive(), t.ident
t.start()
out.append("after")
t.join(); t.join(1)
return before, out, t.is_alive(), t.ident == threading.get_ident(), threading.current_thread().name
"""
        )
        assert out == [[False, None], [[72, True, True], "after"], False, True, "MainThread"]

    def test_subclasses_names_and_nesting(self, seen: Callable[[str], Any]) -> None:
        out, _ = seen(
            """
out = []
class Own(threading.Thread):
    def run(self):
        out.append(threading.current_thread().name)
        if self.name == "outer":
            inner = Own(name="inner")
            inner.start()
            inner.join()
        out.append(threading.current_thread().name)
Own(name="outer").start()
return out
"""
        )
        assert out == ["outer", "inner", "inner", "outer"]

    def test_misuse(self, seen: Callable[[str], Any]) -> None:
        out, _ = seen(
            """
t = threading.Thread(target=int)
out = [raised(t.join)]
t.start()
out += [raised(t.start), raised(threading.main_thread().join)]
u = threading.Thread(target=lambda: out.append(raised(u.join)))
u.start()
class Bare(threading.Thread):
    def __init__(self): pass
return out + [raised(Bare().start)]
"""
        )
        assert out == [
            "RuntimeError: cannot join thread before it is started",
            "RuntimeError: threads can only be started once",
            "RuntimeError: cannot join current thread",
            "RuntimeError: cannot join current thread",
            "RuntimeError: thread.__init__() not called",
        ]

    def test_daemons_are_refused(self, seen: Callable[[str], Any]) -> None:
        (message, alive), _ = seen(
            "t = threading.Thread(target=print, args=('late',), daemon=True)\nreturn raised(t.start), t.is_alive()"
        )
        assert message.startswith("RuntimeError: can't start new thread: ")
        assert "background" in message
        assert not alive

    def test_an_error_is_printed_without_our_frames(self, seen: Callable[[str], Any]) -> None:
        out, errors = seen(
            """
source = "def f(): 1/0\\nimport threading\\nthreading.Thread(target=f, name='T').start()\\n" \\
    "threading.Thread(target=exit_).start()\\nx = 72"
names = {"exit_": lambda: sys.exit(3)}
exec(compile(source, "<cell 1>", "exec"), names)
return names["x"], threading.current_thread().name
"""
        )
        assert out == [72, "MainThread"]
        assert errors.splitlines() == [
            "Exception in thread T:",
            "Traceback (most recent call last):",
            '  File "<cell 1>", line 1, in f',
            "ZeroDivisionError: division by zero",
        ]

    def test_a_hook_of_the_callers(self, seen: Callable[[str], Any]) -> None:
        out, errors = seen(
            """
out = []
threading.excepthook = lambda args: out.append((args.exc_type.__name__, args.thread.name))
threading.Thread(target=lambda: 1/0, name="T").start()
return out
"""
        )
        assert out == [["ZeroDivisionError", "T"]]
        assert errors == ""

    def test_timer(self, seen: Callable[[str], Any]) -> None:
        out, _ = seen(
            """
out, start = [], time.monotonic()
threading.Timer(0.05, out.append, [1]).start()
early = threading.Timer(9, out.append, [2])
early.cancel()
early.start()
return out, 0.05 <= time.monotonic() - start < 9
"""
        )
        assert out == [[1], True]


class TestExecutor:
    def test_calls_run_in_submit(self, seen: Callable[[str], Any]) -> None:
        out, _ = seen(
            """
out = []
with cf.ThreadPoolExecutor(4, thread_name_prefix="p") as pool:
    future = pool.submit(lambda x, y: out.append(threading.current_thread().name) or x + y, 48, y=24)
    out += [future.done(), future.result(0), list(pool.map(pow, [2, 3], [5, 2]))]
    futures = [pool.submit(abs, -i) for i in range(3)]
    out += [sorted(f.result() for f in cf.as_completed(futures)), len(cf.wait(futures).done)]
    future.add_done_callback(lambda f: out.append("called"))
return out, raised(pool.submit, int)
"""
        )
        assert out == [
            ["p_0", True, 72, [32, 9], [0, 1, 2], 3, "called"],
            "RuntimeError: cannot schedule new futures after shutdown",
        ]

    def test_errors_stay_in_the_future(self, seen: Callable[[str], Any]) -> None:
        out, errors = seen(
            """
pool = cf.ThreadPoolExecutor()
future = pool.submit(lambda: 1/0)
left = pool.submit(sys.exit, 3)
return raised(future.result), raised(left.result), raised(list, pool.map(lambda x: 1/x, [1, 0]))
"""
        )
        assert out == ["ZeroDivisionError: division by zero", "SystemExit: 3", "ZeroDivisionError: division by zero"]
        assert errors == ""

    def test_initializer(self, seen: Callable[[str], Any]) -> None:
        out, errors = seen(
            """
out = []
pool = cf.thread.ThreadPoolExecutor(2, initializer=out.append, initargs=("once",))
pool.submit(out.append, 1); pool.submit(out.append, 2)
broken = cf.ThreadPoolExecutor(initializer=lambda: 1/0)
return out, [raised(broken.submit, out.append, 3) for _ in range(2)]
"""
        )
        assert out[0] == ["once", 1, 2]
        assert all(message.startswith("BrokenThreadPool: ") for message in out[1])
        assert errors.count("ZeroDivisionError") == 1

    def test_arguments_are_checked(self, seen: Callable[[str], Any]) -> None:
        out, _ = seen("return raised(cf.ThreadPoolExecutor, 0), raised(lambda: cf.ThreadPoolExecutor(initializer=3))")
        assert [message.split(":")[0] for message in out] == ["ValueError", "TypeError"]


def test_the_raw_call_stays_as_it_is_and_twice_is_once(child: Callable[..., Any]) -> None:
    ended = child(
        "import _thread, threading\nfrom trajgym.envs.sandbox.threads import install\nraw = _thread.start_new_thread\n"
        "install(); first = threading.Thread.start, threading.current_thread; install()\n"
        "again = threading.Thread.start, threading.current_thread\n"
        "seen['it'] = _thread.start_new_thread is raw, first == again, threading.current_thread().name\n"
    )
    assert ended.seen == {"it": [True, True, "MainThread"]}, ended.errors
