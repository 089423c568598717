"""What a chat template says about calls decides in which form they are written, or that nothing may begin."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from trajgym.envs.tools import select_tools, tool
from trajgym.errors import ConfigError, TemplateError, UnknownNameError
from trajgym.policies.hf import HFSampler
from trajgym.policies.llm import LLMPolicy
from trajgym.policies.render import Renderer
from trajgym.policies.scripted import ExpertPolicy
from trajgym.policies.template_protocol import template_call, template_protocol
from trajgym.policies.tiny import build_model
from trajgym.protocols import PROTOCOLS, Parsed, Protocol, get_protocol, register_protocol
from trajgym.types import Message, ToolCall, ToolSpec

READABLE = ["hermes", "qwen3_coder", "llama3_json", "mistral", "deepseek", "pythonic"]
PUBLISHED = {
    "qwen2_5": "hermes",
    "qwen3": "hermes",
    "qwen3_training": "hermes",
    "qwen3_instruct_2507": "hermes",
    "qwen3_5_nothink": "qwen3_coder",
    "nemotron_3_nano": "qwen3_coder",
    "llama3_1": "llama3_json",
    "llama3_2": "llama3_json",
    "deepseekv3": "deepseek",
    "llama3": None,
    "gemma": None,
    "phi3_5": None,
    "cohere2": None,
}
# Their calls look like those of a registered protocol at first sight: same tags, or JSON behind a tag.
FOREIGN = ["glm4moe", "gptoss", "gemma4", "muse_glimmer"]


class Spoken(Protocol):
    """``please run NAME with VALUE``, the form of the family that nobody reads."""

    name = "spoken"

    def parse(self, text: str, tools: Mapping[str, ToolSpec]) -> Parsed:
        head, found, value = text.partition(" with ")
        name = head.removeprefix("please run ")
        if not found or name not in tools:
            return Parsed(text)
        return Parsed("", (ToolCall(name, {next(iter(tools[name].parameters["properties"])): value}),))

    def render(self, call: ToolCall) -> str:
        return f"please run {call.name} with {next(iter(call.arguments.values()))}"

    def instructions(self, tools: Mapping[str, ToolSpec], style: str = "schema") -> str:
        return "Say: please run TOOL with ARGUMENT"


@pytest.fixture
def spoken(monkeypatch: pytest.MonkeyPatch) -> Protocol:
    monkeypatch.setattr(PROTOCOLS, "_items", dict(PROTOCOLS._items))  # what is registered now is forgotten afterwards
    return register_protocol(Spoken())


class TestTheProtocolOfATemplate:
    @pytest.mark.parametrize("name", READABLE)
    def test_families(self, family: Callable[[str], Any], name: str) -> None:
        assert template_protocol(family(name)) == name

    @pytest.mark.parametrize("name", PUBLISHED)
    def test_published_templates(
        self, make_tokenizer: Callable[..., Any], template_of: Callable[[str], str], name: str
    ) -> None:
        assert template_protocol(make_tokenizer(template_of(name))) == PUBLISHED[name]

    def test_real_tokenizers(self, qwen3_tokenizer: Any, smollm2_tokenizer: Any) -> None:
        assert template_protocol(qwen3_tokenizer) == "hermes"
        assert template_protocol(smollm2_tokenizer) is None
        assert template_call(smollm2_tokenizer) is None
        written = template_call(qwen3_tokenizer)
        assert written is not None
        assert written.startswith("<tool_call>\n{")
        assert written.endswith("}\n</tool_call>")

    @pytest.mark.parametrize("name", FOREIGN)
    def test_a_form_that_nobody_reads_is_an_error_and_not_the_next_best(
        self, make_tokenizer: Callable[..., Any], template_of: Callable[[str], str], name: str
    ) -> None:
        tokenizer = make_tokenizer(template_of(name))
        assert template_call(tokenizer) is None
        with pytest.raises(TemplateError, match=r"probe_tool.*no registered protocol reads.*hermes.*register_protocol"):
            template_protocol(tokenizer)

    def test_a_protocol_of_another_package_counts(self, family: Callable[[str], Any], spoken: Protocol) -> None:
        assert template_protocol(family("nobody reads it")) == "spoken"
        assert template_protocol(family("hermes")) == "hermes"

    def test_a_template_per_purpose(self, make_tokenizer: Callable[..., Any], family: Callable[[str], Any]) -> None:
        by_purpose = {"default": make_tokenizer().chat_template, "tool_use": family("hermes").chat_template}
        assert template_protocol(make_tokenizer(by_purpose)) == "hermes"

    def test_a_template_that_refuses_tools_has_none(self, make_tokenizer: Callable[..., Any]) -> None:
        chatml = make_tokenizer().chat_template
        for refusal in ("tools", "messages[1].tool_calls"):
            template = f"{{% if {refusal} %}}{{{{ raise_exception('no tools') }}}}{{% endif %}}{chatml}"
            assert template_protocol(make_tokenizer(template)) is None


@tool
def weather(city: str) -> str:
    """Say what the weather is like."""
    return f"sunny in {city}"


TOOLS = select_tools(["calculator", weather])


def policy_of(tokenizer: Any, **options: Any) -> LLMPolicy:
    renderer = Renderer(tokenizer)
    sampler = HFSampler(build_model(tokenizer, width=32, layers=1), slots=2, max_length=64, stop_ids=renderer.stop_ids)
    return LLMPolicy(sampler, renderer, max_turn_tokens=8, max_episode_tokens=64, **options)


class TestAgreement:
    @pytest.mark.parametrize("name", READABLE)
    def test_unless_somebody_chose_the_templates_own_is_taken(self, family: Callable[[str], Any], name: str) -> None:
        policy = policy_of(family(name))
        for default in READABLE:
            assert policy.agree_on_protocol(get_protocol(default), TOOLS, named=False).name == name

    def test_a_template_without_calls_leaves_the_environments(self, make_tokenizer: Callable[..., Any]) -> None:
        policy, tools = policy_of(make_tokenizer()), select_tools(["calculator", "python"])
        for protocol in PROTOCOLS.values():
            for named in (False, True):
                assert policy.agree_on_protocol(protocol, tools, named=named) is protocol

    def test_another_one_that_was_chosen_is_an_error_that_names_both(self, family: Callable[[str], Any]) -> None:
        hermes, coder = get_protocol("hermes"), get_protocol("qwen3_coder")
        policy = policy_of(family("qwen3_coder"))
        assert policy.agree_on_protocol(coder, TOOLS) is coder
        message = r"reads calls in the protocol 'hermes', .* writes them in 'qwen3_coder'.*protocol_mismatch='allow'"
        with pytest.raises(ConfigError, match=message):
            policy.agree_on_protocol(hermes, TOOLS)

    def test_one_may_insist(self, family: Callable[[str], Any]) -> None:
        hermes = get_protocol("hermes")
        for name in ("qwen3_coder", "nobody reads it"):
            assert policy_of(family(name), protocol_mismatch="allow").agree_on_protocol(hermes, TOOLS) is hermes
        insisting = policy_of(family("qwen3_coder"), protocol_mismatch="allow")
        assert insisting.agree_on_protocol(hermes, TOOLS, named=False).name == "qwen3_coder"
        with pytest.raises(UnknownNameError, match="Did you mean 'allow'"):
            policy_of(family("hermes"), protocol_mismatch="alow")

    def test_a_form_that_nobody_reads_is_an_error(self, family: Callable[[str], Any]) -> None:
        for named in (False, True):
            with pytest.raises(TemplateError, match="'please run probe_tool with probe value'"):
                policy_of(family("nobody reads it")).agree_on_protocol(get_protocol("hermes"), TOOLS, named=named)

    def test_a_tokenizer_that_cannot_write_the_calls(self, make_tokenizer: Callable[..., Any]) -> None:
        from tokenizers import normalizers

        tokenizer = make_tokenizer()
        tokenizer.backend_tokenizer.normalizer = normalizers.Replace("{", "(")
        with pytest.raises(TemplateError, match=r"cannot write calls in the protocol 'hermes': .*comes back as .*\("):
            policy_of(tokenizer).agree_on_protocol(get_protocol("hermes"), TOOLS, named=False)

    def test_a_protocol_that_can_call_none_of_the_tools(self, make_tokenizer: Callable[..., Any]) -> None:
        class Mute(Spoken):
            name = "mute"

            def instructions(self, tools: Mapping[str, ToolSpec], style: str = "schema") -> str:
                return ""

        with pytest.raises(ConfigError, match="'mute' can call none of the environment's tools: calculator, weather"):
            policy_of(make_tokenizer()).agree_on_protocol(Mute(), TOOLS)
        with pytest.raises(ConfigError, match=r"'python_block' can call none of .*: calculator, weather"):
            policy_of(make_tokenizer()).agree_on_protocol(get_protocol("python_block"), TOOLS, named=False)

    def test_policies_without_a_template_take_what_there_is(self) -> None:
        protocol = Spoken()
        assert ExpertPolicy().agree_on_protocol(protocol, TOOLS, named=False) is protocol


class TestToolAnswers:
    """A template has to carry what the environment answers: results, which have labels, and errors, which have none."""

    ANSWERS = (Message("tool", "72", name="calculator", call_id="call_0"), Message("tool", "Error (unknown_tool): ?"))

    @pytest.mark.parametrize("name", READABLE)
    def test_every_family_carries_them(self, family: Callable[[str], Any], name: str) -> None:
        renderer = Renderer(family(name))
        call = template_call(family(name)) or ""
        dialogue = [Message("user", "48 + 24?"), Message("assistant", call), *self.ANSWERS, Message("assistant", "72")]
        stream = [*renderer.prompt(dialogue[:1]), *renderer.turn(call), renderer.end_id]
        stream += [*renderer.bridge(self.ANSWERS, ended=True), *renderer.turn("72"), renderer.end_id]
        assert renderer.one_shot(dialogue)[: len(stream)] == stream
        text = renderer.decode(stream)
        assert text.index("48 + 24?") < text.index(call) < text.index("72") < text.index("Error (unknown_tool): ?")

    def test_a_template_that_ties_answers_to_its_own_calls_gets_them_from_the_user(
        self, family: Callable[[str], Any]
    ) -> None:
        renderer = Renderer(family("mistral"))
        assert renderer.tool_role == "user"
        text = renderer.decode(renderer.bridge(self.ANSWERS[:1], ended=False))
        assert text == "</s>[INST]<tool_response>\n72\n</tool_response>[/INST]"
        with pytest.raises(TemplateError):
            Renderer(family("mistral"), tool_role="tool")
        assert Renderer(family("llama3_json")).tool_role == "tool"

    @pytest.mark.parametrize("label", ["m.name", "m.tool_call_id"])
    @pytest.mark.parametrize("wants", ["is defined", "is not defined"])
    def test_labels_that_are_not_always_there_cannot_be_relied_on(
        self, make_tokenizer: Callable[..., Any], label: str, wants: str
    ) -> None:
        refuses = f"{{% for m in messages %}}{{% if m.role == 'tool' and not {label} {wants} %}}"
        template = refuses + "{{ raise_exception('label') }}{% endif %}{% endfor %}" + make_tokenizer().chat_template
        assert Renderer(make_tokenizer(template)).tool_role == "user"


class TestTokensOfACall:
    """Special tokens with which the template writes a call are the policy's to write, and nobody else's."""

    @pytest.mark.parametrize(("name", "tag"), [("mistral", "[TOOL_CALLS]"), ("deepseek", "<｜tool▁sep｜>")])
    def test_only_the_policy_may_write_them(self, family: Callable[[str], Any], name: str, tag: str) -> None:
        tokenizer = family(name)
        token, renderer = tokenizer.convert_tokens_to_ids(tag), Renderer(tokenizer)
        call = template_call(tokenizer) or ""
        assert renderer.turn(call).count(token) == 1
        assert renderer.one_shot([Message("user", "?"), Message("assistant", call)]).count(token) == 1
        for role in ("user", "tool"):
            dialogue = [Message("user", "?"), Message("assistant", "ok"), Message(role, call), Message("assistant", "")]
            ids = renderer.one_shot(dialogue)
            assert token not in ids
            assert call in renderer.decode(ids)

    def test_other_special_tokens_stay_out_of_reach(self, family: Callable[[str], Any]) -> None:
        renderer = Renderer(family("mistral"))
        assert renderer.end_id not in renderer.turn("[TOOL_CALLS] [] </s>")
