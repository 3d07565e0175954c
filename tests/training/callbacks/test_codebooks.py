from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nest_ssl.training.callbacks.monitor import count_codes, coverage, perplexity


@given(
    books=st.integers(1, 3),
    codes=st.integers(1, 12),
    shape=st.sampled_from([(7,), (2, 5), (3, 0), (0,)]),
    batches=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_counts_and_statistics_equal_those_of_a_plain_loop(
    books: int, codes: int, shape: tuple[int, ...], batches: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    counts = torch.zeros(books, codes, dtype=torch.int64)
    naive: list[Counter[int]] = [Counter() for _ in range(books)]
    for _ in range(batches):
        tokens = torch.randint(codes, (*shape, books), generator=generator)
        counted = torch.rand(shape, generator=generator) < 0.6
        count_codes(counts, tokens, counted)
        for row, used in zip(tokens.view(-1, books).tolist(), counted.flatten().tolist(), strict=True):
            for book, token in enumerate(row):
                naive[book][token] += used
    for book, counter in enumerate(naive):
        assert counts[book].tolist() == [counter[code] for code in range(codes)]
        used_codes = [count for count in counter.values() if count]
        assert coverage(counts)[book] == pytest.approx(len(used_codes) / codes)
        total = sum(used_codes)
        entropy = -sum(count / total * math.log(count / total) for count in used_codes)
        assert perplexity(counts)[book] == pytest.approx(math.exp(entropy) if total else 0)


def test_equally_frequent_codes_all_count_as_used() -> None:
    assert perplexity(torch.full((1, 8192), 3)) == pytest.approx(8192)
    assert perplexity(torch.tensor([[0, 5, 0]])) == pytest.approx(1)


def test_counts_of_processes_are_added() -> None:
    tokens = torch.randint(10, (20, 2), generator=torch.Generator().manual_seed(0))
    everything, parts = torch.zeros(2, 10, dtype=torch.int64), [torch.zeros(2, 10, dtype=torch.int64) for _ in "ab"]
    count_codes(everything, tokens, torch.ones(20, dtype=torch.bool))
    for part, rows in zip(parts, tokens.split(12), strict=True):
        count_codes(part, rows, torch.ones(len(rows), dtype=torch.bool))
    assert torch.equal(parts[0] + parts[1], everything)
