"""List the environments, or show the documentation of one."""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
from collections.abc import Sequence

import gymnasium
from rich.console import Console
from rich.table import Table

from trajgym.envs.base import ToolEnv
from trajgym.envs.make import ids
from trajgym.errors import UnknownNameError

__all__ = ["main"]


def main(args: Sequence[str]) -> int:
    """Print the catalogue, or one environment's docstring."""
    parser = argparse.ArgumentParser(prog="trajgym envs", description=__doc__)
    parser.add_argument("id", nargs="?", help="show this environment's documentation")
    chosen = parser.parse_args(args).id
    ours = {env_id: gymnasium.registry[env_id] for env_id in ids()}
    if chosen is not None:
        if chosen not in ours:
            raise UnknownNameError("environment", chosen, ours)
        print(f"{chosen}\n\n{_documentation(_class(str(ours[chosen].entry_point)))}")
        return 0
    table = Table("id", "what", "arguments", title="Environments")
    for env_id in sorted(ours):
        what = (inspect.getdoc(_class(str(ours[env_id].entry_point))) or "").split("\n")[0]
        arguments = ", ".join(f"{k}={v!r}" for k, v in ours[env_id].kwargs.items()) or "defaults"
        table.add_row(env_id, what, arguments)
    console = Console()
    with console.capture() as captured:  # rich would answer a closed pipe in its own way
        console.print(table)
    print(captured.get(), end="")
    print("trajgym envs ID shows the documentation; trajgym play ID lets you play.")
    return 0


def _class(entry_point: str) -> type:
    module, name = entry_point.split(":")
    found: type = getattr(importlib.import_module(module), name)
    return found


def _documentation(environment: type) -> str:
    """Return a docstring as it reads in a terminal, with what it takes over from :class:`ToolEnv`."""
    shared = _sections(inspect.getdoc(ToolEnv) or "")
    own = _sections(inspect.getdoc(environment) or "")
    parts = []
    for heading, body in own.items():
        referred = heading in shared and re.match(r"As in :class:`trajgym\.envs\.base\.ToolEnv`[.;]?\s*", body)
        if referred:
            parts.append(heading + "\n".join(filter(None, [shared[heading], body[referred.end() :]])))
        else:
            parts.append(heading + body)
    if environment is not ToolEnv:
        parts.append("Args of every environment:\n" + shared.get("Args:\n", ""))
    return re.sub(r":\w+:`(.*?)`", r"\1", "\n\n".join(parts)).replace("``", "")


def _sections(doc: str) -> dict[str, str]:
    """Cut a docstring at its headings; the text before the first one has the heading ``""``."""
    first, *rest = re.split(r"^(##[^\n]*\n|[A-Z]\w*:\n)", doc, flags=re.MULTILINE)
    return {"": first.strip("\n")} | {h: body.strip("\n") for h, body in zip(rest[::2], rest[1::2], strict=True)}
