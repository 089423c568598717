"""The calculator's language: text to an exact value, without ``eval``.

Tokens → postfix program → value. Nothing recurses, and nothing is looked up by name except seven functions.

>>> evaluate("20% of $1,250 + 1/3")
'751/3'
>>> evaluate("0.1 + 0.2"), evaluate("2(3 + 4)²"), evaluate("round(2.675, 2)")
('0.3', '98', '2.68')
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple, TypeAlias

from trajgym.envs.tools import exact
from trajgym.envs.tools.exact import CalculatorError, Number
from trajgym.envs.tools.lexer import END, MAX_LENGTH, Token, read_tokens, syntax_error
from trajgym.envs.tools.numerals import read_number, write_number

__all__ = ["FUNCTIONS", "CalculatorError", "evaluate"]

# A unit of work is about 10 ns: one bit of a fraction's sum or product, where common factors must be found.
_MAX_WORK = 200_000
_ROOT_WORK = 20_000


class _Operation(NamedTuple):
    """A function of the top ``arity`` values of the stack."""

    function: Callable[..., Number]
    arity: int


_Program: TypeAlias = list[_Operation | str]  # a string is the literal of a number

# name -> (function, fewest arguments, most arguments)
FUNCTIONS: dict[str, tuple[Callable[..., Number], int, int]] = {
    "abs": (exact.absolute, 1, 1),
    "ceil": (exact.ceiling, 1, 1),
    "floor": (exact.floor, 1, 1),
    "max": (exact.largest, 1, MAX_LENGTH),
    "min": (exact.smallest, 1, MAX_LENGTH),
    "round": (exact.round_half_away, 1, 2),
    "sqrt": (exact.square_root, 1, 1),
}
_POWER_RANK = 4
# A sign ranks between products and powers: -2^2 is -4, and 2^-1 is 1/2.
_OPERATORS: dict[str, tuple[_Operation, int]] = {
    "+": (_Operation(exact.add, 2), 1),
    "-": (_Operation(exact.subtract, 2), 1),
    "*": (_Operation(exact.multiply, 2), 2),
    "/": (_Operation(exact.divide, 2), 2),
    "//": (_Operation(exact.floor_divide, 2), 2),
    "%": (_Operation(exact.remainder, 2), 2),
    "sign": (_Operation(exact.negate, 1), 3),
    "^": (_Operation(exact.power, 2), _POWER_RANK),
    "**": (_Operation(exact.power, 2), _POWER_RANK),
}
_PERCENT = _Operation(lambda a: exact.divide(a, 100), 1)
_RAISED = {"²": _Operation(lambda a: exact.power(a, 2), 1), "³": _Operation(lambda a: exact.power(a, 3), 1)}


def evaluate(expression: str) -> str:
    """Return the value of an arithmetic expression as exact text.

    Args:
        expression: At most 1,000 characters; ``+ - * / // % ^ **``, brackets, percentages, money signs, digit
            groups, typographic operators, and the functions in :data:`FUNCTIONS`.

    Returns:
        An integer, a finite decimal without trailing zeros, else ``p/q``; an irrational value with 16 digits.

    Raises:
        CalculatorError: For anything else, with its kind and what to change. Nothing else is ever raised.
    """
    if not isinstance(expression, str):
        raise CalculatorError("wrong_type", f"The expression must be a string, got {type(expression).__name__}.")
    tokens = read_tokens(expression, FUNCTIONS)
    return write_number(_run(_Compiler(tokens).program))


def _run(program: _Program) -> Number:
    stack: list[Number] = []
    work = 0
    for step in program:
        if isinstance(step, str):
            stack.append(read_number(step))
            continue
        arguments = stack[-step.arity :]
        del stack[-step.arity :]
        value = exact.bounded(step.function(*arguments))
        if isinstance(value, Fraction):
            work += value.numerator.bit_length() + value.denominator.bit_length()
        elif step.function is exact.power and not isinstance(arguments[-1], int):
            work += _ROOT_WORK
        if work > _MAX_WORK:
            raise CalculatorError("too_large", "Too many long fractions or roots. Calculate it in parts.")
        stack.append(value)
    return stack[0]


class _Bracket:
    """An open bracket that waits for its partner.

    Args:
        function: The function it calls, or ``""``.
    """

    def __init__(self, function: str = "") -> None:
        self.function = function
        self.arguments = 1


class _Compiler:
    """Dijkstra's shunting yard: tokens in written order to a postfix ``program``.

    Args:
        tokens: The whole expression.

    Raises:
        CalculatorError: ``syntax_error``.
    """

    def __init__(self, tokens: list[Token]) -> None:
        self.program: _Program = []
        self._waiting: list[str | _Bracket] = []
        self._operand_next = True
        previous = END
        for token, following in zip(tokens, [*tokens[1:], END], strict=True):
            if self._operand_next:
                self._operand(token, previous, following)
            elif token.kind == "operator":
                self._operator(token, following)
            else:
                self._after_operand(token, previous)
            previous = token
        if self._operand_next:
            raise syntax_error("The expression ends too early: a number is missing at the end.")
        self._unwind(0)
        if self._waiting:
            raise syntax_error("A bracket is not closed. Add the missing ')'.")

    def _operand(self, token: Token, previous: Token, following: Token) -> None:
        if token.kind == "number":
            self.program.append(token.text)
            self._operand_next = False
        elif token.kind == "open":
            self._waiting.append(_Bracket(previous.text if previous.kind == "name" else ""))
        elif token.kind == "name" and following.kind == "open":
            pass  # the bracket that follows takes the name
        elif token.kind == "name":
            raise syntax_error(f"The function {token.text} needs brackets: write {token.text}( ).")
        elif token.text == "-":
            self._waiting.append("sign")
        elif token.text != "+":
            raise syntax_error(f"A number is missing before {token.text!r}.")

    def _operator(self, token: Token, following: Token) -> None:
        if token.text == "%" and not (following.starts_operand or (following.is_sign and token.gap)):
            self.program.append(_PERCENT)
        else:
            self._binary(token.text)

    def _after_operand(self, token: Token, previous: Token) -> None:
        if token.kind == "close":
            self._close()
        elif token.kind == "comma":
            self._unwind(0)
            bracket = self._waiting[-1] if self._waiting else None
            if not isinstance(bracket, _Bracket) or not bracket.function:
                raise syntax_error("A comma may only group three digits, as in 1,200, or separate arguments.")
            bracket.arguments += 1
            self._operand_next = True
        elif token.kind == "power" and previous.kind != "power":
            self.program.append(_RAISED[token.text])
        elif "\n" not in token.gap and (token.kind == "open" or (token.kind == "number" and previous.kind == "close")):
            self._binary("*")
            self._operand(token, END, END)
        else:
            raise syntax_error(f"An operator is missing before {token.text!r}.")

    def _binary(self, operator: str) -> None:
        rank = _OPERATORS[operator][1]
        # Powers group from right to left: an equal rank stays waiting.
        self._unwind(rank + 1 if rank == _POWER_RANK else rank)
        self._waiting.append(operator)
        self._operand_next = True

    def _unwind(self, rank: int) -> None:
        """Emit the waiting operators of at least this rank, up to the innermost bracket."""
        while self._waiting:
            top = self._waiting[-1]
            if isinstance(top, _Bracket) or _OPERATORS[top][1] < rank:
                return
            self.program.append(_OPERATORS[top][0])
            self._waiting.pop()

    def _close(self) -> None:
        self._unwind(0)
        bracket = self._waiting.pop() if self._waiting else None
        if not isinstance(bracket, _Bracket):
            raise syntax_error("A bracket is closed that was never opened. Remove the extra ')'.")
        if bracket.function:
            function, fewest, most = FUNCTIONS[bracket.function]
            if not fewest <= bracket.arguments <= most:
                wanted = f"{fewest}" if fewest == most else f"{fewest} to {most}"
                raise syntax_error(f"{bracket.function} takes {wanted} argument(s), got {bracket.arguments}.")
            self.program.append(_Operation(function, bracket.arguments))
