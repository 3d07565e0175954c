"""A loader that stops anywhere and resumes in a new process yields the same batches as without the stop."""

from __future__ import annotations

import io
import multiprocessing
import random
from collections.abc import Iterator
from itertools import islice
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, DistributedSampler, get_worker_info

from nest_ssl.data.concat import ConcatDataset, Sampling, SamplingTechnique
from nest_ssl.data.loading.buckets import DurationBatches, ItemLists
from nest_ssl.data.loading.elastic_resume import RESTART
from nest_ssl.data.loading.random_states import get_random_states, set_random_states
from nest_ssl.data.loading.resumable import ResumableLoader
from nest_ssl.data.loading.worker_state import Position, Stream

ITEMS, BATCH = 23, 3


class Dice(Dataset[float]):
    """A dataset whose items are draws from all random generators, so that any difference in their states is visible."""

    def __init__(self, items: int = ITEMS) -> None:
        self.items = items

    def __len__(self) -> int:
        return self.items

    def __getitem__(self, index: int) -> float:
        return index + random.random() + np.random.rand() + float(torch.rand(()))  # noqa: NPY002


class UnevenStream(Stream):
    """A stream in which the first of two workers has few items."""

    def __init__(self) -> None:
        self.dice = Dice()
        self.used = self.start = 0

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        first, last = (0, 15) if worker is None else ((0, 2), (2, 15))[worker.id]
        self.used, self.start = self.start, 0
        for index in range(first + self.used, last):
            self.used += 1
            yield self.dice[index]

    def position(self) -> Position:
        return {"used": self.used}

    def start_from(self, position: Position) -> None:
        self.start = position["used"]

    def __len__(self) -> int:
        return 15


class EndlessLooking(UnevenStream):
    """`UnevenStream` without a length."""

    def __len__(self) -> int:
        raise TypeError


def make(kind: str, num_workers: int, persistent: bool) -> ResumableLoader:
    options: dict[str, Any] = {"num_workers": num_workers, "collate_fn": list}
    if num_workers:
        options["persistent_workers"] = persistent
    if kind == "by duration":
        sampler = DurationBatches(np.arange(1.0, ITEMS + 1), batch_duration=40, num_buckets=4, seed=5)
        return ResumableLoader(ItemLists(Dice()), batch_size=None, sampler=sampler, **options)
    if kind == "uneven stream":
        loader = ResumableLoader(UnevenStream(), batch_size=BATCH, **options)
        loader.batches_per_epoch = 6 if num_workers else 5  # 1 + 5
        return loader
    if kind in get_args(SamplingTechnique):
        parts: Any = [Dice(9), Dice(4), Dice(10)]
        return ResumableLoader(ConcatDataset(parts, Sampling(kind)), batch_size=BATCH, **options)
    return ResumableLoader(Dice(), batch_size=BATCH, shuffle=kind == "shuffled", **options)


def train(loader: ResumableLoader, epochs: range, stop_after: int | None = None) -> Iterator[Any]:
    """Return each batch with a draw by the model; like Lightning, continue a resumed epoch."""
    count = 0
    for epoch in epochs:
        if hasattr(loader.sampler, "set_epoch"):
            loader.sampler.set_epoch(epoch)
        for batch in loader:
            yield batch, float(torch.rand(())), random.random()
            count += 1
            if count == stop_after:
                return


def train_ahead(loader: ResumableLoader, epochs: range, stop_after: int | None = None) -> Iterator[Any]:
    """Request the next batch before the current one is used, as Lightning does without a length."""
    count = 0
    for _ in epochs:
        batches = iter(loader)
        following = next(batches, None)
        while following is not None:
            batch, following = following, next(batches, None)
            yield batch, float(torch.rand(())), random.random()
            count += 1
            if count == stop_after:
                return


@pytest.mark.parametrize("num_workers", [0, 2])
def test_without_a_length_the_prefetched_batch_is_made_again(num_workers: int) -> None:
    def make_unsized() -> ResumableLoader:
        return ResumableLoader(EndlessLooking(), batch_size=BATCH, num_workers=num_workers, collate_fn=list)

    seed(1)
    uninterrupted = list(train_ahead(make_unsized(), range(3)))
    in_epoch = len(uninterrupted) // 3
    for stop in (1, 4, in_epoch, in_epoch + 2) if num_workers else range(1, 3 * in_epoch):
        seed(1)
        loader = make_unsized()
        before = list(train_ahead(loader, range(3), stop))
        state = loader.state_dict()
        seed(2)
        resumed = make_unsized()
        resumed.load_state_dict(state)
        after = list(train_ahead(resumed, range(stop // in_epoch, 3)))
        assert before + after == uninterrupted, stop


def seed(value: int) -> None:
    random.seed(value)
    np.random.seed(value)  # noqa: NPY002
    torch.manual_seed(value)


@pytest.mark.parametrize(
    ("kind", "num_workers", "persistent"),
    [
        ("in order", 0, False),
        ("shuffled", 0, False),
        ("by duration", 0, False),
        ("shuffled", 2, False),
        ("by duration", 2, False),
        ("shuffled", 2, True),
        ("temperature", 0, False),
        ("round-robin", 0, False),
        ("random", 2, True),
        ("round-robin", 2, False),
        ("uneven stream", 0, False),
        ("uneven stream", 2, False),
    ],
)
def test_a_run_that_stops_anywhere_resumes_bit_for_bit(kind: str, num_workers: int, persistent: bool) -> None:
    seed(1)
    loader = make(kind, num_workers, persistent)
    in_epoch = loader.batches_per_epoch or len(loader)
    uninterrupted = list(train(loader, range(3)))
    stops = [1, 4, 5, in_epoch, in_epoch + 3] if num_workers else [*range(1, 3 * in_epoch)]
    if num_workers and multiprocessing.get_start_method() != "fork":  # every worker takes seconds to start
        stops = [4, in_epoch + 3]
    for stop in stops:
        seed(1)
        loader = make(kind, num_workers, persistent)
        before = list(train(loader, range(3), stop))
        file = io.BytesIO()
        torch.save(loader.state_dict(), file)
        seed(2)  # any state of the new process
        file.seek(0)
        resumed = make(kind, num_workers, persistent)
        resumed.load_state_dict(torch.load(file, weights_only=True))
        iter(resumed)  # Lightning calls it more than once
        torch.rand(5)
        after = list(train(resumed, range(stop // in_epoch, 3)))
        assert before + after == uninterrupted, stop


def test_resuming_twice_gives_the_same_batches_as_once() -> None:
    seed(1)
    uninterrupted = list(train(make("shuffled", 0, False), range(2)))
    seed(1)
    results, state, done = [], None, 0
    for stop in (2, 3, 1, None):
        loader = make("shuffled", 0, False)
        if state is not None:
            loader.load_state_dict(state)
        part = list(train(loader, range(done // len(loader), 2), stop))
        results += part
        done += len(part)
        state = loader.state_dict()
        seed(done)
    assert results == uninterrupted


def test_a_trainer_that_uses_part_of_an_epoch_starts_the_next_one() -> None:
    seed(1)
    loader = make("shuffled", 0, False)
    loader.batches_per_epoch = 4
    batches = iter(loader)
    for _ in range(4):
        next(batches)
    state = loader.state_dict()
    expected = list(loader)
    resumed = make("shuffled", 0, False)
    resumed.load_state_dict(state)
    assert list(resumed) == expected
    assert len(expected) == len(loader)


@pytest.mark.parametrize(("num_workers", "persistent"), [(0, False), (1, False), (2, True)])
def test_epochs_of_one_batch_resume_bit_for_bit(num_workers: int, persistent: bool) -> None:
    def train_one_each(loader: ResumableLoader, epochs: int) -> list[Any]:
        loader.batches_per_epoch = 1
        return [(next(iter(loader)), float(torch.rand(()))) for _ in range(epochs)]

    def stop() -> None:
        raise InterruptedError

    seed(1)
    uninterrupted = train_one_each(make("shuffled", num_workers, persistent), 6)
    seed(1)
    loader = make("shuffled", num_workers, persistent)
    before = train_one_each(loader, 3)
    at_the_end = loader.state_dict()
    loader.between_batches = stop
    with pytest.raises(InterruptedError):
        iter(loader)
    for state in (at_the_end, loader.state_dict()):
        seed(2)
        resumed = make("shuffled", num_workers, persistent)
        resumed.load_state_dict(state)
        assert before + train_one_each(resumed, 3) == uninterrupted


def test_another_number_of_workers_resumes_at_the_same_position(caplog: pytest.LogCaptureFixture) -> None:
    seed(1)
    loader = make("in order", 0, False)
    list(train(loader, range(1), 4))
    resumed = make("in order", 2, False)
    resumed.load_state_dict(loader.state_dict())
    first = next(iter(resumed))[0]
    assert 4 * BATCH <= first < 4 * BATCH + 3  # each item has three draws
    assert "continues after the same share of its epoch, but with other random numbers" in caplog.text


class Numbers(Dataset[int]):
    """A dataset whose items are their indices."""

    def __len__(self) -> int:
        return 17

    def __getitem__(self, index: Any) -> Any:
        return index


def of_process(kind: str, rank: int, count: int, batch_size: int = 2) -> ResumableLoader:
    """Return the loader of one of several ranks, as Lightning makes it."""
    data: Any = Numbers()
    if kind == "by duration":
        sampler: Any = DurationBatches(
            np.arange(1.0, 18), batch_duration=40, num_buckets=3, seed=5, rank=rank, num_replicas=count
        )
        return ResumableLoader(data, batch_size=None, sampler=sampler, collate_fn=list)
    options: dict[str, Any] = {"shuffle": kind == "shuffled"}
    if count > 1:
        options = {"sampler": DistributedSampler(data, count, rank, shuffle=kind == "shuffled", seed=3)}
    return ResumableLoader(data, batch_size=batch_size, collate_fn=list, **options)


def load(loader: ResumableLoader, state: Any, rank: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nest_ssl.data.loading.resumable._rank_and_world_size", lambda: (rank, count))
    loader.load_state_dict(state)


@pytest.mark.parametrize("kind", ["in order", "shuffled", "by duration"])
@pytest.mark.parametrize("counts", [(2, 1), (1, 2), (3, 2), (2, 3), (2, 1, 2)])
def test_another_number_of_processes_shares_the_rest_of_an_epoch(
    kind: str, counts: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    seed(1)
    seen: list[int] = []
    state, repeated = None, 0
    for number, count in enumerate(counts):
        last = number == len(counts) - 1
        loaders = [of_process(kind, rank, count) for rank in range(count)]
        lengths = []
        for rank, loader in enumerate(loaders):
            if state is not None:
                load(loader, state, rank, count, monkeypatch)
            batches = list(islice(loader, None if last else 1))
            lengths.append(len(batches))
            seen += [item for batch in batches for item in batch]
        state = {"processes": [loader.state_dict()["processes"][0] for loader in loaders]}
        repeated += count - 1
        assert len(set(lengths)) == 1, "a process would wait for another for ever"
    assert set(seen) == set(range(17))
    most = repeated if kind != "by duration" else repeated * max(len(batch) for batch in of_process(kind, 0, 1))
    assert len(seen) - 17 <= most


def test_an_elastically_resumed_epoch_can_be_resumed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    seed(1)
    first = [of_process("shuffled", rank, 2) for rank in (0, 1)]
    before = {item for loader in first for batch in islice(loader, 2) for item in batch}
    state = {"processes": [loader.state_dict()["processes"][0] for loader in first]}
    second = of_process("shuffled", 0, 1)
    load(second, state, 0, 1, monkeypatch)
    assert second.resumed_at == len(second) - 5  # nine are left
    expected = list(second)
    again = of_process("shuffled", 0, 1)
    load(again, state, 0, 1, monkeypatch)
    assert list(islice(again, 2)) == expected[:2]
    third = of_process("shuffled", 0, 1)
    third.load_state_dict(again.state_dict())
    assert list(third) == expected[2:]
    assert before | {item for batch in expected for item in batch} == set(range(17))
    assert len(list(third)) == len(third)


def test_another_batch_size_continues_with_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    seed(1)
    loader = of_process("shuffled", 0, 1, batch_size=4)
    before = [item for batch in islice(loader, 2) for item in batch]
    resumed = of_process("shuffled", 0, 1, batch_size=3)
    resumed.load_state_dict(loader.state_dict())
    assert sorted(before + [item for batch in resumed for item in batch]) == list(range(17))
    assert "resuming with batch_size 3 instead of 4" in caplog.text


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("items", [17, 40])
def test_with_other_data_an_epoch_restarts(num_workers: int, items: int) -> None:
    """The position in the old data would skip some utterances and repeat others."""
    torch.manual_seed(1)
    before = ResumableLoader(range(ITEMS), batch_size=BATCH, shuffle=True, collate_fn=list, num_workers=num_workers)
    batches = iter(before)
    for _ in range(3):
        next(batches)
    state = before.state_dict()
    for process in state["processes"]:
        process[RESTART] = True
    after = ResumableLoader(range(items), batch_size=BATCH, shuffle=True, collate_fn=list, num_workers=num_workers)
    after.load_state_dict(state)
    assert after.resumed_at == 0
    assert sorted(item for batch in after for item in batch) == list(range(items))


def test_with_other_data_a_complete_epoch_is_not_repeated() -> None:
    before = ResumableLoader(range(ITEMS), batch_size=BATCH, collate_fn=list)
    list(before)
    state = before.state_dict()
    state["processes"][0][RESTART] = True
    after = ResumableLoader(range(5), batch_size=BATCH, collate_fn=list)
    after.load_state_dict(state)
    assert [item for batch in after for item in batch] == list(range(5))


def test_a_stream_restarts_its_epoch_with_another_number_of_workers(caplog: pytest.LogCaptureFixture) -> None:
    loader = make("uneven stream", 0, False)
    list(train(loader, range(1), 2))
    resumed = make("uneven stream", 2, False)
    resumed.load_state_dict(loader.state_dict())
    assert len(list(resumed)) == 6
    assert "from the start of its epoch" in caplog.text


def test_random_states_are_restored() -> None:
    random.gauss(0, 1)
    np.random.standard_normal()  # noqa: NPY002 - it keeps a second number for the next call
    states = get_random_states()

    def draws() -> list[float]:
        return [random.random(), random.gauss(0, 1), float(np.random.randn()), float(torch.rand(()))]  # noqa: NPY002

    expected = draws()
    set_random_states(states)
    assert draws() == expected
    assert torch.initial_seed() == states["torch_seed"]
