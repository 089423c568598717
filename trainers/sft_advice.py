"""Advice on the options of supervised fine-tuning, on its gradients, and what to do when a run of it breaks.

What its losses say, flat, rising again, or rising on held-out rows alone, is read by the rules of
:mod:`trajgym.trainers.diagnose_supervised`. Learning rates and batch sizes are those
usually given for models of about 0.5B to 1B parameters; toys are left alone.
"""

from __future__ import annotations

from trajgym.trainers.diagnose_changes import (
    BF16,
    CHECKPOINTING,
    LOWER_GRAD_NORM,
    LOWER_RATE,
    RAISE_RATE,
    Change,
    Options,
    is_toy,
    number,
)
from trajgym.trainers.diagnose_history import SHORT, History
from trajgym.trainers.diagnose_learning import GRAD_HIGH, GRAD_LOW
from trajgym.trainers.diagnose_rule import Evidence, Rule, Severity

__all__ = ["SFT_ADVICE", "SFT_GRADIENTS", "sft_advice_table"]

_RATE_SLOW, _RATE_USUAL, _RATE_LORA, _RATE_DIVERGES = 1e-6, 5e-5, 1e-4, 1e-3
_FEW_EPOCHS, _MANY_EPOCHS = 3, 10
_SMALL_SHARE, _TEST_RUN = 0.2, 1000  # of the data; samples
_LEARNED = 0.1  # nats per token: of a loss below this, little gradient is left
_BATCH_OF_MEMORY = ((6.0, 2), (12.0, 8), (24.0, 16))  # GPUs below so many GiB → largest advised batch


def _rate_slow(history: History, options: Options) -> Evidence | None:
    rate = number(options, "learning_rate")
    if rate is None or rate > _RATE_SLOW * (1 + 1e-9):
        return None
    return Evidence(
        f"learning_rate is {rate:g}; {_RATE_USUAL:g} is usual, and {_RATE_LORA:g} with adapters. At {_RATE_SLOW:g} "
        "hardly anything is learned."
    )


def _rate_diverges(history: History, options: Options) -> Evidence | None:
    rate = number(options, "learning_rate")
    if rate is None or rate < _RATE_DIVERGES * (1 - 1e-9) or is_toy(options):
        return None
    return Evidence(
        f"learning_rate is {rate:g}; {_RATE_USUAL:g} is usual, and {_RATE_LORA:g} with adapters. At "
        f"{_RATE_DIVERGES:g} training diverges."
    )


def _few_epochs(history: History, options: Options) -> Evidence | None:
    epochs = number(options, "epochs")
    if epochs is None or epochs >= _FEW_EPOCHS or is_toy(options):
        return None
    return Evidence(f"epochs is {epochs:g}; begin with {_FEW_EPOCHS}: after one or two a model is often not done.")


def _many_epochs(history: History, options: Options) -> Evidence | None:
    epochs = number(options, "epochs")
    if epochs is None or epochs <= _MANY_EPOCHS:
        return None
    return Evidence(f"epochs is {epochs:g}; above {_MANY_EPOCHS} the examples are learned by heart.")


def _part_of_the_data(history: History, options: Options) -> Evidence | None:
    used, there = number(options, "samples"), number(options, "samples_available")
    if used is None or not there or used / there >= _SMALL_SHARE:
        return None
    return Evidence(
        f"{used:,.0f} of {there:,.0f} samples are used, {used / there:.2%}: enough to see that everything works. That "
        "little is learned from them is to be expected."
    )


def _few_samples(history: History, options: Options) -> Evidence | None:
    used = number(options, "samples")
    if used is None or used >= 100 or is_toy(options):
        return None
    return Evidence(f"There are {used:,.0f} samples; even a trial takes 100 to {_TEST_RUN:,}.")


def _batch_for_memory(options: Options) -> tuple[float, float, int] | None:
    """Return batch size, the GPU's memory (GiB) and the largest advised batch size, where it is exceeded."""
    batch, memory = number(options, "batch_size"), number(options, "device_memory")
    if batch is None or memory is None or is_toy(options):
        return None
    most = next((largest for limit, largest in _BATCH_OF_MEMORY if memory < limit), None)
    return None if most is None or batch <= most else (batch, memory, most)


def _large_batch(history: History, options: Options) -> Evidence | None:
    found = _batch_for_memory(options)
    if found is None:
        return None
    return Evidence(f"batch_size is {found[0]:g} on a GPU of {found[1]:.0f} GiB, where at most {found[2]} is advised.")


def _fitting_batch(options: Options) -> Change | None:
    found = _batch_for_memory(options)
    return None if found is None else Change("batch_size", int(found[0]), found[2])


def _rank_and_alpha(history: History, options: Options) -> Evidence | None:
    rank, alpha = number(options, "lora_rank"), number(options, "lora_alpha")
    if not options.get("use_lora") or rank is None or alpha is None:
        return None
    if not 4 <= rank <= 64:
        return Evidence(f"lora_rank is {rank:g}; 4 to 8 is usual, 16 to 32 for hard tasks, 64 for large models.")
    if alpha != 2 * rank:
        return Evidence(f"lora_alpha is {alpha:g}, which scales the update by {alpha / rank:g}; 2 is usual.")
    return None


def _twice_the_rank(options: Options) -> Change | None:
    rank, alpha = number(options, "lora_rank"), number(options, "lora_alpha")
    fits = rank is None or alpha is None or alpha == 2 * rank
    return None if fits else Change("lora_alpha", options["lora_alpha"], 2 * int(rank or 0))


def _float32_on_a_gpu(history: History, options: Options) -> Evidence | None:
    if number(options, "device_memory") is None or options.get("dtype") != "float32" or is_toy(options):
        return None
    return Evidence("dtype is float32 on a GPU, which computes several times as fast in bfloat16.")


def _half_batch(options: Options) -> Change | None:
    batch = number(options, "batch_size")
    return None if batch is None or batch < 2 else Change("batch_size", int(batch), int(batch // 2))


def _twice_the_passes(options: Options) -> Change | None:
    batch, passes = number(options, "batch_size"), number(options, "gradient_accumulation")
    if batch is None or passes is None or batch < 2:
        return None
    return Change("gradient_accumulation", int(passes), int(2 * passes))


def _grad_explodes(history: History, options: Options) -> Evidence | None:
    norm = history.recent("grad_norm")
    if norm is None or norm <= GRAD_HIGH:
        return None
    return Evidence(f"The gradient's norm is {norm:.3g}; 0.1 to 10 is healthy, above {GRAD_HIGH:g} it explodes.", norm)


def _grad_vanishes(history: History, options: Options) -> Evidence | None:
    norm, loss = history.recent("grad_norm"), history.recent("loss")
    if norm is None or loss is None or norm >= GRAD_LOW or loss < _LEARNED:
        return None
    return Evidence(
        f"The gradient's norm is {norm:.2g} at a loss of {loss:.3g} (means of {SHORT} steps); 0.1 to 10 is healthy, "
        f"below {GRAD_LOW} it vanishes."
    )


SFT_ADVICE: tuple[Rule, ...] = (
    Rule(
        "sft_out_of_memory",
        Severity.SERIOUS,
        "the run ends with an out-of-memory error",
        "Activations grow with the tokens of a forward pass, rows × length.",
        "Lower `batch_size` and raise `gradient_accumulation` by as much, which changes no result; lower `max_length`; "
        "turn on `gradient_checkpointing`, bfloat16 as `dtype`, and `use_lora`; or take a smaller model.",
        None,
        (_half_batch, _twice_the_passes, CHECKPOINTING, BF16),
        errors=("out of memory", "outofmemory", "memoryerror", "can't allocate memory", "cannot allocate memory"),
    ),
    Rule(
        "sft_rate_diverges",
        Severity.SERIOUS,
        f"`learning_rate` of {_RATE_DIVERGES:g} or more",
        "A pretrained model forgets what it knew at such steps.",
        f"Lower `learning_rate` to {_RATE_USUAL:g}, or {_RATE_LORA:g} with adapters.",
        _rate_diverges,
        (lambda o: Change("learning_rate", o["learning_rate"], _RATE_LORA if o.get("use_lora") else _RATE_USUAL),),
    ),
    Rule(
        "sft_rate_slow",
        Severity.WARNING,
        f"`learning_rate` of {_RATE_SLOW:g} or less",
        "Steps so small move nothing within a usual run.",
        "Raise `learning_rate`.",
        _rate_slow,
        (RAISE_RATE,),
    ),
    Rule(
        "sft_many_epochs",
        Severity.WARNING,
        f"`epochs` above {_MANY_EPOCHS}",
        "The model sees each example so often that it can recite it.",
        "Lower `epochs`, or hold out `eval_samples` and keep the checkpoint of the lowest eval_loss; `weight_decay` "
        "and more data help too.",
        _many_epochs,
        (lambda o: Change("epochs", o["epochs"], 3.0),),
    ),
    Rule(
        "sft_large_batch",
        Severity.WARNING,
        "`batch_size` above 2 on a GPU of 4 GB, 8 on one of 8 GB, 16 on one of 16 GB",
        "Activations of so many rows may not fit.",
        "Lower `batch_size`, and raise `gradient_accumulation` by as much: the steps stay the same.",
        _large_batch,
        (_fitting_batch,),
    ),
    Rule(
        "sft_few_samples",
        Severity.WARNING,
        "fewer than 100 samples",
        "A model learns their wording, not how to solve such tasks.",
        "Raise `max_samples`, or use more data.",
        _few_samples,
    ),
    Rule(
        "sft_part_of_the_data",
        Severity.NOTE,
        f"less than {_SMALL_SHARE:.0%} of the data are used",
        "`max_samples` is set for a trial.",
        "Unset `max_samples` for a model that is to be used.",
        _part_of_the_data,
    ),
    Rule(
        "sft_few_epochs",
        Severity.NOTE,
        f"`epochs` below {_FEW_EPOCHS}",
        "The loss usually goes on falling in the second and third pass.",
        "Raise `epochs` if the loss is still falling at the end.",
        _few_epochs,
    ),
    Rule(
        "sft_adapters",
        Severity.NOTE,
        "with `use_lora`, `lora_rank` outside of 4 to 64, or `lora_alpha` that is not twice the rank",
        "Adapters of lower rank can hold little, of higher rank cost nearly as much as all weights; α/r scales them.",
        "Set `lora_rank` to 8 or 16 and `lora_alpha` to twice that.",
        _rank_and_alpha,
        (_twice_the_rank,),
    ),
    Rule(
        "sft_float32",
        Severity.NOTE,
        "`dtype` float32 on a GPU",
        "Training is slow.",
        "Set `dtype` to bfloat16: weights that are trained stay float32. A larger `batch_size`, `packing` and a larger "
        "`log_every` help too.",
        _float32_on_a_gpu,
        (BF16,),
    ),
)
"""On options of supervised fine-tuning; the first rule speaks when a run breaks."""


SFT_GRADIENTS: tuple[Rule, ...] = (
    Rule(
        "sft_grad_explodes",
        Severity.SERIOUS,
        f"gradient norm above {GRAD_HIGH:g}",
        "Rows that the model finds next to impossible, or steps that have led it astray.",
        "Lower `learning_rate`, and look at the rows: the wrong template shows here first.",
        _grad_explodes,
        (LOWER_RATE, LOWER_GRAD_NORM),
    ),
    Rule(
        "sft_grad_vanishes",
        Severity.WARNING,
        f"gradient norm below {GRAD_LOW}, though the loss is above {_LEARNED}",
        "Little reaches the weights: few of them are trained, or few tokens.",
        "Check `use_lora`, `lora_rank` and `lora_targets`, and how many tokens of the rows are trained; the run says "
        "both at its start.",
        _grad_vanishes,
        (RAISE_RATE,),
    ),
)
"""On gradients, while a run goes on."""


def sft_advice_table() -> str:
    """Return all rules as a Markdown table."""
    lines = ["| rule | severity | speaks when | usual cause | what to do |", "|---|---|---|---|---|"]
    for r in (*SFT_ADVICE, *SFT_GRADIENTS):
        lines.append(f"| `{r.name}` | {r.severity.value} | {r.symptom} | {r.cause} | {r.remedy} |")
    return "\n".join(lines) + "\n"
