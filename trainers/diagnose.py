"""What is going wrong in a run, why, and what to change.

Every rule is a pure function of the metrics so far and of the options; they stand in the files beside this one, one
for each kind of trouble. A live run is watched by :class:`trajgym.trainers.alarms.Alarms`.

>>> rows = [{"update": i, "reward": 0.5, "kl": 0.02 * i} for i in range(1, 41)]
>>> for finding in diagnose(rows, {"learning_rate": 1e-5, "kl_coef": 0.05}):
...     print(finding.severity.value, finding.rule, finding.first, [str(change) for change in finding.changes])
serious kl_explosion 27 ['learning_rate 1e-05 → 2e-06', 'kl_coef 0.05 → 0.1']
warning reward_flat 30 []
note kl_watch 7 ['kl_coef 0.05 → 0.1']
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from trajgym.trainers.config import GRPOConfig
from trajgym.trainers.diagnose_behaviour import BEHAVIOUR
from trajgym.trainers.diagnose_changes import Change, Options
from trajgym.trainers.diagnose_history import History
from trajgym.trainers.diagnose_learning import LEARNING
from trajgym.trainers.diagnose_machine import MACHINE
from trajgym.trainers.diagnose_options import ADVICE
from trajgym.trainers.diagnose_rule import Evidence, Finding, Rule, Severity
from trajgym.trainers.diagnose_supervised import SUPERVISED
from trajgym.trainers.sft_advice import SFT_ADVICE, SFT_GRADIENTS

__all__ = ["RULES", "Finding", "Severity", "advise", "diagnose", "explain_error", "look", "rules_table"]

RULES: Mapping[str, tuple[Rule, ...]] = {
    "The update": LEARNING,
    "The policy's behaviour": BEHAVIOUR,
    "The machinery": MACHINE,
    "Supervised losses (SFT, DPO, reward models)": SUPERVISED,
    "Options, before the run": ADVICE,
}
"""All rules, by what they look at."""

# Advice on options, where they are not those of GRPO and PPO.
_ADVICE: Mapping[str, tuple[Rule, ...]] = {"sft": SFT_ADVICE, "dpo": (), "reward_model": ()}
_WATCHED = (*LEARNING, *BEHAVIOUR, *MACHINE, *SUPERVISED)
_ORDER = [Severity.SERIOUS, Severity.WARNING, Severity.NOTE]


def look(history: History, options: Options) -> list[Finding]:
    """Return what is wrong at the latest update, the most serious first.

    Args:
        history: Metrics up to that update.
        options: The run's options by name; what is missing is not judged.
    """
    return _agreed(finding for rule in _watched(options) if (finding := rule(history, options)) is not None)


def advise(config: GRPOConfig | Options, *, parameters: int | None = None) -> list[Finding]:
    """Return what is unwise about options before the run begins, the most serious first.

    Args:
        config: The options.
        parameters: The model's number of parameters; read from its name when unset.
    """
    options = dict(config.plain() if isinstance(config, GRPOConfig) else config)
    if parameters is not None:
        options["model_parameters"] = parameters
    return _agreed(finding for rule in _advice(options) if (finding := rule(History(), options)) is not None)


def diagnose(rows: Iterable[Mapping[str, Any]], options: Options) -> list[Finding]:
    """Return everything that went wrong in a run, the most serious first, each thing once and at its worst.

    What was gone at the end of the rows is marked ``over``, and is a step less serious. Of two findings that would
    move an option to different values, the more serious one proposes.

    Args:
        rows: Metrics of each update, oldest first, ``"update"`` among them.
        options: The run's options by name.
    """
    found: dict[str, Finding] = {}
    history = History()
    for row in rows:
        history.add(row)
        for finding in look(history, options):
            before = found.get(finding.rule, finding)
            worst = max(before, finding, key=lambda f: (-_ORDER.index(f.severity), f.size))
            found[finding.rule] = dataclasses.replace(worst, first=before.first, last=finding.last)
    ended = [_ended(f) if f.last != history.update else f for f in found.values()]
    return _agreed([*ended, *advise(options)])


def explain_error(error: BaseException, options: Options) -> Finding | None:
    """Return what an error that ended a run means, where a rule knows it: out of memory, numbers that are none.

    Args:
        error: Whatever was raised.
        options: Decide which changes to propose.
    """
    words = f"{type(error).__name__}: {error}".lower()
    for rule in (*_advice(options), *_watched(options)):
        if any(phrase in words for phrase in rule.errors):
            first = str(error).strip().split("\n")[0] or type(error).__name__
            return rule.finding(Evidence(f"{type(error).__name__}: {first}"), options, 0)
    return None


def rules_table() -> str:
    """Return all rules as Markdown, a table for each part of :data:`RULES`."""
    parts = []
    for title, rules in RULES.items():
        lines = [
            f"## {title}",
            "",
            "| rule | severity | speaks when | usual cause | what to do |",
            "|---|---|---|---|---|",
        ]
        lines += [f"| `{r.name}` | {r.severity.value} | {r.symptom} | {r.cause} | {r.remedy} |" for r in rules]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _advice(options: Options) -> tuple[Rule, ...]:
    return _ADVICE.get(str(options.get("algorithm")), ADVICE)


def _watched(options: Options) -> tuple[Rule, ...]:
    supervised = options.get("algorithm") == "sft"
    return (*SFT_GRADIENTS, *SUPERVISED, *MACHINE) if supervised else _WATCHED


def _ended(finding: Finding) -> Finding:
    milder = _ORDER[min(_ORDER.index(finding.severity) + 1, len(_ORDER) - 1)]
    return dataclasses.replace(finding, over=True, severity=milder)


def _agreed(findings: Iterable[Finding]) -> list[Finding]:
    """Sort by severity; of proposals for one option that differ, the one of the more serious finding stays."""
    first: dict[str, Change] = {}
    agreed = []
    for finding in sorted(findings, key=lambda finding: _ORDER.index(finding.severity)):
        kept = tuple(c for c in finding.changes if first.setdefault(c.option, c).to == c.to)
        agreed.append(dataclasses.replace(finding, changes=kept))
    return agreed
