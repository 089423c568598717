"""How a request is refused: a status, and a body in the form that OpenAI's clients read."""

from __future__ import annotations

from typing import Any

from trajgym.errors import ConfigError, EnvironmentFault, TemplateError, TrajgymError
from trajgym.serving.engine import Busy

__all__ = ["Refusal", "refusal_of"]


class Refusal(TrajgymError):
    """A request that is not answered.

    Args:
        status: HTTP status.
        message: What was got and what is allowed.
        code: A word for programs.
        param: The key that is wrong.
        retry_after: Seconds after which the same request may succeed.
    """

    def __init__(
        self, status: int, message: str, code: str, *, param: str | None = None, retry_after: int | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.param, self.retry_after = status, code, param, retry_after

    @property
    def body(self) -> dict[str, Any]:
        """The body of the response."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        kind = {401: "authentication_error", 429: "rate_limit_error"}.get(self.status, kind)
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the response."""
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        return headers | ({"WWW-Authenticate": "Bearer"} if self.status == 401 else {})


def refusal_of(error: BaseException) -> Refusal:
    """Return how a failure is told to the client."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, Busy):
        return Refusal(429, str(error), "busy", retry_after=error.retry_after)
    if isinstance(error, TimeoutError):
        return Refusal(504, "The answer took longer than this server allows.", "timeout")
    if isinstance(error, (ConfigError, TemplateError)):
        return Refusal(400, str(error), "invalid_value")
    if isinstance(error, EnvironmentFault):
        return Refusal(503, str(error), "fault", retry_after=1)
    # What it was is in the log: a stranger has no use for the insides of this server.
    return Refusal(500, "The server failed at this request.", "internal_error")
