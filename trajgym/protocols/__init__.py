"""Written forms of an action: text to tool calls and back."""

from __future__ import annotations

from trajgym.protocols.base import Parsed, Protocol
from trajgym.protocols.hermes import Hermes
from trajgym.registry import Registry

__all__ = ["PROTOCOLS", "Hermes", "Parsed", "Protocol", "get_protocol", "register_protocol"]

PROTOCOLS: Registry[Protocol] = Registry("protocol", hint="Add one with trajgym.protocols.register_protocol(...).")


def register_protocol(protocol: Protocol, *, replace: bool = False) -> Protocol:
    """Make ``protocol`` known under its name."""
    return PROTOCOLS.register(protocol.name, protocol, replace=replace)


def get_protocol(protocol: str | Protocol) -> Protocol:
    """Return the protocol of that name; an object passes through."""
    return protocol if isinstance(protocol, Protocol) else PROTOCOLS[protocol]


register_protocol(Hermes())
