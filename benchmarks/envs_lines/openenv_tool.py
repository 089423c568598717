"""A new tool, on a server of the protocol that its tools speak."""

from fastmcp import FastMCP

server = FastMCP("shapes")


@server.tool()
def area(width: float, height: float) -> float:
    return width * height
