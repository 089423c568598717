"""What clients may send. Every key has an effect; one that would have none is refused, with the reason."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StrictBool, field_validator, model_validator

__all__ = ["AgentRequest", "ChatMessage", "ChatRequest", "FunctionCall", "GenerateRequest", "ToolCallItem", "ToolItem"]

_MOST_STOPS = 16
_Stop = Annotated[str, Field(min_length=1, max_length=200)]
_Stops = Annotated[list[_Stop], Field(max_length=_MOST_STOPS)]
_Temperature = Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)]
_TopP = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
_Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
_Count = Annotated[int, Field(ge=1, strict=True)]
_Name = Annotated[str, Field(min_length=1, max_length=128)]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid")


class FunctionCall(_Request):
    """A call as OpenAI's interface writes it: ``arguments`` is JSON in a string."""

    name: _Name
    arguments: str = "{}"


class ToolCallItem(_Request):
    """One call of an assistant message."""

    id: str = ""
    type: Literal["function"] = "function"
    function: FunctionCall


class _TextPart(_Request):
    type: Literal["text"]
    text: str


class ChatMessage(_Request):
    """One message of the dialogue."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[_TextPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCallItem] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None

    @property
    def text(self) -> str:
        """The content as one text."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.tool_calls and self.role != "assistant":
            raise ValueError(f"a message of the role {self.role} cannot hold tool_calls, only assistant can")
        if self.content is None and not self.tool_calls and self.role != "assistant":
            raise ValueError(f"a message of the role {self.role} needs content")
        return self


class _Function(_Request):
    name: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]{0,63}$")]
    description: str = ""
    parameters: dict[str, Any] = Field(default_factory=lambda: {"type": "object", "properties": {}})
    strict: bool | None = None


class ToolItem(_Request):
    """A tool that the model may call."""

    type: Literal["function"] = "function"
    function: _Function

    @field_validator("function")
    @classmethod
    def _object(cls, function: _Function) -> _Function:
        properties = function.parameters.get("properties", {})
        required = function.parameters.get("required", [])
        right = isinstance(properties, dict) and all(isinstance(schema, dict) for schema in properties.values())
        if function.parameters.get("type", "object") != "object" or not right:
            raise ValueError(f"parameters of {function.name} must be the JSON schema of an object")
        if not isinstance(required, list) or not all(name in properties for name in required):
            raise ValueError(f"parameters.required of {function.name} must name some of its properties")
        return function


class _Chosen(_Request):
    class Named(_Request):
        name: _Name

    type: Literal["function"] = "function"
    function: Named


class _StreamOptions(_Request):
    include_usage: bool = False
    include_obfuscation: bool = False


# What OpenAI's interface has and this server has not; the value that asks for nothing is accepted.
_ASKS_FOR_NOTHING: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
}
# What concerns OpenAI's own accounts and machines.
_NOT_OURS = ("metadata", "prompt_cache_key", "safety_identifier", "service_tier", "store", "user")


class ChatRequest(_Request):
    """A request to ``/v1/chat/completions``."""

    model: str
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=2048)]
    max_tokens: _Count | None = None
    max_completion_tokens: _Count | None = None
    temperature: _Temperature | None = None
    top_p: _TopP | None = None
    n: _Count | None = None
    seed: _Seed | None = None
    stop: _Stop | _Stops | None = None
    stream: StrictBool | None = None
    stream_options: _StreamOptions | None = None
    logprobs: StrictBool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: Annotated[list[ToolItem], Field(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | _Chosen | None = None
    parallel_tool_calls: StrictBool | None = None

    @model_validator(mode="before")
    @classmethod
    def _known(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        values = {key: value for key, value in values.items() if key not in _NOT_OURS}
        for key, nothing in _ASKS_FOR_NOTHING.items():
            value = values.pop(key, None)
            if value is not None and value not in nothing:
                raise ValueError(f"{key} is not supported by this server, only the value {nothing[0]!r}; leave it out")
        return values

    @model_validator(mode="after")
    def _together(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options needs stream: true")
        if self.max_tokens and self.max_completion_tokens and self.max_tokens != self.max_completion_tokens:
            raise ValueError("max_tokens is the old name of max_completion_tokens; give one of them")
        names = [tool.function.name for tool in self.tools or ()]
        if len(set(names)) != len(names):
            raise ValueError(f"tools must have different names, got {names}")
        if isinstance(self.tool_choice, _Chosen) and self.tool_choice.function.name not in names:
            raise ValueError(f"tool_choice names {self.tool_choice.function.name!r}, which is none of tools: {names}")
        if self.tool_choice == "required" and not names:
            raise ValueError("tool_choice required needs tools")
        return self

    @property
    def stops(self) -> list[str]:
        """The stop strings."""
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())

    @property
    def budget(self) -> int | None:
        """Most new tokens, if the client said so."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def chosen_tool(self) -> str | None:
        """The tool that must be called, if one is named."""
        return self.tool_choice.function.name if isinstance(self.tool_choice, _Chosen) else None


class GenerateRequest(_Request):
    """A request to ``/generate``: one prompt, one answer."""

    prompt: Annotated[str, Field(min_length=1)]
    system: str = ""
    max_new_tokens: _Count | None = None
    temperature: _Temperature = 0.7
    do_sample: StrictBool = True
    top_p: _TopP = 1.0
    seed: _Seed | None = None
    stop: _Stop | _Stops | None = None

    @property
    def stops(self) -> list[str]:
        """The stop strings."""
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())


class AgentRequest(_Request):
    """A request to ``/agent``: a question that the model works on with the environment's tools."""

    question: Annotated[str, Field(min_length=1)]
    max_turns: _Count | None = None
    temperature: _Temperature = 0.7
    seed: _Seed | None = None
