# ruff: noqa: NPY002 - NumPy's global generator is what is tested
from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import fields
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from torch.utils.data import DataLoader

from nest_ssl.data.concat import ConcatDataset, Sampling


class Numbers:
    """A dataset whose items name the dataset and the index."""

    def __init__(self, name: str, size: int) -> None:
        self.name, self.size = name, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> str:
        return f"{self.name}{index}"

    def collate_fn(self, items: Sequence[str]) -> list[str]:
        return list(items)


def concat(*sizes: int, **options: Any) -> ConcatDataset:
    sampling = Sampling(**{field.name: options.pop(field.name) for field in fields(Sampling) if field.name in options})
    datasets = [Numbers(chr(ord("a") + n), size) for n, size in enumerate(sizes)]
    return ConcatDataset(datasets, sampling, **options)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _seed() -> None:
    np.random.seed(0)


def test_round_robin_takes_turns_and_starts_small_sets_over() -> None:
    dataset = concat(4, 2, technique="round-robin", shuffle=False)
    # the turn in which `b` is found to be exhausted passes to the next dataset, as in NeMo
    assert list(dataset) == ["a0", "b0", "a1", "b1", "a2", "a3"]
    assert len(dataset) == 6


def test_shuffling_covers_every_item_once_a_pass() -> None:
    items: list[Any] = list(concat(50, technique="round-robin"))
    assert items != sorted(items)
    assert Counter(items) == Counter(f"a{n}" for n in range(50))


@pytest.mark.parametrize(
    ("options", "share"),
    [
        ({"technique": "temperature", "temperature": 1}, 0.9),
        ({"technique": "temperature", "temperature": 2}, 0.75),
        ({"technique": "temperature", "temperature": 1e9}, 0.5),
        ({"technique": "random"}, 0.5),
        ({"technique": "random", "probabilities": [0.2, 0.8]}, 0.2),
    ],
)
def test_shares_follow_the_technique(options: dict[str, Any], share: float) -> None:
    items: list[Any] = list(concat(900, 100, seed=3, scale=3, **options))
    assert len(items) == 3000
    assert sum(item.startswith("a") for item in items) / 3000 == pytest.approx(share, abs=0.03)


def test_choices_equal_those_of_a_seeded_numpy_generator() -> None:
    generator = np.random.RandomState(5)
    expected = "".join(generator.choice(["a", "b"], p=[0.3, 0.7]) for _ in range(20))
    dataset = concat(40, 40, technique="random", probabilities=[0.3, 0.7], seed=5)
    assert "".join(str(item)[0] for item in dataset)[:20] == expected


def test_without_a_seed_a_run_can_be_repeated() -> None:
    dataset = concat(20, 20)
    first = list(dataset)
    np.random.seed(0)
    assert list(dataset) == first


def test_ranks_share_every_dataset_without_overlap() -> None:
    parts: list[Any] = [
        list(concat(10, 5, technique="round-robin", shuffle=False, global_rank=rank, world_size=3)) for rank in range(3)
    ]
    assert [len(part) for part in parts] == [4, 4, 4]  # 10 // 3 + 5 // 3
    assert not set(parts[0]) & set(parts[1])
    assert parts[2][:3] == ["a6", "b2", "a7"]


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_share_an_epoch(workers: int) -> None:
    dataset = concat(7, 4, technique="round-robin", shuffle=False)
    loader: DataLoader[Any] = DataLoader(dataset, batch_size=None, num_workers=workers)
    first, second = list(loader), list(loader)
    assert len(first) == 11
    assert first == second


def test_every_epoch_is_complete() -> None:
    """NeMo divides the part of a rank again in the second epoch."""
    dataset = concat(12, technique="round-robin", shuffle=False, world_size=2)
    assert list(dataset) == list(dataset) == [f"a{n}" for n in range(6)]


def test_a_worker_without_data_ends() -> None:
    assert list(concat(1, 1, global_rank=0, world_size=2)) == []
    info = type("Info", (), {"id": 1, "num_workers": 2})
    options: dict[str, Any] = {"technique": "random", "probabilities": [1.0, 0.0]}
    with patch(
        "nest_ssl.data.loading.worker_state.get_worker_info", return_value=info
    ):  # its share of the first dataset is empty
        assert list(concat(1, 9, **options)) == []
