"""A loader of batches that lhotse puts together: of unknown number, perhaps without an end."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from nest_ssl.data.lhotse.cut_batches import CutBatches, CutStream
from nest_ssl.data.loading.random_states import RandomStates, get_random_states, set_random_states
from nest_ssl.data.loading.resumable import ResumableLoader


class CutLoader(ResumableLoader):
    """Of a `CutBatches` every epoch is an order of its own; a `CutStream` goes on where the trainer ends an epoch.

    At such an end torch would drop what loader processes have prepared of a stream; here nothing is lost, and a
    resumed stream need not know of epochs.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._latest: weakref.ref[Iterator[Any]] | None = None  # weak: a loader that holds itself would end late

    @property
    def endless(self) -> bool:
        """Whether an epoch ends only where the trainer ends it."""
        of: Any = self.sampler if isinstance(self.sampler, CutBatches) else self.dataset
        return bool(of.source.endless)

    @property
    def _is_endless_stream(self) -> bool:
        return isinstance(self.dataset, CutStream) and self.endless

    def _length(self) -> float:
        return float("inf") if self._is_endless_stream else super()._length()

    def state_dict(self) -> dict[str, Any]:
        if self.batches_per_epoch is not None:  # the trainer counts, and does not read one batch more
            self._before_last = None
        return super().state_dict()

    def _state(self) -> dict[str, Any]:
        """A stream has no epochs, but the trainer may begin one here."""
        of_trainer = self.batches_per_epoch if self._is_endless_stream else None
        between = bool(of_trainer and self._delivered and self._delivered % of_trainer == 0)
        return {**super()._state(), "between_epochs": between}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        super().load_state_dict(state_dict)
        state = self._resumed
        assert state is not None
        if isinstance(self.sampler, CutBatches) and state["delivered"] >= state["batches_per_epoch"]:
            self.sampler.set_epoch((state["epoch"] or 0) + 1)  # Lightning says so after loader processes have begun
        if state.get("between_epochs") and not self.num_workers:  # not in the state of another kind of loader
            state["random_states"] = _after_torch_iterator(state["random_states"])

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        latest = None if self._latest is None else self._latest()
        if self._is_endless_stream and latest is not None and self._resumed is None and not self._workers_are_gone():
            if not self.num_workers:
                _draw_as_torch_iterator()
            return latest
        batches = super().__iter__()
        self._latest = weakref.ref(batches)
        return batches

    def _workers_are_gone(self) -> bool:
        return self.num_workers > 0 and self._iterator is None

    def _deliver(self, batches: Iterator[Any], dropped: int, state: Mapping[str, Any] | None) -> Iterator[Any]:
        yield from super()._deliver(batches, dropped, state)
        if isinstance(self.sampler, CutBatches):
            self.sampler.set_epoch(self.sampler.epoch + 1)  # a checkpoint from here on begins with that one


def _draw_as_torch_iterator() -> None:
    """Torch makes an iterator in every epoch of NeMo, and draws a seed for it."""
    torch.empty((), dtype=torch.int64).random_()


def _after_torch_iterator(states: RandomStates) -> RandomStates:
    """The states of a process that has drawn so."""
    now = get_random_states()
    set_random_states(states)
    _draw_as_torch_iterator()
    after = get_random_states()
    set_random_states(now)
    return after
