"""The prompt of a question as text, byte for byte what the policy sees when it plays the environment."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trajgym.envs.base import ToolEnv
from trajgym.envs.make import make
from trajgym.errors import ConfigError, DataError, TemplateError
from trajgym.policies import tiny_path
from trajgym.policies.render import Renderer
from trajgym.policies.template import ChatTemplate
from trajgym.types import Message, Task

__all__ = ["Prompter", "load_tokenizer"]


def load_tokenizer(model_name: str) -> Any:
    """Load a model's tokenizer, without its weights.

    Args:
        model_name: ``"tiny"`` for the embedded model, a folder in Hugging Face's format, or a hub id.

    Raises:
        ConfigError: When it cannot be loaded.
    """
    from transformers import AutoTokenizer

    from trajgym.trainers.models import reachable  # here, since torch comes with it

    source = str(tiny_path()) if model_name == "tiny" else str(Path(model_name).expanduser())
    try:
        return AutoTokenizer.from_pretrained(reachable(source))
    except Exception as error:  # the libraries below raise a dozen types; the user needs one
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(
            f"Cannot load the tokenizer of model {model_name!r}: {reason} Allowed: 'tiny', a folder with the "
            "tokenizer's files, or a Hugging Face hub id that this machine can reach."
        ) from error


class Prompter:
    """Writes prompts and completions of one turn with a model's template and an environment's system message.

    Args:
        tokenizer: The model's, with its chat template.
        env: Id of the environment whose prompt it is.
        env_kwargs: The environment's arguments. Without a ``protocol`` among them calls are described in the form of
            the model's own template, as in training and evaluation.
        thinking: As in :class:`~trajgym.policies.render.Renderer`.

    Attributes:
        renderer: Encodes the same dialogues.
        end: The text of the end-of-turn token.

    Raises:
        ConfigError: When the environment is none of ours.
        TemplateError: When the model's template cannot be followed.
    """

    def __init__(
        self, tokenizer: Any, *, env: str, env_kwargs: Mapping[str, Any] | None = None, thinking: bool = False
    ) -> None:
        self.renderer = Renderer(tokenizer, thinking=thinking)
        self.end = str(tokenizer.decode([self.renderer.end_id]))
        self._template = ChatTemplate(tokenizer, thinking=thinking, tool_role="auto")
        self._tokenizer = tokenizer
        self._env = _made(env, dict(env_kwargs or {}), self.renderer.protocol)
        added = sorted((token for token in tokenizer.get_added_vocab() if token.strip()), key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, added)))
        if tokenizer.encode(self.prompt("?", "probe"), add_special_tokens=False) != self.renderer.prompt(
            self.messages("?")
        ):
            raise TemplateError(
                "This tokenizer encodes a rendered prompt differently from the dialogue it is of, so no text can stand "
                "for it. Train on messages."
            )

    def messages(self, question: str) -> tuple[Message, ...]:
        """Return the messages of a question's prompt."""
        return self._env.prompt(Task("question", question, ""))

    def prompt(self, question: str, where: str) -> str:
        """Return a question's prompt as text, up to where the assistant's turn begins.

        Args:
            question: The question.
            where: Where it stands, for messages of errors.

        Raises:
            DataError: When the question holds text that the tokenizer takes for a control token.
            TemplateError: When the template refuses the prompt.
        """
        messages = self.messages(question)
        dialogue = [{"role": m.role, "content": m.content} for m in messages]
        text = self._template.render(dialogue, generation=True)
        self._check(text, question, lambda: self.renderer.prompt(messages), f"{where}: the question")
        return text

    def completion(self, solution: str, where: str) -> str:
        """Return a solution as the assistant's whole turn, with the end-of-turn token behind it.

        Args:
            solution: What the assistant says.
            where: Where it stands, for messages of errors.

        Raises:
            DataError: When it holds text that the tokenizer takes for a control token.
        """
        text = solution + self.end
        self._check(
            text, solution, lambda: [*self.renderer.turn(solution), self.renderer.end_id], f"{where}: the solution"
        )
        return text

    def _check(self, text: str, content: str, ids: Callable[[], list[int]], what: str) -> None:
        # A renderer writes control tokens that stand in contents as ordinary characters; a text cannot.
        tokens = sorted(set(self._control.findall(content)))
        if tokens and self._tokenizer.encode(text, add_special_tokens=False) != ids():
            raise DataError(
                f"{what} holds {', '.join(map(repr, tokens))}, which this tokenizer takes for a control token. Take it "
                "out, or train on messages, where it stays ordinary text."
            )


def _made(env_id: str, arguments: dict[str, Any], protocol: str | None) -> ToolEnv:
    env = make(env_id, **arguments).unwrapped
    if not isinstance(env, ToolEnv):
        raise ConfigError(
            f"{env_id} is no environment of trajgym's ({type(env).__name__}), so its prompt is not known. Use env= "
            "with an id from `trajgym envs`."
        )
    fits = not env.tools or "protocol" in arguments or protocol in (None, env.protocol.name)
    return env if fits else _made(env_id, {**arguments, "protocol": protocol}, protocol)
