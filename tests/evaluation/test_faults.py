"""The four classes of error, by the rules of docs/evaluation.md, and the honest rest."""

from __future__ import annotations

import pytest

from trajgym.errors import ConfigError, UnknownNameError
from trajgym.evaluation.faults import CLASSES, Fault, conclusions, diagnose, distribution
from trajgym.rewards.answer import correct
from trajgym.types import (
    Action,
    CallError,
    ExpertTurn,
    Observation,
    Step,
    StopReason,
    Task,
    ToolCall,
    ToolResult,
    Trajectory,
)

EXPRESSIONS = ("48/2", "48+24", "72*3")
CALLS = tuple(ExpertTurn(calls=(ToolCall("calculator", {"expression": e}),)) for e in EXPRESSIONS)
TASK = Task(
    "t-0",
    "Mia sold 48 clips in April and half as many in May, at 3 dollars each. A stall costs 15 dollars. How much did "
    "she earn in total?",
    "216",
    (*CALLS, ExpertTurn("#### 216")),
    difficulty=3,
)
END = StopReason.ANSWERED


def played(*texts: str, task: Task = TASK, stop: StopReason = END, results: tuple[ToolResult, ...] = ()) -> Trajectory:
    steps = [Step(Action(text), Observation()) for text in texts[:-1]]
    ends = {"terminated": stop.terminates, "truncated": not stop.terminates, "stop_reason": stop}
    last = Step(Action(texts[-1]), Observation(), results=results, **ends)  # type: ignore[arg-type]
    return Trajectory(task, (), (*steps, last))


def kind(trajectory: Trajectory) -> str:
    answered = trajectory.stop_reason is END
    right = answered and correct(trajectory.steps[-1].action.text, trajectory.task.answer)
    found = diagnose(trajectory, right=right)
    return "" if found is None else found.kind


CASES = [
    ("", "48/2 = 24, 48+24 = 72, 72*3 = 216\n#### 216"),
    ("format", "48/2 = 24, 48+24 = 72, 72*3 = 216"),
    ("format", "48/2 = 24, 48+24 = 72, 72*3 = 216\n#### "),
    ("format", "48/2 = 24, 48+24 = 72, 72*3 = 216. Is that right?"),
    ("format", "#### 1.234,56"),
    ("format", "\\boxed{216"),
    ("calculation", "48/2 = 25, 48+25 = 73, 73*3 = 219\n#### 219"),
    ("calculation", "48/2 = <<48/2=24>>42, 48+42 = 90, 90*3 = 270\n#### 270"),
    ("calculation", "48/2 = 24, 48+24 = 72, 72*3 = 216\n#### 261"),
    ("comprehension", "48/2 = 24, 48+24 = 72\n#### 72"),
    ("comprehension", "#### 24"),
    ("comprehension", "The answer: #### 48"),
    ("comprehension", "48/2 = 24, 48+24 = 72, 72*7.5 = 540\n#### 540"),
    ("comprehension", "48/2 = 24, 48+24 = 72, 72*3 = 216, 216-15 = 201\n#### 201"),
    ("comprehension", "48*3 = 144, 144+17 = 161\n#### 161"),
    ("comprehension", "48/2 = 24, 24*2 = 48, 48+2 = 50\n#### 50"),
    ("reasoning", "48*2 = 96, 96*3 = 288\n#### 288"),
    ("reasoning", "48/3 = 16, 16*2 = 32\n#### 32"),
    ("unclassified", "I do not know."),
    ("unclassified", "#### 999"),
    ("unclassified", "#### 70 or 72"),
]


@pytest.mark.parametrize(("expected", "text"), CASES)
def test_classes(expected: str, text: str) -> None:
    assert kind(played(text)) == expected


def test_the_founding_examples() -> None:
    assert kind(played("48/2 = 25\n#### 219")) == "calculation"
    assert kind(played("April: 48. May: 48/2 = 24.\n#### 24")) == "comprehension", "a part for the total"


def test_the_arithmetic_of_tools_is_working_too() -> None:
    ran = ToolResult(ToolCall("calculator", {"expression": "72*3"}), "216")
    assert kind(played("#### 612", results=(ran,))) == "calculation", "a result that was copied wrongly"
    other = ToolResult(ToolCall("calculator", {"expression": "48*3*2"}), "288")
    assert kind(played("#### 288", results=(other,))) == "reasoning"


def test_what_was_cut_is_not_judged_unless_it_calculates_wrongly() -> None:
    assert kind(played("48/2 = 24, so", stop=StopReason.TURN_TOKENS)) == "unclassified"
    assert kind(played("48/2 = 25, so", stop=StopReason.TURN_TOKENS)) == "calculation"
    assert kind(played("<tool_call>", stop=StopReason.MAX_TURNS)) == "unclassified"


def test_calls_that_cannot_be_read_are_an_error_of_form() -> None:
    error, stop = CallError("malformed_json", "…"), StopReason.INVALID_CALLS
    bad = Step(Action("<tool_call>"), Observation(), error=error, terminated=True, stop_reason=stop)
    found = diagnose(Trajectory(TASK, (), (bad,)), right=False)
    assert found == Fault("format", "calls that cannot be read (malformed_json)")


def test_a_demonstration_with_gaps_condemns_no_number() -> None:
    gaps = Task("t", "48 clips, and 17 more each month.", "216", (CALLS[0],))
    assert kind(played("48+17 = 65\n#### 65", task=gaps)) == "reasoning"
    whole = Task("t", "48 clips, half of them blue, and 17 shops. How many are blue?", "24", (CALLS[0],))
    assert kind(played("48+17 = 65\n#### 65", task=whole)) == "comprehension"


def test_without_a_demonstration_only_form_and_calculation_can_be_told() -> None:
    bare = Task("t", TASK.question, "216")
    assert kind(played("48/2 = 25\n#### 25", task=bare)) == "calculation"
    assert kind(played("48*2 = 96\n#### 96", task=bare)) == "unclassified"


def test_formulas_and_machinery_are_left_alone() -> None:
    formula = Task("t", "x + x?", "2x", metadata={"answer_kind": "expression"})
    found = diagnose(played("#### 3x", task=formula), right=False)
    assert found is not None
    assert found.kind == "unclassified"
    assert diagnose(played("#### 2x", task=formula), right=True) is None
    broken = diagnose(Trajectory(TASK, (), (), fault="OSError: no space"), right=False)
    assert broken == Fault("unclassified", "the machinery failed, not the policy")
    nonsense = diagnose(played("#### 1", task=Task("t", "?", "many")), right=False)
    assert nonsense is not None
    assert "ground truth" in nonsense.reason


def test_every_reason_names_what_it_is_about() -> None:
    found = diagnose(played("48/2 = 25\n#### 219"), right=False)
    assert found == Fault("calculation", "48/2 = 25, but it is 24")


def test_the_distribution() -> None:
    kinds = ["calculation"] * 32 + ["reasoning"] * 22 + ["comprehension"] * 18 + ["format"] * 4
    shares = distribution(kinds)
    assert [round(100 * shares[kind][1], 1) for kind in CLASSES] == [42.1, 28.9, 23.7, 5.3]
    assert sum(count for count, _ in shares.values()) == 76
    assert distribution([])["format"] == (0, 0.0)
    with pytest.raises(UnknownNameError, match="calculation"):
        distribution(["calculations"])


def test_conclusions() -> None:
    counts = {"calculation": 32, "reasoning": 22, "comprehension": 18, "format": 4}
    said = conclusions(counts, {"easy": (67, 85), "medium": (56, 96), "hard": (6, 19)})
    assert said[0].startswith("42.1% of the errors are calculation.")
    assert "SFT has done its work" in said[1]
    assert said[2].startswith("Hard tasks are 47.2 points worse")
    assert conclusions({"format": 9, "reasoning": 1}, {"easy": (9, 10), "hard": (8, 10)}) == [
        "90.0% of the errors are format. The written form is the weakness: more or better SFT before any RL."
    ]
    assert conclusions({}, {"easy": (1, 1)}) == []
    with pytest.raises(ConfigError, match="'easy' has 3 right answers in 2 tasks"):
        conclusions({}, {"easy": (3, 2)})
