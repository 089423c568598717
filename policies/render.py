"""Dialogues to token ids, token-exact: what was sampled stays as it was sampled, the rest is appended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from trajgym.errors import EpisodeError, TemplateError
from trajgym.policies.encoder import SafeEncoder
from trajgym.policies.template import ChatTemplate, ToolRole
from trajgym.policies.template_protocol import template_call, template_protocol
from trajgym.types import Message

__all__ = ["Renderer"]


class Renderer:
    """Writes dialogues in the form a model was trained on, and reads its turns.

    A dialogue becomes a stream of tokens that only grows: :meth:`prompt`, the sampled turn, :meth:`bridge`, the next
    sampled turn, … The template is probed for this when the renderer is made. Three outcomes:

    * The template only ever appends. Then ``append_only`` is true, and the stream equals :meth:`one_shot` of the
      whole dialogue, which is ``tokenizer.apply_chat_template``.
    * The template drops the end of the generation prompt from the history (Qwen3 with ``thinking=False``: the empty
      think block). Then ``append_only`` is true, and by definition the history keeps before each turn the whole
      generation prompt the policy saw, in :meth:`one_shot` and in :meth:`prompt` too. Up to the first turn this
      is ``tokenizer.apply_chat_template``.
    * The template drops the reasoning of earlier turns (Qwen3 with ``thinking=True``). Then ``append_only`` is false:
      render each turn afresh with :meth:`prompt`, and train each turn in the context it was sampled in.

    Contents are not trusted. No added token of the tokenizer that is written in a user or tool message becomes that
    token: its characters are encoded as ordinary text. System messages (the environment describes the call form
    there) and assistant messages keep the added tokens that are not special, such as ``<tool_call>``, and those with
    which the template itself writes a call, such as ``[TOOL_CALLS]``; special ones become ordinary text there too.

    A template that refuses system messages gets them in front of the first user message. One that cannot carry
    tool messages gets them as user messages, each wrapped in ``<tool_response>`` tags (see ``tool_role``).

    Args:
        tokenizer: A transformers ``PreTrainedTokenizerFast`` with a chat template.
        thinking: Whether the policy reasons between think tags before it acts.
        tool_role: ``"auto"``, or force ``"tool"`` (the template's own form) or ``"user"`` (wrapped).
        stop_ids: Further tokens that end a turn, e.g. those of the model's generation config.

    Attributes:
        append_only: Whether one stream of tokens can follow a dialogue.
        end_id: The token with which the template ends an assistant turn.
        stop_ids: Every token that ends a turn: ``end_id``, the tokenizer's end of text, and those passed in.

    Raises:
        TemplateError: When there is no chat template, no end-of-turn token, or the template cannot be followed.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        thinking: bool = False,
        tool_role: ToolRole = "auto",
        stop_ids: Iterable[int] = (),
    ) -> None:
        self._template = ChatTemplate(tokenizer, thinking=thinking, tool_role=tool_role)
        self._tokenizer = tokenizer
        self._encoder = SafeEncoder(tokenizer, call=template_call(tokenizer) or "")
        self.append_only = self._template.append_only
        self.end_id = self._end_of_turn()
        eos = tokenizer.eos_token_id
        self.stop_ids = frozenset({self.end_id, *stop_ids} | (set() if eos is None else {int(eos)}))

    @property
    def thinking(self) -> bool:
        """Whether the policy reasons between think tags."""
        return self._template.thinking

    @property
    def tool_role(self) -> str:
        """How tool messages are written: ``"tool"``, the template's own form, or ``"user"``, wrapped."""
        return "user" if self._template.wraps_tools else "tool"

    @property
    def protocol(self) -> str | None:
        """Name of the protocol in which the chat template writes calls, ``None`` when it writes none.

        Raises:
            TemplateError: When no registered protocol reads them.
        """
        return template_protocol(self._tokenizer)

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Return the dialogue with the generation prompt behind it: the context of a turn.

        Raises:
            TemplateError: When the template refuses this dialogue.
        """
        return self._encoder.encode(self._template.render(self._dialogue(messages), generation=True))

    def one_shot(self, messages: Sequence[Message]) -> list[int]:
        """Return the whole dialogue rendered at once, without a generation prompt.

        Raises:
            TemplateError: When the template refuses this dialogue.
        """
        return self._encoder.encode(self._template.render(self._dialogue(messages), generation=False))

    def bridge(self, messages: Sequence[Message], *, ended: bool) -> list[int]:
        """Return the tokens between a sampled turn and the next one.

        Args:
            messages: What the environment answered: tool or user messages, several at once if need be.
            ended: Whether the last sampled token was ``end_id``; otherwise it is inserted first.

        Raises:
            EpisodeError: When the template is not append-only.
            TemplateError: When the template refuses these messages.
        """
        if not self.append_only:
            raise EpisodeError("This template rewrites its history: render each turn with Renderer.prompt instead.")
        ids = self._encoder.encode(self._template.continuation(self._dialogue(messages)))
        return ids[1:] if ended else ids

    def turn(self, text: str) -> list[int]:
        """Return the tokens of an assistant turn that was not sampled, without the end-of-turn token."""
        return self._encoder.encode(self._encoder.protect(text, special_only=True))

    def rendered(self, text: str) -> list[int]:
        """Return the tokens of text that the chat template has written; what looks like a control token is one."""
        return self._encoder.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of a sampled turn, without the stop token at its end."""
        end = len(ids) - 1 if ids and ids[-1] in self.stop_ids else len(ids)
        return self._encoder.decode(list(ids[:end]))

    def _dialogue(self, messages: Sequence[Message]) -> list[dict[str, str]]:
        dialogue = []
        for message in messages:
            trusted = message.role in ("system", "assistant")
            entry = {
                "role": message.role,
                "content": self._encoder.protect(message.content, special_only=trusted),
            }
            if message.role == "tool":
                labels = {"name": message.name, "tool_call_id": message.call_id}
                entry |= {key: self._encoder.protect(label) for key, label in labels.items() if label}
            dialogue.append(entry)
        return dialogue

    def _end_of_turn(self) -> int:
        text = self._template.continuation([{"role": "user", "content": "?"}])
        ids = self._encoder.encode(text)
        if not ids or not self._encoder.is_control(ids[0]):
            raise TemplateError(
                f"The chat template ends an assistant turn with {text[:20]!r}, which is no control token of this "
                "tokenizer, so a turn could not be told to end. Use a template with an end-of-turn token."
            )
        return ids[0]
