"""List the environments, or show the documentation of one."""

from __future__ import annotations

import argparse
import importlib
import inspect
from collections.abc import Sequence

import gymnasium
from rich.console import Console
from rich.table import Table

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
        print(f"{chosen}\n\n{inspect.getdoc(_class(str(ours[chosen].entry_point)))}")
        return 0
    table = Table("id", "what", "arguments", title="Environments")
    for env_id in sorted(ours):
        what = (inspect.getdoc(_class(str(ours[env_id].entry_point))) or "").split("\n")[0]
        arguments = ", ".join(f"{k}={v!r}" for k, v in ours[env_id].kwargs.items()) or "defaults"
        table.add_row(env_id, what, arguments)
    Console().print(table)
    print("trajgym envs ID shows the documentation; trajgym play ID lets you play.")
    return 0


def _class(entry_point: str) -> type:
    module, name = entry_point.split(":")
    found: type = getattr(importlib.import_module(module), name)
    return found
