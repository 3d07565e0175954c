"""A loader of lhotse's batches, whose number is unknown and may be infinite."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from nest_ssl.data.lhotse.cut_batches import CutBatches, CutStream
from nest_ssl.data.loading.random_states import RandomStates, get_random_states, set_random_states
from nest_ssl.data.loading.resumable import ResumableLoader


class CutLoader(ResumableLoader):
    """A loader of a `CutBatches`, which reshuffles every epoch, or of a `CutStream`, which continues across epochs.

    When the trainer ends an epoch within a stream, torch would drop the batches that workers have prepared. Here they
    are kept, so that a resumed stream does not depend on epochs.
    """

    has_length = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._latest: weakref.ref[Iterator[Any]] | None = None  # weak: in a cycle of references, workers would end late

    @property
    def endless(self) -> bool:  # type: ignore[override]
        """Whether only the trainer ends an epoch."""
        of: Any = self.sampler if isinstance(self.sampler, CutBatches) else self.dataset
        return bool(of.source.endless)

    @property
    def _is_endless_stream(self) -> bool:
        return isinstance(self.dataset, CutStream) and self.endless

    def _length(self) -> float:
        return float("inf") if self._is_endless_stream else super()._length()

    def state_dict(self) -> dict[str, Any]:
        if self.batches_per_epoch is not None:  # the trainer counts batches, and requests no extra one
            self._before_last = None
        return super().state_dict()

    def _state(self) -> dict[str, Any]:
        """Return the state of this rank, with whether the trainer starts an epoch at this position of a stream."""
        of_trainer = self.batches_per_epoch if self._is_endless_stream else None
        between = bool(of_trainer and self._delivered and self._delivered % of_trainer == 0)
        return {**super()._state(), "between_epochs": between}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        super().load_state_dict(state_dict)
        state = self._resumed
        assert state is not None
        if isinstance(self.sampler, CutBatches) and state["delivered"] >= state["batches_per_epoch"]:
            self.sampler.set_epoch((state["epoch"] or 0) + 1)  # Lightning sets it only after workers have started
        if state.get("between_epochs") and not self.num_workers:  # absent from the state of another kind of loader
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

    def _deliver(self, batches: Iterator[Any], repeated: int, resumed: Mapping[str, Any] | None) -> Iterator[Any]:
        yield from super()._deliver(batches, repeated, resumed)
        if isinstance(self.sampler, CutBatches):
            self.sampler.set_epoch(self.sampler.epoch + 1)  # a checkpoint from now on starts in that epoch


def _draw_as_torch_iterator() -> None:
    """Draw the seed that torch draws for the iterator of every epoch, as in NeMo."""
    torch.empty((), dtype=torch.int64).random_()


def _after_torch_iterator(states: RandomStates) -> RandomStates:
    """Return these states after that draw."""
    now = get_random_states()
    set_random_states(states)
    _draw_as_torch_iterator()
    after = get_random_states()
    set_random_states(now)
    return after
