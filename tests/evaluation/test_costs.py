"""What an endpoint's tokens cost: from its replies to the report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from trajgym.envs.base import ToolEnv
from trajgym.errors import DataError
from trajgym.evaluation.evaluate import Evaluation, evaluate
from trajgym.evaluation.page import as_html
from trajgym.evaluation.report import Report, Result, as_json, as_markdown
from trajgym.evaluation.samples import Price, samples_of
from trajgym.evaluation.store import Store
from trajgym.evaluation.summary import summarise
from trajgym.policies.base import TextPolicy
from trajgym.types import Message, Task

TASKS = [Task(f"t-{i}", f"{i}?", str(i)) for i in range(6)]
PRICE = Price(2.0, 10.0)


class Metered(TextPolicy):
    """Answers at once; the n-th task reads 100·n tokens and writes n, and nobody counts those of task 3."""

    def __init__(self) -> None:
        super().__init__(capacity=1)
        self.spent: dict[int, tuple[int, int] | None] = {}

    def start(self, episode: int, messages: Sequence[Message], *, task: Task, seed: int) -> None:
        super().start(episode, messages, task=task, seed=seed)
        number = int(task.answer)
        self.spent[episode] = None if number == 3 else (100 * number, number)

    def act(self, messages: Sequence[Message], task: Task, seed: int = 0) -> str:
        return f"#### {task.answer}"


def played(store: Store | None = None, tasks: Sequence[Task] = TASKS) -> Evaluation:
    return evaluate(Metered(), lambda: ToolEnv(TASKS), tasks, store=store)


def test_each_episode_has_its_own_tokens() -> None:
    samples = samples_of(played(), price=PRICE)
    assert [(s.prompt_tokens, s.tokens) for s in samples] == [
        (0, 0), (100, 1), (200, 2), (None, None), (400, 4), (500, 5),
    ]  # fmt: skip
    assert [s.cost for s in samples] == pytest.approx([0.0, 0.00021, 0.00042, None, 0.00084, 0.00105])


def test_remembered_episodes_keep_their_tokens(tmp_path: Path) -> None:
    path, identity = tmp_path / "played.jsonl", {"model": "m"}
    played(Store(path, identity), TASKS[:4])
    again = played(Store(path, identity))
    assert again.tokens == played().tokens
    assert path.read_text().count("\n") == 6


def test_files_of_before_tokens_were_kept_are_read(tmp_path: Path) -> None:
    path, identity = tmp_path / "played.jsonl", {"model": "m"}
    played(Store(path, identity))
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps({k: v for k, v in row.items() if k != "tokens"}) + "\n" for row in rows))
    assert played(Store(path, identity)).tokens == (None,) * 6
    path.write_text("".join(json.dumps({**row, "tokens": [1]}) + "\n" for row in rows))
    with pytest.raises(DataError, match="does not hold played episodes"):
        played(Store(path, identity))


def report(price: Price | None) -> Report:
    found = played()
    samples = samples_of(found, price=price)
    return Report("Costs", [Result("m", found, samples, summarise(samples))])


def test_the_sums_are_in_every_form_of_the_report() -> None:
    told = "1,200 tokens read, 12 written, $0.00252 (5 of 6 episodes, of the others it is not known)"
    priced = report(PRICE)
    [result] = json.loads(as_json(priced))["results"]
    assert result["spent"] == {
        "read": 1200, "written": 12, "cost": pytest.approx(0.00252), "currency": "$", "counted": 5, "episodes": 6,
    }  # fmt: skip
    assert result["measures"]["cost"]["value"] == pytest.approx(0.00252 / 5)
    assert result["measures"]["prompt_tokens"]["value"] == 240
    assert f"## Tokens and price\n\n- m: {told}" in as_markdown(priced)
    page = as_html(priced)
    assert f"<h2>Tokens and price</h2>\n<ul><li>m: {told}</li></ul>" in page
    assert "5 tokens written, 500 read · cost 0.00105" in page


def test_without_a_price_there_are_tokens_alone() -> None:
    assert "1,200 tokens read, 12 written (5 of" in as_markdown(report(None))
    [result] = json.loads(as_json(report(None)))["results"]
    assert (result["spent"]["cost"], result["measures"]["cost"]["value"]) == (None, None)


def test_where_nobody_counts_nothing_is_said(make_evaluation: object) -> None:
    found = make_evaluation(["72"])  # type: ignore[operator]
    samples = samples_of(found, price=PRICE)
    whole = Report("R", [Result("m", found, samples, summarise(samples))])
    assert "Tokens and price" not in as_markdown(whole)
    assert "Tokens and price" not in as_html(whole)
    assert json.loads(as_json(whole))["results"][0]["spent"] is None
