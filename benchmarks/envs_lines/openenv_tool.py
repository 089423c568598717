# ruff: noqa: D103
"""A new tool, on a server of the protocol that its tools speak."""

from fastmcp import FastMCP

server = FastMCP("shapes")


@server.tool()  # type: ignore[untyped-decorator]
def area(width: float, height: float) -> float:
    return width * height
