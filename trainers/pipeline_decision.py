"""What to do next, by rule: evaluate → analyse → decide. Nothing here is measured, everything is read off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["analyse", "clearly", "decide", "in_words"]

_TELLING = 0.03  # share of calls with an error from which on it is worth a sentence
_UNREAD = 0.1  # share of answers without a marker from which on the form is a problem
_CUT = 0.05  # share of episodes that a budget has ended


def analyse(models: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return what is wrong with the last of the models, in sentences.

    Args:
        models: By name, in order: ``measures`` and ``conclusions`` as in an evaluation's ``report.json``.
    """
    if not models:
        return []
    last = list(models.values())[-1]
    measures = last["measures"]

    def share(name: str) -> float:
        return float(measures.get(name, {}).get("value") or 0.0)

    said = list(last["conclusions"])
    if share("truncated") > _CUT:
        said.append(
            f"{share('truncated'):.0%} of the episodes end with their budget: raise max_turn_tokens or max_turns."
        )
    if measures.get("format", {}).get("value") is not None and 1 - share("format") > _UNREAD:
        said.append(f"{1 - share('format'):.0%} of the answers stand behind no marker.")
    if share("tool_errors") > _TELLING:
        said.append(f"{share('tool_errors'):.0%} of the tool calls come back with an error.")
    if share("faults"):
        said.append(f"{share('faults'):.1%} of the episodes failed by the machinery's doing, and count as wrong.")
    return said


def decide(comparisons: Sequence[Mapping[str, Any]], analysis: Sequence[str], *, stopped: str = "") -> dict[str, Any]:
    """Return the next decision and its reasons.

    Args:
        comparisons: Pairs of models as in ``report.json``.
        analysis: From :func:`analyse`.
        stopped: Why the chain did not come to its end; empty when it did.

    Returns:
        ``next`` (a sentence), ``because`` (sentences).
    """
    pairs = {(c["before"], c["after"]): c for c in comparisons}
    lifted, whole = pairs.get(("before", "sft")), pairs.get(("before", "grpo"))
    gained = pairs.get(("sft", "grpo")) or whole
    weakness = analysis[0] if analysis else ""
    because = [in_words(pair) for pair in (lifted, gained, None if gained is whole else whole) if pair is not None]
    if stopped:
        return {"next": f"Improve SFT before any RL. {weakness}".strip(), "because": [stopped, *because]}
    if gained is None:
        return {"next": "Go through all stages first.", "because": because}
    if clearly(gained) < 0:
        step = "GRPO made it worse. Run trajgym diagnose on its folder; lower grpo.learning_rate or raise grpo.kl_coef."
    elif whole is not None and clearly(whole) < 0:
        step = "The base model was better than what the chain made of it: lower both learning rates, or train on more."
    elif gained["fixed"] == gained["broken"] == 0:
        step = f"GRPO has changed no answer: see whether its reward differs within groups, and train longer. {weakness}"
    elif clearly(gained) > 0:
        step = f"GRPO lifts accuracy: deploy this model, and train on for as long as the reward rises. {weakness}"
    else:
        width = 50 * (gained["high"] - gained["low"])
        step = (
            f"GRPO's gain cannot be told from chance (±{width:.0f} points): measure on more problems "
            f"(eval.max_samples), or train longer. {weakness}"
        )
    return {"next": step.strip(), "because": because}


def clearly(comparison: Mapping[str, Any]) -> int:
    """Return 1 where a model is clearly better than the one before, −1 where worse, 0 where chance explains it."""
    if not comparison["significant"]:
        return 0
    return 1 if comparison["difference"] > 0 else -1


def in_words(comparison: Mapping[str, Any]) -> str:
    """Return a comparison as a sentence."""
    verdict = "a clear difference" if comparison["significant"] else "within chance"
    return (
        f"{comparison['before']} → {comparison['after']}: {100 * comparison['difference']:+.1f} points "
        f"({100 * comparison['low']:+.1f} … {100 * comparison['high']:+.1f}), {comparison['fixed']} fixed and "
        f"{comparison['broken']} broken of {comparison['tasks']}, p = {comparison['p_value']:.3g}: {verdict}."
    )
