"""The report as one HTML page: no network, no library, and nothing in a dialogue can act in it.

All text goes through the template engine's escaping; what a browser would not show (control characters, half
surrogates, marks that turn the direction of writing) is spelled out; and a content security policy lets no script run
but the page's own.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

from trajgym.evaluation.charts import charts
from trajgym.evaluation.faults import CLASSES, UNCLASSIFIED
from trajgym.evaluation.page_template import SCRIPT, STYLE, TEMPLATE
from trajgym.evaluation.report import Report, Result, forgetting_verdict, quoted_for, shown_measure
from trajgym.evaluation.samples import STRATA, Sample
from trajgym.rewards.answer_reading import RULES
from trajgym.types import Message, Trajectory

__all__ = ["CHANGES", "as_html", "visible"]

CHANGES = ("fixed", "broken", "both right", "both wrong")
_MOST_SHOWN = 20_000  # characters of one message
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


def as_html(report: Report, *, most_dialogues: int = 500) -> str:
    """Return the page; it can be written as UTF-8, whatever the dialogues hold.

    Args:
        report: What was found out.
        most_dialogues: Tasks that are shown; those that some model gets wrong come first.
    """
    from jinja2 import Environment

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    # What the template calls safe is our own style and script, and pictures whose texts matplotlib has escaped.
    environment.finalize = lambda value: value if hasattr(value, "__html__") else visible(str(value))
    places = _chosen(report.results, most_dialogues)
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    return environment.from_string(TEMPLATE).render(
        report=report,
        hash=f"sha256-{digest}",
        style=STYLE,
        script=SCRIPT,
        settings=list(report.settings.items()),
        names=[result.name for result in report.results],
        measures=_measures(report),
        sections=_sections(report),
        charts=_drawn(report),
        changes=CHANGES,
        kinds=(*CLASSES, UNCLASSIFIED),
        strata=STRATA,
        left_out=report.results[0].summary.tasks - len(places),
        cards=(_card(report.results, place) for place in places),
    )


def visible(text: str) -> str:
    r"""Return a text in which everything can be seen: hidden characters are written as in a Python string.

    >>> visible("a\x00b\u202ec\ud800")
    'a\\x00b\\u202ec\\ud800'
    """
    return _HIDDEN.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def _measures(report: Report) -> list[list[str]]:
    names = [n for n in report.results[0].summary.measures if _measured(report, n)]
    return [[name, *(shown_measure(r.summary.measures[name]) for r in report.results)] for name in names]


def _measured(report: Report, name: str) -> bool:
    return any(result.summary.measures[name].value is not None for result in report.results)


def _sections(report: Report) -> list[tuple[str, list[str]]]:
    """Return the parts of the page that are sentences."""
    forgetting = [f"{f.comparison}: {forgetting_verdict(f).replace('*', '')}" for f in report.forgetting]
    robustness = [f"{name}: {found}" for name, every in report.robustness.items() for found in every]
    conclusions = [f"{r.name}: {sentence}" for r in report.results for sentence in r.summary.conclusions]
    spent = [f"{r.name}: {r.summary.spent}" for r in report.results if r.summary.spent is not None]
    return [
        ("Tokens and price", spent),
        ("Conclusions", conclusions),
        ("Quoted for reference", quoted_for(report)),
        ("Comparison on the same tasks", [str(comparison) for comparison in report.comparisons]),
        ("Robustness", robustness),
        ("Forgetting", forgetting),
    ]


def _drawn(report: Report) -> dict[str, str]:
    return charts({result.name: result.summary for result in report.results})


def _chosen(results: Sequence[Result], most: int) -> list[int]:
    """Return the places of the tasks that are shown, in their order."""
    solved = [all(_right(_attempts(r, place)) for r in results) for place in range(results[0].summary.tasks)]
    return sorted(sorted(range(len(solved)), key=lambda place: solved[place])[: max(0, most)])


def _attempts(result: Result, place: int) -> Sequence[Sample]:
    count = result.summary.attempts
    return result.samples[place * count : (place + 1) * count]


def _right(samples: Sequence[Sample]) -> bool:
    """Whether a model counts as right on a task: in its first attempt."""
    return samples[0].correct


def _card(results: Sequence[Result], place: int) -> dict[str, Any]:
    samples = [_attempts(result, place) for result in results]
    right = [_right(found) for found in samples]
    first = samples[0][0]
    change = {(False, True): "fixed", (True, False): "broken", (True, True): "both right"}
    return {
        "right": " ".join("right" if r else "wrong" for r in right),
        "error": " ".join(found[0].error or "-" for found in samples),
        "stratum": first.stratum,
        "change": change.get((right[0], right[-1]), "both wrong"),
        "question": first.question,
        "task_id": first.task_id,
        "answer": first.ground_truth,
        "models": [_column(result, place) for result in results],
    }


def _column(result: Result, place: int) -> dict[str, Any]:
    start = place * result.summary.attempts
    trajectories = result.evaluation.trajectories[start : start + result.summary.attempts]
    return {
        "name": result.name,
        "attempts": [_attempt(s, t) for s, t in zip(_attempts(result, place), trajectories, strict=True)],
    }


def _attempt(sample: Sample, trajectory: Trajectory) -> dict[str, Any]:
    said = "nothing was read" if sample.prediction is None else f"{sample.prediction} (by {RULES[sample.rule].sign})"
    facts = [f"{sample.turns} turns", f"{sample.steps} steps", f"{sample.characters} characters"]
    facts += [] if sample.tokens is None else [f"{sample.tokens} tokens written, {sample.prompt_tokens} read"]
    facts += [] if sample.cost is None else [f"cost {sample.cost:.3g}"]
    facts += [] if sample.seconds is None else [f"{sample.seconds:.1f} s"]
    facts += [f"{sample.calls} calls, {sample.tool_errors} with an error", sample.stop_reason]
    why = f"{sample.error}: {sample.error_reason}" if sample.error else ""
    return {
        "verdict": "right" if sample.correct else "wrong",
        "said": said,
        "why": f"{why} {sample.fault}".strip(),
        "facts": " · ".join(facts),
        "turns": list(_turns(trajectory)),
    }


def _turns(trajectory: Trajectory) -> Iterator[dict[str, str]]:
    for message in trajectory.prompt:
        yield _turn(message)
    for step in trajectory.steps:
        terms = ", ".join(f"{name} {value:+g}" for name, value in step.reward_terms.items() if value)
        yield _turn(Message("assistant", step.action.text), f"reward {step.reward:g}{f' ({terms})' if terms else ''}")
        for message in step.observation.messages:
            yield _turn(message)


def _turn(message: Message, note: str = "") -> dict[str, str]:
    text = message.content
    if len(text) > _MOST_SHOWN:
        text = f"{text[:_MOST_SHOWN]}\n[… {len(text) - _MOST_SHOWN} more characters]"
    kind = message.role if message.role in ("assistant", "system", "tool", "user") else "other"
    role = f"{message.role} {message.name}" if message.name else message.role
    return {"kind": kind, "role": f"{role} · {note}" if note else role, "text": text}
