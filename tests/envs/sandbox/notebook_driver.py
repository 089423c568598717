"""A program that runs cells in a Notebook the way a worker does: standard library and ``envs/sandbox`` alone.

Standard input holds one JSON object: ``codes``, and optionally ``limit`` (characters), ``memory`` (bytes of address
space beyond what the start takes), ``seed``, ``packages`` (a folder), ``preload`` (module names). Standard output gets
one line of JSON per cell, the reply with what the cell wrote under ``output``.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from types import ModuleType

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))


def main() -> None:
    order = json.load(sys.stdin)
    for name, folder in (("trajgym", "trajgym"), ("trajgym.envs", "envs"), ("trajgym.envs.sandbox", "envs/sandbox")):
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__path__ = [os.path.join(ROOT, folder)]
    sys.path.append(order.get("packages", ROOT))
    sys.dont_write_bytecode = True
    from trajgym.envs.sandbox.cell import Notebook
    from trajgym.envs.sandbox.threads import install

    install()
    for name in order.get("preload", ()):
        __import__(name)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    answers, output = os.dup(1), os.memfd_create("output")
    os.dup2(output, 1)
    # Bound now: cells replace these.
    dumps, write, pread, leave = json.dumps, os.write, os.pread, os._exit
    if "memory" in order:
        with open("/proc/self/statm") as file:
            most = int(file.read().split()[0]) * resource.getpagesize() + order["memory"]
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    notebook = Notebook()
    if "seed" in order:
        notebook.seed(order["seed"])
    done = 0
    for code in order["codes"]:
        reply = notebook.run(code, order.get("limit", 10_000))
        written = b""
        while part := pread(output, 4096, done):
            written += part
            done += len(part)
        reply["output"] = written.decode("utf-8", "replace")
        write(answers, dumps(reply).encode() + b"\n")
    leave(0)


if __name__ == "__main__":
    main()
