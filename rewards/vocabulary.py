"""The English words that the answer reader knows, all in lower case."""

from __future__ import annotations

__all__ = [
    "ALTERNATIVES",
    "ARITHMETIC",
    "CALLED_RIGHT",
    "CALLED_WRONG",
    "CLAUSE_OPENERS",
    "COMPARATIVES",
    "EQUALITY",
    "FILLERS",
    "FRACTION_NAMES",
    "JOINERS",
    "LABELS",
    "LIST_OPENERS",
    "MULTIPLIERS",
    "NEGATIONS",
    "ONES",
    "OPERATIONS",
    "OPERATIONS_BY",
    "ORDINALS",
    "PARTS",
    "PHRASE_WORDS",
    "SCALES",
    "SHORT_UNITS",
    "TENS",
    "WORD_ANSWERS",
]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _counted(text: str, first: int, step: int) -> dict[str, int]:
    return {word: first + step * index for index, word in enumerate(text.split())}


# Between two numbers: the second is offered instead of the first.
ALTERNATIVES = _words("or alternatively else otherwise")
# Between two numbers: they stand side by side.
JOINERS = ALTERNATIVES | _words("and to through till until versus vs")
# These change neither a value nor what stands between two values.
FILLERS = _words(
    "the a an another also maybe perhaps possibly even about around approximately approx roughly nearly almost just "
    "only exactly either both"
)
# These name no thing that is counted: behind them the text is a phrase, and not a second quantity.
PHRASE_WORDS = _words(
    "in over for per at after of from by with on each every within during than as that which who when where "
    "while if so because since but not instead rather is was are were be been has have had do does did will "
    "would can could she he they it we you i his her their its this these those there then out into off before "
    "below above under between how what makes make gives"
)
NEGATIONS = _words(
    "unlikely hardly not never neither nor isn't isn’t isnt wasn't wasn’t aren't aren’t cannot can't can’t won't won’t"
)
# Behind a number and "is" or "is not": it is the answer, or is none.
CALLED_RIGHT = _words("answer right correct true it")
CALLED_WRONG = _words("wrong incorrect false mistaken impossible")
# Between "or" and a number these only introduce it.
CLAUSE_OPENERS = _words(
    "it it's it’s its is was be are were they there she he we i that that's that’s would could might may should will "
    "which so now rather instead actually answer total result number correct right equal equals to"
)
EQUALITY = _words("is was are be equals equal")
ARITHMETIC = _words("plus times")
# With "than" between two numbers these add or take away.
COMPARATIVES = _words("more less fewer greater")
# Before a number these ask for a multiple, a part or a function of it.
MULTIPLIERS = _words("twice thrice double triple quadruple half sqrt log ln sin cos tan")
# Behind a number these are done to it, the second kind with "by", "to" or "from" and another number.
OPERATIONS = _words(
    "divided multiplied squared cubed doubled tripled halved factorial mod modulo choose minus point half halves third "
    "thirds fourths fifths sixths sevenths eighths ninths tenths hundredths thousandths"
)
OPERATIONS_BY = _words("increased decreased reduced raised added subtracted")
# Right before a number these introduce a list of guesses, or a range.
LIST_OPENERS = EQUALITY | _words("were between of")
# Right before the number behind `####` these make it an answer and not a heading.
LABELS = EQUALITY | _words(
    "answer total result sum final not usd eur gbp rs from between than least most over under to"
)

ONES = _counted("zero one two three four five six seven eight nine ten eleven twelve", 0, 1) | _counted(
    "thirteen fourteen fifteen sixteen seventeen eighteen nineteen", 13, 1
)
TENS = _counted("twenty thirty forty fifty sixty seventy eighty ninety", 20, 10)
SCALES = {"hundred": 10**2} | {
    word: 10**zeros
    for zeros, names in ((3, "thousand thousands"), (6, "million millions"), (9, "billion billions"), (12, "trillion"))
    for word in names.split()
}
ORDINALS = _words("st nd rd th")
# Behind a number word these make a fraction of it, which is not read.
FRACTION_NAMES = _words(
    "point half halves third thirds quarter quarters fourth fourths fifth fifths sixth sixths seventh sevenths eighth "
    "eighths ninth ninths tenth tenths hundredth hundredths thousandth thousandths"
)

# With "of" before a number these ask for a part of it.
PARTS = FRACTION_NAMES | _words("root square cube percent")

# Formulas are made of single letters; these runs of letters are none, though they are short.
SHORT_UNITS = _words("cm mm km dm nm kg mg ml dl ft yd mi lb lbs oz hr hrs min sec ms mph kph gal sq cu rad usd")
WORD_ANSWERS = _words("yes no none odd even all sum dne")
