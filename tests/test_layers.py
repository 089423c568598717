"""Which file may import which, read from the syntax trees, so that nothing has to be imported to find out."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Low to high. A file imports from its own entry and from the rows above it; entries of one row stay apart.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("foundation",),
    ("rewards",),
    ("policies", "envs"),
    ("root",),
    ("rollout",),
    ("evaluation",),
    ("trainers",),
    ("serving",),
    ("commands",),
)
ROW = {entry: row for row, entries in enumerate(LAYERS) for entry in entries}

# What stands in trajgym/ itself; each folder beside it is an entry of its own name.
ENTRY_OF = {
    "types": "foundation",
    "errors": "foundation",
    "registry": "foundation",
    "protocols": "foundation",
    "rollout": "rollout",
    "rollout_deadline": "rollout",
    "rollout_faults": "rollout",
    "rollout_pool": "rollout",
    "rollout_replies": "rollout",
    "rollout_states": "rollout",
    "rollout_subagent": "rollout",
    "scripts": "commands",
    "cli": "commands",
}
FOLDERS = ("rewards", "policies", "envs", "evaluation", "trainers", "serving", "scripts")

HEAVY = {"torch", "transformers", "datasets", "accelerate", "peft"}
LIGHT_ENTRIES = {"foundation", "root", "rewards", "envs"}  # and cli, see _is_light


def _module_name(path: Path, root: Path) -> str:
    parts = list(path.relative_to(root).with_suffix("").parts)
    if parts[0] != "trajgym":
        parts.insert(0, "trajgym")
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _entry(module: str) -> str | None:
    """The entry of the table that a ``trajgym`` module belongs to, or None when it belongs to none."""
    parts = module.split(".")
    if len(parts) == 1:
        return "root"
    return ENTRY_OF.get(parts[1], parts[1] if parts[1] in FOLDERS else None)


def _sources(root: Path) -> Iterator[Path]:
    """Every module once: by its real folder, not a second time through the links in trajgym/."""
    for folder in ("trajgym", *FOLDERS):
        for path in sorted((root / folder).rglob("*.py")):
            if not any(parent.is_symlink() for parent in path.parents if parent.is_relative_to(root)):
                yield path


def _imports(tree: ast.Module) -> Iterator[tuple[ast.AST, str, int]]:
    """Yield (node, dotted name, relative level) of each import, at any depth.

    ``from a import b`` yields ``a.b``, since only that names the module when ``a`` is a package. A constant name
    given to ``import_module`` counts as well.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name, 0) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node, f"{node.module or ''}.{alias.name}".strip("."), node.level) for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield node, node.args[0].value, 0


def _run_on_import(tree: ast.Module) -> set[ast.AST]:
    """The nodes that run when the module is imported: not function bodies, nor what only type checkers read."""
    found: set[ast.AST] = set()
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        found.add(node)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            waiting.extend([*getattr(node, "decorator_list", ()), *node.args.defaults])
        elif isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            waiting.extend(node.orelse)
        else:
            waiting.extend(ast.iter_child_nodes(node))
    return found


def _is_light(module: str) -> bool:
    return module == "trajgym.cli" or _entry(module) in LIGHT_ENTRIES


def _wrong_layer(module: str, imported: str) -> str | None:
    """What is wrong with one ``trajgym`` module importing another, if anything."""
    importer, target = _entry(module), _entry(imported)
    assert importer is not None
    if target is None:
        # `from trajgym import __version__`: a name of the root package itself.
        target = "root"
    if importer == target:
        return None
    if importer == "root":
        allowed = {"trajgym.types", "trajgym.errors", "trajgym.envs"}
        if not any(imported == name or imported.startswith(f"{name}.") for name in allowed):
            return f"trajgym/__init__ may import only {', '.join(sorted(allowed))}, not {imported}"
    if ROW[target] == ROW[importer]:
        return f"{importer} and {target} never import each other: {imported}"
    if ROW[target] > ROW[importer]:
        return f"{importer} stands below {target} and must not import {imported}"
    return None


def violations(root: Path) -> list[str]:
    """Return every broken rule below ``root`` as ``path:line: what``."""
    out = []
    for path in _sources(root):
        module = _module_name(path, root)
        where = path.relative_to(root).as_posix()
        entry = _entry(module)
        if entry is None:
            out.append(f"{where}:1: {module} has no layer; give it one in {Path(__file__).name}")
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
        on_import = _run_on_import(tree)
        for node, name, level in _imports(tree):
            top, problem = name.split(".")[0], None
            if level:
                problem = f"relative import of {name}"
            elif top in FOLDERS:
                problem = f"bare import of {name}; installed, it is trajgym.{name}"
            elif top == "trajgym":
                problem = _wrong_layer(module, name)
            elif top in HEAVY and node in on_import and _is_light(module):
                problem = f"{module} must import without {top}; import it inside the function that needs it"
            elif entry == "foundation" and top not in sys.stdlib_module_names:
                problem = f"{module} needs only the standard library, not {top}"
            if problem:
                out.append(f"{where}:{getattr(node, 'lineno', 0)}: {problem}")
    return sorted(set(out))


def test_the_layers_hold() -> None:
    assert violations(ROOT) == []


def test_every_module_is_looked_at() -> None:
    seen = {path.relative_to(ROOT).as_posix() for path in _sources(ROOT)}
    assert {"trajgym/__init__.py", "trajgym/protocols/base.py", "envs/tools/__init__.py", "scripts/__init__.py"} <= seen
    assert not any(name.startswith(("trajgym/envs/", "trajgym/scripts/")) for name in seen)


def _tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (root / "envs").mkdir(exist_ok=True)
    (root / "trajgym").mkdir(exist_ok=True)
    (root / "trajgym" / "envs").symlink_to("../envs")
    return root


@pytest.mark.parametrize(
    ("path", "source", "message"),
    [
        ("rewards/a.py", "from trajgym.envs import base", "rewards stands below envs"),
        ("rewards/a.py", "def f():\n    import trajgym.trainers.loss", "rewards stands below trainers"),
        ("trajgym/types.py", "from trajgym.rewards.rubric import Rubric", "foundation stands below rewards"),
        ("trajgym/protocols/a.py", "import numpy", "needs only the standard library, not numpy"),
        ("envs/a.py", "from trajgym import policies", "envs and policies never import each other"),
        ("policies/a.py", "from trajgym.envs.base import ToolEnv", "policies and envs never import each other"),
        ("envs/a.py", "import importlib\nimportlib.import_module('trajgym.policies.hf')", "never import each other"),
        ("policies/a.py", "from trajgym.rollout import rollout", "policies stands below rollout"),
        ("trajgym/rollout.py", "from trajgym.evaluation import measures", "rollout stands below evaluation"),
        ("evaluation/a.py", "from trajgym.trainers.config import C", "evaluation stands below trainers"),
        ("trainers/a.py", "import trajgym.serving.app", "trainers stands below serving"),
        ("serving/a.py", "from trajgym.scripts import train", "serving stands below commands"),
        ("serving/a.py", "from trajgym import cli", "serving stands below commands"),
        ("envs/a.py", "from trajgym import __version__", "envs stands below root"),
        ("trajgym/__init__.py", "from trajgym import rewards", "trajgym/__init__ may import only"),
        ("trajgym/extra.py", "", "trajgym.extra has no layer"),
        ("envs/a.py", "from . import base", "relative import"),
        ("envs/a.py", "from ..rewards import rubric", "relative import"),
        ("envs/a.py", "import rewards.rubric", "bare import of rewards.rubric"),
        ("trainers/a.py", "from envs import base", "bare import of envs.base"),
        ("envs/a.py", "try:\n    import torch\nexcept ImportError:\n    pass", "must import without torch"),
        ("rewards/a.py", "class A:\n    from transformers import AutoModel", "must import without transformers"),
        ("trajgym/__init__.py", "import datasets", "must import without datasets"),
        ("trajgym/cli.py", "import accelerate.utils", "must import without accelerate"),
        ("trajgym/registry.py", "import peft", "must import without peft"),
    ],
)
def test_each_rule_catches_its_violation(tmp_path: Path, path: str, source: str, message: str) -> None:
    found = violations(_tree(tmp_path, {path: source}))
    assert len(found) == 1, found
    assert found[0].startswith(f"{path}:")
    assert message in found[0]


def test_what_is_allowed_is_not_reported(tmp_path: Path) -> None:
    files = {
        "trajgym/__init__.py": "from trajgym import envs\nfrom trajgym.errors import ConfigError",
        "trajgym/cli.py": "from trajgym.scripts import train\ndef f():\n    import torch",
        "trajgym/rollout.py": "import gymnasium\nimport trajgym.envs.base\nfrom trajgym.policies.base import Policy",
        "rewards/a.py": "from trajgym import types\nfrom trajgym.rewards.b import g\ndef f():\n    import torch",
        "envs/a.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch",
        "policies/a.py": "import torch\nfrom trajgym.protocols.base import Protocol",
        "trainers/a.py": "import torch\nfrom trajgym import __version__\nfrom trajgym.evaluation import measures",
        "scripts/a.py": "from trajgym.serving import app\nfrom trajgym import cli",
    }
    assert violations(_tree(tmp_path, files)) == []
