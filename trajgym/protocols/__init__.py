"""Written forms of an action: text to tool calls and back."""

from __future__ import annotations

from trajgym.errors import ConfigError
from trajgym.protocols.annotation import GSM8KAnnotation
from trajgym.protocols.base import Parsed, Protocol
from trajgym.protocols.deepseek import DeepSeek
from trajgym.protocols.hermes import Hermes
from trajgym.protocols.llama3 import Llama3
from trajgym.protocols.mistral import Mistral
from trajgym.protocols.python_block import PythonBlock
from trajgym.protocols.pythonic import Pythonic
from trajgym.protocols.qwen_coder import QwenCoder
from trajgym.protocols.react import React
from trajgym.protocols.single import SingleCall
from trajgym.protocols.streaming import Stream
from trajgym.protocols.xml_tool import XmlTool
from trajgym.registry import Registry

__all__ = [
    "PROTOCOLS",
    "DeepSeek",
    "GSM8KAnnotation",
    "Hermes",
    "Llama3",
    "Mistral",
    "Parsed",
    "Protocol",
    "PythonBlock",
    "Pythonic",
    "QwenCoder",
    "React",
    "SingleCall",
    "Stream",
    "XmlTool",
    "get_protocol",
    "register_protocol",
]

PROTOCOLS: Registry[Protocol] = Registry(
    "protocol",
    entry_points="trajgym.protocols",
    hint="Pass a Protocol of your own, or add a name with trajgym.protocols.register_protocol(...).",
)


def register_protocol(protocol: Protocol, *, replace: bool = False) -> Protocol:
    """Make ``protocol`` known under its name.

    Raises:
        ConfigError: Another protocol has the name and ``replace`` is not set, or it is no protocol.
    """
    if not isinstance(protocol, Protocol):
        raise ConfigError(f"register_protocol() takes an instance of a Protocol, got {protocol!r}.")
    return PROTOCOLS.register(protocol.name, protocol, replace=replace)


def get_protocol(protocol: str | Protocol) -> Protocol:
    """Return the protocol of that name; an object passes through.

    Raises:
        UnknownNameError: Nobody registered the name.
        ConfigError: An installed package promises a protocol under this name, and it is none.
    """
    if isinstance(protocol, Protocol):
        return protocol
    found: object = PROTOCOLS[protocol]
    if not isinstance(found, Protocol):
        raise ConfigError(
            f"The protocol {protocol!r} must be an instance of trajgym.protocols.Protocol, got {found!r}. Repair the "
            "package that declares it (entry-point group 'trajgym.protocols')."
        )
    return found


# Where a text fits several of them, those that come first are preferred.
for _protocol in (
    Hermes(),
    QwenCoder(),
    Llama3(),
    Mistral(),
    DeepSeek(),
    Pythonic(),
    React(),
    PythonBlock(),
    XmlTool(),
    GSM8KAnnotation(),
):
    register_protocol(_protocol)
