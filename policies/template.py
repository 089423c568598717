"""What a chat template does to a dialogue, found out by asking it.

Templates differ in ways that matter to a stream of tokens: some refuse a system or a tool message, some take the
reasoning out of earlier turns. :class:`ChatTemplate` probes a template once and then renders dialogues as text such
that, wherever that is possible, a dialogue only ever grows at its end.
"""

from __future__ import annotations

import re
from typing import Any, Literal

from trajgym.errors import TemplateError

__all__ = ["ChatTemplate", "ToolRole"]

ToolRole = Literal["auto", "tool", "user"]
Dialogue = list[dict[str, str]]  # what a template is given: role, content, perhaps name and tool_call_id

_SLOT = "\U000f0100{}\U000f0101"  # stands for a content; SafeEncoder.protect keeps these characters out of contents
_THINK = re.compile(r"<think>.*?</think>\s*", re.DOTALL)
_PLAIN = "probe answer {0}"
_OPENS, _REASONS = "<think>\n", "probe thought {0}\n</think>\n\n"
# Each probe is a prompt, and then a turn of the policy behind each of these groups of messages.
_PROBES: tuple[tuple[str, ...], ...] = (
    ("system user", "tool"),
    ("user", "tool tool", "user"),
    ("user", "user", "tool"),
)
# A tool's answer has labels; an error that no call can be named for has none. Both kinds come, side by side too.
_LABELS = {("tool", 0): {"name": "probe", "tool_call_id": "call_0"}}


class ChatTemplate:
    r"""A tokenizer's chat template as text.

    Args:
        tokenizer: A transformers tokenizer with a chat template.
        thinking: Whether the policy reasons between think tags; handed to templates that ask (``enable_thinking``).
        tool_role: ``"tool"`` hands tool messages to the template; ``"user"`` writes them as
            ``<tool_response>\n…\n</tool_response>`` in a user message, those of one turn together;
            ``"auto"`` takes the first that the template can carry: neither refuses, nor drops, nor makes the
            rest of the dialogue depend on.

    Attributes:
        wraps_tools: Whether tool messages stand in user messages.
        append_only: Whether an earlier part of a dialogue is rendered the same when the dialogue grows. See
            :class:`trajgym.policies.render.Renderer`.

    Raises:
        TemplateError: When there is no template, or it cannot carry a dialogue.
    """

    def __init__(self, tokenizer: Any, *, thinking: bool, tool_role: ToolRole) -> None:
        self._tokenizer = tokenizer
        source = getattr(tokenizer, "chat_template", None)
        if not source:
            raise TemplateError(
                "The tokenizer has no chat template. Set tokenizer.chat_template, or use an instruct model's tokenizer."
            )
        if tool_role not in ("auto", "tool", "user"):
            raise TemplateError(f"tool_role must be 'auto', 'tool' or 'user', got {tool_role!r}.")
        self.thinking = thinking
        self._options = {"enable_thinking": thinking} if "enable_thinking" in str(source) else {}
        self._fills_history = False
        self._folds_system = not self._carries("system", "user")
        carries_tools = tool_role != "user" and self._carries("user", "assistant", "tool")
        if tool_role == "tool" and not carries_tools:
            raise TemplateError("The chat template refuses or drops tool messages. Pass tool_role='user' or 'auto'.")
        self.wraps_tools = not carries_tools
        self.header = self._generation_prompt()
        try:
            self.append_only = self._probe()
        except TemplateError:
            if tool_role != "auto" or self.wraps_tools:
                raise
            # Some templates know a tool's answer only behind calls that they have written themselves.
            self.wraps_tools, self._fills_history = True, False
            self.append_only = self._probe()

    def render(self, dialogue: Dialogue, *, generation: bool) -> str:
        """Return the dialogue as text, with the generation prompt behind it if asked for.

        Raises:
            TemplateError: When the template refuses this dialogue.
        """
        return self._filled(dialogue, generation) if self._fills_history else self._apply(dialogue, generation)

    def continuation(self, observations: Dialogue) -> str:
        """Return what stands between the end of a turn's text and the beginning of the next turn's text."""
        slot = _SLOT.format(0)
        opening = [{"role": "user", "content": "?"}, {"role": "assistant", "content": slot}]
        return self._behind(slot, self._apply([*opening, *observations], generation=True))

    def _carries(self, *roles: str) -> bool:
        dialogue = [{"role": role, "content": f"probe {role}"} for role in roles]
        try:
            text = self._ask(dialogue, generation=False)
        except TemplateError:
            return False
        return all(message["content"] in text for message in dialogue)

    def _generation_prompt(self) -> str:
        dialogue = [{"role": "user", "content": "probe"}]
        without, with_header = (self._apply(dialogue, generation) for generation in (False, True))
        if not with_header.startswith(without):
            raise TemplateError("The chat template rewrites a dialogue for the next turn (add_generation_prompt).")
        return with_header[len(without) :]

    def _probe(self) -> bool:
        opens = "" if "<think>" in self.header else _OPENS  # some generation prompts open the block themselves
        answer = opens + _REASONS + _PLAIN if self.thinking else _PLAIN
        grown, at_once = self._grown_and_at_once(answer)
        if grown == at_once:
            return True
        if not self.header:  # right only where turns begin without one, as in Mistral's templates
            raise TemplateError(
                "The chat template adds no generation prompt behind a dialogue (add_generation_prompt)."
            )
        if not self.thinking:
            self._fills_history = True
            grown, at_once = self._grown_and_at_once(answer)
            if grown == at_once:
                return True
        elif [_THINK.sub("", text) for text in grown] == [_THINK.sub("", text) for text in at_once]:
            return False
        different = next((g, a) for g, a in zip(grown, at_once, strict=True) if g != a)
        raise TemplateError(
            "The chat template rewrites earlier parts of a dialogue, so no stream of tokens can follow it: grown turn "
            f"by turn it is {different[0]!r}, rendered at once {different[1]!r}. Use a template that only appends."
        )

    def _grown_and_at_once(self, answer: str) -> tuple[list[str], list[str]]:
        grown, at_once = [], []
        for groups in _PROBES:
            dialogue: Dialogue = []
            text = ""
            for number, roles in enumerate(groups):
                group = [
                    {"role": role, "content": f"probe {role} {number}{k}", **_LABELS.get((role, k), {})}
                    for k, role in enumerate(roles.split())
                ]
                text += self.continuation(group) if dialogue else self.render(group, generation=True)
                dialogue += [*group, {"role": "assistant", "content": answer.format(number)}]
                text += answer.format(number)
            whole = self.render(dialogue, generation=False)
            grown.append(text + self._behind(_PLAIN.format(len(groups) - 1), whole))
            at_once.append(whole)
        return grown, at_once

    def _behind(self, content: str, text: str) -> str:
        before, found, after = text.rpartition(content)
        if not found or (content in before):
            raise TemplateError(
                "The chat template drops or repeats the text of an assistant message. Use one that writes it once."
            )
        return after

    def _filled(self, dialogue: Dialogue, generation: bool) -> str:
        """Render with the whole generation prompt before every turn in the history, as the policy saw it."""
        contents = [m["content"] for m in dialogue if m["role"] == "assistant"]
        slots = [_SLOT.format(k) for k in range(len(contents))]
        rest = iter(slots)
        emptied = [{**m, "content": next(rest)} if m["role"] == "assistant" else m for m in dialogue]
        text = self._apply(emptied, generation)
        for slot, content in zip(slots, contents, strict=True):
            before, _, after = text.partition(slot)
            text = self._with_header(before) + content + after
        return text

    def _with_header(self, text: str) -> str:
        for kept in range(len(self.header), 0, -1):
            if text.endswith(self.header[:kept]):
                missing = self.header[kept:]
                if "<think>" in missing and "</think>" not in missing:
                    raise TemplateError(
                        "The chat template begins every turn with reasoning and drops it later on. Pass thinking=True."
                    )
                return text + missing
        raise TemplateError(
            f"The chat template does not write its own generation prompt {self.header!r} before the turns of the "
            f"history: {text[-80:]!r}. Use a template that does."
        )

    def _apply(self, dialogue: Dialogue, generation: bool) -> str:
        if self.wraps_tools:
            dialogue = _wrap_tools(dialogue)
        if self._folds_system:
            dialogue = _fold_system(dialogue)
        return self._ask(dialogue, generation)

    def _ask(self, dialogue: Dialogue, generation: bool) -> str:
        try:
            text = self._tokenizer.apply_chat_template(
                dialogue, tokenize=False, add_generation_prompt=generation, **self._options
            )
        except Exception as error:  # a template is a program of somebody else's
            roles = ", ".join(message["role"] for message in dialogue) or "none"
            raise TemplateError(f"The chat template refuses a dialogue with the roles {roles}: {error}") from error
        return str(text)


def _wrap_tools(dialogue: Dialogue) -> Dialogue:
    out: Dialogue = []
    joins = False  # templates that know no tools tend to want users and assistants in turn
    for message in dialogue:
        is_tool = message["role"] == "tool"
        content = f"<tool_response>\n{message['content']}\n</tool_response>" if is_tool else message["content"]
        if joins and message["role"] in ("tool", "user"):
            out[-1] = {"role": "user", "content": f"{out[-1]['content']}\n{content}"}
        else:
            out.append({"role": "user", "content": content} if is_tool else message)
        joins = is_tool or (joins and message["role"] == "user")
    return out


def _fold_system(dialogue: Dialogue) -> Dialogue:
    out: Dialogue = []
    held: list[str] = []
    for message in dialogue:
        if message["role"] == "system":
            held.append(message["content"])
        elif held and message["role"] == "user":
            out.append({"role": "user", "content": "\n\n".join([*held, message["content"]])})
            held = []
        else:
            out.append(message)
    return [*out, {"role": "user", "content": "\n\n".join(held)}] if held else out
