"""What every function of tokens refuses."""

from __future__ import annotations

import math

import pytest
import torch

from trajgym.errors import TrainingError
from trajgym.trainers.token_checks import check_finite, check_shapes


def test_good_inputs_pass() -> None:
    check_shapes(logp=torch.zeros(3), nothing=None, turns=torch.zeros(3, dtype=torch.long))
    check_finite("", logp=torch.zeros(3), nothing=None, turns=torch.zeros(3, dtype=torch.long))
    check_shapes(logp=torch.zeros(0))
    check_finite("", logp=torch.zeros(0))


@pytest.mark.parametrize("other", [torch.zeros(2), torch.zeros(3, 1), torch.zeros(1), torch.tensor(0.0)])
def test_what_would_broadcast_is_named(other: torch.Tensor) -> None:
    with pytest.raises(TrainingError, match="weights has shape"):
        check_shapes(logp=torch.zeros(3), weights=other)


def test_all_inputs_that_are_not_finite_are_named_with_their_counts() -> None:
    bad = torch.tensor([0.0, math.nan, -math.inf])
    with pytest.raises(TrainingError) as caught:
        check_finite("Do this.", logp=torch.zeros(3), old=bad, ref=bad[1:])
    assert str(caught.value) == "Not a finite number: old at 2 of 3 tokens, ref at 2 of 2 tokens. Do this."
