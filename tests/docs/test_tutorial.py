"""The tutorial runs as it stands, prints what it shows, names what exists, and is the same in both languages."""

from __future__ import annotations

import ast
import contextlib
import io
import itertools
import os
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import pytest

ROOT = Path(__file__).resolve().parents[2]
TUTORIAL = ROOT / "docs" / "tutorial"
LANGUAGES = ("en", "zh")
CHAPTERS = sorted(path.name for path in (TUTORIAL / "en").glob("[0-9]*.md"))
PAGES = [f"{language}/{name}" for language in LANGUAGES for name in (*CHAPTERS, "README.md")]

FLAGS = {
    "python": {"slow", "gsm8k"},
    "bash": {"slow", "gsm8k", "status"},
    "text": {"tolerance", "vary"},
    "math": set(),
}
"""What may follow a block's language. ``slow``: runs with -m slow, and so does what depends on it; ``gsm8k``: needs
``$TRAJGYM_DATA``; ``status=N``: how a command ends. Numbers may differ by X with ``tolerance=X``, and by anything with
``vary``, where they are times or follow from a sampled text; the words around them may not."""

MINUTES = 60
NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
REFERENCE = re.compile(r"\[`([\w./-]+)::([\w.]+)`\]\(([^)]+)\)")
BOX = re.compile(r"^> \*\*.+?[(（](\d+)(?: of |/)12[)）]", re.MULTILINE)
HAN = re.compile(r"[\u4e00-\u9fff]")


@dataclass(frozen=True)
class Block:
    """A fenced block: where it stands, what it is, and what is in it."""

    line: int
    language: str
    flags: dict[str, str]
    code: str

    def can_run(self, *, slow: bool, gsm8k: bool) -> bool:
        return ("slow" not in self.flags or slow) and ("gsm8k" not in self.flags or gsm8k)


def text_of(page: str) -> str:
    return (TUTORIAL / page).read_text(encoding="utf-8")


def blocks_of(page: str) -> list[Block]:
    found: list[Block] = []
    opened: tuple[int, list[str], list[str]] | None = None
    for number, line in enumerate(text_of(page).splitlines(), start=1):
        if opened is None and line.startswith("```"):
            opened = (number, line[3:].split(), [])
        elif opened is not None and line == "```":
            start, (language, *words), lines = opened
            flags = {name: value for name, _, value in (word.partition("=") for word in words)}
            found.append(Block(start, language, flags, "\n".join(lines)))
            opened = None
        elif opened is not None:
            opened[2].append(line)
    assert opened is None, f"{page} ends within a block"
    return found


def outputs_of(page: str) -> dict[int, Block]:
    """Return the output that is shown of each block, by the block's line: the ``text`` block right below it."""
    lines, shown = text_of(page).splitlines(), {}
    blocks = blocks_of(page)
    for code, below in itertools.pairwise(blocks):
        end = code.line + code.code.count("\n") + 2  # the line of the closing fence
        if below.language == "text" and not any(line.strip() for line in lines[end : below.line - 1]):
            shown[code.line] = below
    return shown


def agrees(wanted: str, got: str, flags: dict[str, str]) -> bool:
    """Compare outputs. A line ``...`` stands for any lines or none, ``...`` within a line for anything on it."""
    if "tolerance" in flags:
        pairs = zip(NUMBER.findall(wanted), NUMBER.findall(got), strict=False)
        differences = [abs(float(a.replace(",", "")) - float(b.replace(",", ""))) for a, b in pairs]
        if max(differences, default=0.0) > float(flags["tolerance"]):
            return False
    lines = [[line.rstrip() for line in text.strip("\n").splitlines()] for text in (wanted, got)]
    if flags:  # columns are as wide as their numbers
        lines = [[" ".join(NUMBER.sub("#", line).split()) for line in text] for text in lines]
    pattern = "".join(
        r"(?:.*\n)*?" if line == "..." else re.escape(line).replace(r"\.\.\.", ".*") + r"\n" for line in lines[0]
    )
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in lines[1])) is not None


@contextlib.contextmanager
def registries_kept() -> Iterator[None]:
    """Forget afterwards what the chapters register, so that they can be run again."""
    from trajgym.rewards.catalogue import REWARDS, TERMS
    from trajgym.trainers.data_sources import DATASETS

    registries = [r._items for r in (REWARDS, TERMS, DATASETS)] + [gymnasium.registry]
    before = [dict(items) for items in registries]
    try:
        yield
    finally:
        for items, kept in zip(registries, before, strict=True):
            items.clear()
            items.update(kept)


def run_shell(block: Block, folder: Path) -> str:
    bin_folder = Path(sys.executable).parent
    assert (bin_folder / "trajgym").exists(), "the command is not installed beside this Python"
    found = subprocess.run(
        ["bash", "-c", block.code],
        cwd=folder,
        env={**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}", "COLUMNS": "80", "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=10 * MINUTES,
    )
    assert found.returncode == int(block.flags.get("status", 0)), found.stdout
    return found.stdout


def play(page: str, folder: Path, *, slow: bool = False, gsm8k: bool = False) -> list[tuple[Block, str]]:
    """Run a chapter as a reader would, block after block, and return what each printed."""
    names: dict[str, Any] = {"__name__": "tutorial"}
    printed = []
    with contextlib.chdir(folder), registries_kept():
        for block in blocks_of(page):
            if block.language not in ("python", "bash") or not block.can_run(slow=slow, gsm8k=gsm8k):
                continue
            where = f"{page}, line {block.line}"
            if block.language == "bash":
                printed.append((block, run_shell(block, folder)))
                continue
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile("\n" * block.line + block.code, where, "exec"), names)
            printed.append((block, out.getvalue()))
    return printed


def check(page: str, folder: Path, **choice: bool) -> None:
    shown = outputs_of(page)
    for block, got in play(page, folder, **choice):
        where = f"docs/tutorial/{page}, line {block.line}"
        wanted = shown.get(block.line)
        if wanted is not None:
            assert agrees(wanted.code, got, wanted.flags), f"{where} prints\n{got}\nand the page shows\n{wanted.code}"
        elif block.language == "python":
            assert got == "", f"{where} prints something that the page does not show:\n{got}"


def flagged(flag: str) -> list[str]:
    return [name for name in CHAPTERS if any(flag in block.flags for block in blocks_of(f"en/{name}"))]


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_chapter_runs_as_it_stands(chapter: str, tmp_path: Path) -> None:
    check(f"en/{chapter}", tmp_path)


@pytest.mark.parametrize("chapter", flagged("gsm8k"))
def test_a_chapter_runs_on_gsm8k(
    chapter: str, gsm8k_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAJGYM_DATA", str(gsm8k_data))
    check(f"en/{chapter}", tmp_path, gsm8k=True)


@pytest.mark.slow
@pytest.mark.parametrize("chapter", flagged("slow"))
def test_a_chapter_runs_with_its_trainings(chapter: str, tmp_path: Path) -> None:
    check(f"en/{chapter}", tmp_path, slow=True)


@pytest.mark.parametrize(
    ("wanted", "got", "flags", "agreed"),
    [
        ("1.5 a", "1.5 a  \n", {}, True),
        ("1.5 a", "1.6 a\n", {}, False),
        ("first\n...\nlast", "first\nsecond\nlast\n", {}, True),
        ("first\n...\nlast", "first\nsecond\n", {}, False),
        ("...\nfirst\n...", "first\n", {}, True),
        ("...\nfirst", "not first\n", {}, False),
        ("in ...: 1", "in a folder: 1\n", {}, True),
        ("in ...: 1", "in a\nfolder: 1\n", {}, False),
        ("loss 1.50", "loss 1.53\n", {"tolerance": "0.05"}, True),
        ("loss 1.50", "loss 1.58\n", {"tolerance": "0.05"}, False),
        ("loss 1.50", "loss 1.50 2.0\n", {"tolerance": "0.05"}, False),
        ("took 9 s", "took 12.5 s\n", {"vary": ""}, True),
        ("took 9 s", "gave 12.5 s\n", {"vary": ""}, False),
    ],
)
def test_outputs_are_compared(wanted: str, got: str, flags: dict[str, str], agreed: bool) -> None:
    assert agrees(wanted, got, flags) is agreed


def test_both_languages_have_the_same_pages() -> None:
    assert len(CHAPTERS) >= 8
    for language in LANGUAGES:
        assert sorted(path.name for path in (TUTORIAL / language).iterdir()) == [*CHAPTERS, "README.md"]
        index = text_of(f"{language}/README.md")
        assert re.findall(r"^\d+\. \[.+?\]\((.+?)\)", index, flags=re.MULTILINE) == CHAPTERS


@pytest.mark.parametrize("page", PAGES)
def test_blocks_are_of_a_known_kind(page: str) -> None:
    shown = [block.line for block in outputs_of(page).values()]
    for block in blocks_of(page):
        assert block.language in FLAGS, f"line {block.line}"
        assert block.flags.keys() <= FLAGS[block.language], f"line {block.line}"
        if block.language == "text":
            assert block.line in shown, f"line {block.line}: an output without its code right above it"
            assert re.search(r"\w", block.code), f"line {block.line}: agrees with anything"


@pytest.mark.parametrize("page", PAGES)
def test_a_chapter_is_neither_thin_nor_endless(page: str) -> None:
    lines = text_of(page).splitlines()
    if not page.endswith("README.md"):
        assert 80 <= len(lines) <= 190
    if page.startswith("en/"):
        code = {n for b in blocks_of(page) for n in range(b.line, b.line + b.code.count("\n") + 3)}
        prose = [(n, line) for n, line in enumerate(lines, 1) if n not in code and not line.startswith("|")]
        assert [n for n, line in prose if len(re.sub(r"\]\([^)]*\)", "]", line)) > 150] == []


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_names_exists(page: str) -> None:
    text = text_of(page)
    named = REFERENCE.findall(text)
    assert len(named) == len(re.findall(r"`[\w./-]+\.py::", text)), "a name that is no link"
    for file, name, link in named:
        assert (TUTORIAL / page).parent.joinpath(link).resolve() == ROOT / file, f"{file} is not at {link}"
        assert name in definitions(ROOT / file), f"{file} has no {name}"


def definitions(path: Path) -> set[str]:
    """Every name that a module defines at its top level, and ``Class.name`` for what its classes define."""

    def names(body: list[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield node.name, node
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                yield from ((target.id, node) for target in targets if isinstance(target, ast.Name))

    found = set()
    for name, node in names(ast.parse(path.read_text(encoding="utf-8")).body):
        found.add(name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{name}.{inner}" for inner, _ in names(node.body)}
    return found


@pytest.mark.parametrize("page", PAGES)
def test_each_formula_has_the_code_that_computes_it_beside_it(page: str) -> None:
    lines = text_of(page).splitlines()
    for block in blocks_of(page):
        if block.language == "math":
            end = block.line + block.code.count("\n") + 2
            near = lines[max(0, block.line - 6) : block.line] + lines[end : end + 5]
            assert REFERENCE.search("\n".join(near)), f"line {block.line}: nothing computes it"


@pytest.mark.parametrize("language", LANGUAGES)
def test_each_difference_stands_once_in_a_box_and_in_the_list(language: str) -> None:
    boxes = [(int(n), name) for name in CHAPTERS for n in BOX.findall(text_of(f"{language}/{name}"))]
    assert sorted(n for n, _ in boxes) == list(range(1, 13))
    index = text_of(f"{language}/README.md")
    listed = re.findall(r"^\| (\d+) \| .+ \| \[.+?\]\((.+?)\) \|$", index, flags=re.MULTILINE)
    assert [(int(n), name) for n, name in listed] == sorted(boxes)


@pytest.mark.parametrize("name", [*CHAPTERS, "README.md"])
def test_both_languages_say_the_same(name: str) -> None:
    english, chinese = (text_of(f"{language}/{name}") for language in LANGUAGES)
    ours, theirs = (blocks_of(f"{language}/{name}") for language in LANGUAGES)
    assert [plain(block) for block in ours] == [plain(block) for block in theirs]
    for pattern in (r"^(#+) ", r"^(\|)", r"^(>) \*\*"):  # headings, rows, boxes
        found = [re.findall(pattern, text, flags=re.MULTILINE) for text in (english, chinese)]
        assert found[0] == found[1], pattern
    links = [sorted(re.findall(r"\]\(([^)]+)\)", text.replace("../zh/", "../en/"))) for text in (english, chinese)]
    assert links[0] == links[1]


@pytest.mark.parametrize("name", [*CHAPTERS, "README.md"])
def test_every_paragraph_is_translated(name: str) -> None:
    prose = re.sub(r"^```.*?^```$", "", text_of(f"zh/{name}"), flags=re.MULTILINE | re.DOTALL)
    for paragraph in filter(str.strip, prose.split("\n\n")):
        words = re.sub(r"`[^`]*`|\]\([^)]*\)", "", paragraph)
        assert HAN.search(words) or not re.search(r"[A-Za-z]{4,} [a-z]+ [a-z]+", words), paragraph
    assert not HAN.search(text_of(f"en/{name}").replace("中文", ""))


def plain(block: Block) -> tuple[str, dict[str, str], list[str]]:
    """A block without its comments, which are translated, and without blank lines."""
    lines = block.code.splitlines()
    if block.language == "python":
        for token in tokenize.generate_tokens(io.StringIO(block.code).readline):
            if token.type == tokenize.COMMENT:
                row, column = token.start
                lines[row - 1] = lines[row - 1][:column]
    elif block.language == "bash":
        lines = [re.sub(r"(^|\s)# .*$", "", line) for line in lines]
    return block.language, block.flags, [line.rstrip() for line in lines if line.strip()]
