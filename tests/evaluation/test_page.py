"""The page: whole, self-contained, and deaf to what dialogues say."""

from __future__ import annotations

import dataclasses
import html
import re
import shutil
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from trajgym.evaluation.evaluate import Evaluation
from trajgym.evaluation.page import CHANGES, as_html, visible
from trajgym.evaluation.report import Report, Result
from trajgym.evaluation.samples import samples_of
from trajgym.evaluation.summary import summarise
from trajgym.types import Action, Message, Trajectory

MakeEvaluation = Callable[..., Evaluation]
HOSTILE = [
    "<script>document.title='owned'</script>",
    "</pre></details></article><img src=x onerror=\"document.title='owned'\">",
    "]]>--><!--<svg/onload=document.title='owned'>",
    "{{ 7 * 7 }}{% for x in y %}",
    "\x00\ud800\u202e\x1b[31m\u2028",
    "<textarea><title><style>",
]
VOID = {"meta", "input", "br", "img", "link"}


def poisoned(trajectory: Trajectory) -> Trajectory:
    """Put hostile text wherever somebody else's text can stand."""
    text = "".join(HOSTILE)
    step = dataclasses.replace(
        trajectory.steps[0],
        action=Action(text + trajectory.steps[0].action.text),
        reward_terms={text: 1.0, **trajectory.steps[0].reward_terms},
    )
    task = dataclasses.replace(trajectory.task, id=text + trajectory.task.id, question=text)
    return dataclasses.replace(trajectory, task=task, steps=(step,), prompt=(Message("user", text, name=text),))


def result(name: str, evaluation: Evaluation) -> Result:
    samples = samples_of(evaluation)
    return Result(name, evaluation, samples, summarise(samples))


@pytest.fixture(scope="module")
def hostile(make_evaluation: MakeEvaluation) -> str:
    played = make_evaluation(["72", "1", "72"])
    evaluation = Evaluation(tuple(map(poisoned, played.trajectories)))
    text = "".join(HOSTILE)
    return as_html(Report(text, [result(text, evaluation)], {text: text}))


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.open: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]
        assert not any(name.startswith("on") for name, _ in attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def parsed(page: str) -> Tags:
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    return tags


def test_hostile_text_is_only_text(hostile: str) -> None:
    tags = parsed(hostile)
    assert tags.found.count("script") == 1
    assert tags.found.count("article") == 3
    assert not {"img", "textarea", "iframe"} & set(tags.found)
    assert html.escape(HOSTILE[0], quote=False).replace("'", "&#39;") in hostile
    assert "{{ 7 * 7 }}" in hostile, "no text is a template"
    hostile.encode("utf-8")  # no half surrogate is left
    assert not re.search("[\x00-\x08\x0b\x1b\u202e\u2028]", hostile)
    assert "\\x00\\ud800\\u202e\\x1b[31m\\u2028" in hostile


def test_nothing_comes_from_anywhere_else(hostile: str) -> None:
    assert all(link.startswith("#") for link in parsed(hostile).links)
    assert "default-src 'none'" in hostile
    assert re.search(r"script-src 'sha256-[A-Za-z0-9+/=]{44}'", hostile)


def test_before_and_after_stand_side_by_side(make_evaluation: MakeEvaluation) -> None:
    before, after = make_evaluation(["1", "72", "72", "1"]), make_evaluation(["72", "1", "72", "1"])
    page = as_html(Report("T", [result("sft", before), result("rl", after)]))
    assert re.findall(r'data-change="([^"]+)"', page) == ["fixed", "broken", "both right", "both wrong"]
    assert re.findall(r'data-right="([^"]+)"', page) == ["wrong right", "right wrong", "right right", "wrong wrong"]
    for change in CHANGES:
        assert f"<option>{change}</option>" in page
    assert 'id="filter-model"' in page


def test_one_model_needs_no_choice_of_models(make_evaluation: MakeEvaluation) -> None:
    page = as_html(Report("T", [result("only", make_evaluation(["72"]))]))
    assert 'id="filter-model"' not in page
    assert page.count("<details>") == 1


def test_wrong_answers_come_first_where_not_all_fit(make_evaluation: MakeEvaluation) -> None:
    report = Report("T", [result("m", make_evaluation(["72", "72", "1", "72", "1"]))])
    page = as_html(report, most_dialogues=3)
    assert re.findall(r'data-right="([^"]+)"', page) == ["right", "wrong", "wrong"]
    assert "2 more are in trajectories.jsonl" in page
    assert "more are in" not in as_html(report)


def test_all_attempts_are_shown(make_evaluation: MakeEvaluation) -> None:
    page = as_html(Report("T", [result("m", make_evaluation(["72", "1", "1", "1"], attempts=2))]))
    assert (page.count("<article"), page.count("<details>")) == (2, 4)


def test_long_messages_are_cut_and_say_so(make_evaluation: MakeEvaluation) -> None:
    [played] = make_evaluation(["72"]).trajectories
    played = dataclasses.replace(played, prompt=(Message("user", "x" * 30_000),))
    page = as_html(Report("T", [result("m", Evaluation((played,)))]))
    assert "[… 10000 more characters]" in page
    assert len(page) < 200_000


def test_what_is_not_seen_is_spelled_out() -> None:
    assert visible("tab\tline\nend") == "tab\tline\nend"
    assert visible("\x07\ud83d\u2066") == "\\x07\\ud83d\\u2066"
    assert visible("😀 é 日本") == "😀 é 日本"


@pytest.mark.slow
def test_in_a_browser(hostile: str, tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("there is no browser here: apt-get install chromium")
    path = tmp_path / "report.html"
    path.write_text(hostile, encoding="utf-8")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}", "--dump-dom"]
    shown = subprocess.run([*command, path.as_uri()], capture_output=True, text=True, timeout=120, check=True).stdout
    assert "3 of 3 tasks</span>" in shown, "the page's own script has run under its policy"
    assert "<title>owned" not in shown
    assert shown.count("<article") == 3
