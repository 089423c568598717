from __future__ import annotations

import torch

from trajgym.policies.draws import int64, pick, uniforms


def test_a_draw_depends_on_its_own_seed_and_counter_only() -> None:
    seeds = torch.tensor([int64(s) for s in (0, 1, -1, 2**63, 2**64 + 1)])
    counters = torch.tensor([0, 5, 7, 2, 5])
    together = uniforms(seeds, counters)
    alone = torch.cat([uniforms(s[None], c[None]) for s, c in zip(seeds, counters, strict=True)])
    assert torch.equal(together, alone)
    assert together[1] == together[4]  # seeds are taken modulo 2^64
    assert len(set(together.tolist())) == 4


def test_known_values() -> None:
    # SplitMix64 written out with Python's unbounded integers.
    def mix(z: int) -> int:
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        return z ^ (z >> 31)

    golden = 0x9E3779B97F4A7C15
    for seed, counter in [(0, 0), (3, 1), (123456789, 4000), (-17, 2)]:
        z = mix((mix((seed + golden) % 2**64) + counter * golden) % 2**64)
        drawn = uniforms(torch.tensor([int64(seed)]), torch.tensor([counter]))
        assert drawn.item() == (z >> 11) / 2**53


def test_draws_are_uniform_along_seeds_and_along_counters() -> None:
    n, bins = 20_000, 20
    for seeds, counters in [(torch.arange(n), torch.zeros(n)), (torch.zeros(n), torch.arange(n))]:
        drawn = uniforms(seeds.long(), counters.long())
        assert drawn.min() >= 0.0
        assert drawn.max() < 1.0
        counts = torch.histc(drawn, bins=bins, min=0, max=1)
        chi_square = ((counts - n / bins) ** 2 / (n / bins)).sum()
        assert chi_square < 43.8  # 99.9 % of the distribution with 19 degrees of freedom
        # Neighbours are unrelated: the serial correlation of n independent numbers is about 1/sqrt(n).
        assert abs(torch.corrcoef(torch.stack([drawn[:-1], drawn[1:]]))[0, 1]) < 4 / n**0.5


def test_pick_inverts_the_cumulative_distribution() -> None:
    logprobs = torch.tensor([0.2, 0.0, 0.5, 0.3]).log()
    uniform = torch.tensor([0.0, 0.1999, 0.2001, 0.6999, 0.7001, 1 - 2**-53], dtype=torch.float64)
    assert pick(logprobs.expand(6, -1), uniform).tolist() == [0, 0, 2, 2, 3, 3]


def test_pick_never_takes_an_impossible_token() -> None:
    logprobs = torch.tensor([float("-inf"), 0.0, float("-inf")])
    uniform = torch.tensor([0.0, 0.5, 1 - 2**-53], dtype=torch.float64)
    assert pick(logprobs.expand(3, -1), uniform).tolist() == [1, 1, 1]
