r"""What the signs, commands and names of a formula mean: LaTeX and plain text in the same terms.

The values are kinds of tokens, see :class:`trajgym.rewards.expression_tokens.Token`.
"""

from __future__ import annotations

__all__ = ["COMMANDS", "FUNCTIONS", "GREEK", "INSIGNIFICANT", "NAMES", "SIGNS", "TEXT_COMMANDS"]


def _each(kind: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), kind)


FUNCTIONS = _each("function", "sin cos tan cot sec csc sinh cosh tanh ln log exp abs floor ceil gcd lcm min max") | {
    **_each("function", "arcsin arccos arctan asin acos atan lg"),
    "sqrt": "sqrt",
}
GREEK = frozenset(
    _each(
        "symbol",
        "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau "
        "upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Sigma Phi Psi Omega ell",
    )
)
COMMANDS = (
    FUNCTIONS
    | _each("*", "cdot times ast")
    | _each("frac", "frac dfrac tfrac cfrac")
    | _each("binom", "binom dbinom tbinom")
    | _each("<=", "le leq leqslant")
    | _each(">=", "ge geq geqslant")
    | _each("!=", "ne neq")
    | _each("=", "approx equiv")
    | _each("and", "land lor")
    | _each("(", "langle")
    | _each(")", "rangle")
    | _each("empty", "emptyset varnothing")
    | _each("constant", "infty pi")
    | {name: name for name in ["in", "lvert", "rvert", "lfloor", "rfloor", "lceil", "rceil", "degree"]}
    | {"div": "/", "pm": "±", "mp": "∓", "lt": "<", "gt": ">", "cup": "∪", "cr": "row", "colon": ":"}
    | {"mid": "|", "vert": "|", "lbrace": "\\{", "rbrace": "\\}"}
)
SIGNS = (
    {sign: sign for sign in "+-*/^()[]{}|!=<>±∓∪&,:%"}
    | dict.fromkeys("×·⋅∗", "*")
    | dict.fromkeys("−–", "-")
    | dict.fromkeys("≈≡", "=")
    | dict.fromkeys("，；;、", ",")
    | dict.fromkeys("∞π", "constant")
    | {"÷": "/", "≤": "<=", "≥": ">=", "≠": "!=", "∈": "in", "√": "sqrt", "∅": "empty"}
)
# The names of what is written in several ways.
NAMES = {
    "infty": "infinity",
    "∞": "infinity",
    "inf": "infinity",
    "π": "pi",
    "asin": "arcsin",
    "acos": "arccos",
    "atan": "arctan",
    "lg": "log",
}
TEXT_COMMANDS = "text|textbf|textit|textrm|textnormal|mbox|mathrm|mathsf|mathit|operatorname"
# Commands that change how the thing behind them looks.
INSIGNIFICANT = (
    "displaystyle|textstyle|quad|qquad|limits|nolimits|mathbf|boldsymbol|bm|mathbb|mathcal|vec|overline|underline|boxed"
)
