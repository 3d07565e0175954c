"""Save and restore the states of all random generators of a process."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

RandomStates = dict[str, Any]  # numbers and bytes: cheap to send between processes, and no code in a checkpoint


def get_random_states() -> RandomStates:
    """Return the states of Python, NumPy and torch, and of the GPU if this process uses one."""
    version, words, gauss_next = random.getstate()
    states: RandomStates = {
        "python": [version, np.array(words, dtype=np.uint32).tobytes(), gauss_next],
        "numpy": numpy_state(),
        "torch": torch_state(),
        "torch_seed": torch.initial_seed(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state().numpy().tobytes()
    return states


def numpy_state(generator: np.random.RandomState | None = None) -> list[Any]:
    """Return the state of a `RandomState`, by default of NumPy's global generator."""
    get_state = np.random.get_state if generator is None else generator.get_state
    name, keys, position, has_gauss, cached = get_state(legacy=True)
    return [name, np.asarray(keys).tobytes(), position, has_gauss, cached]


def set_numpy_state(state: Sequence[Any], generator: np.random.RandomState | None = None) -> None:
    name, keys, position, has_gauss, cached = state
    set_state = np.random.set_state if generator is None else generator.set_state
    set_state((name, np.frombuffer(keys, dtype=np.uint32), position, has_gauss, cached))


def torch_state() -> bytes:
    """Return the state of torch's generator for the CPU."""
    return torch.get_rng_state().numpy().tobytes()


def set_torch_state(state: bytes) -> None:
    torch.set_rng_state(_tensor(state))


def set_random_states(states: Mapping[str, Any]) -> None:
    """Restore the states of all generators."""
    version, words, gauss_next = states["python"]
    random.setstate((version, tuple(np.frombuffer(words, dtype=np.uint32).tolist()), gauss_next))
    set_numpy_state(states["numpy"])
    torch.default_generator.manual_seed(states["torch_seed"])
    set_torch_state(states["torch"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(_tensor(states["cuda"]))


def seed_of_run() -> int:
    """Return the seed that `seed_everything` was given, else 0: the same on every rank, as in Lightning's samplers."""
    return int(os.environ.get("PL_GLOBAL_SEED", 0))


def generator_of_its_own() -> torch.Generator:
    """Return a generator with the seed of the run; drawing from it does not change the generator of the training."""
    return torch.Generator().manual_seed(seed_of_run())


def seed_process(seed: int) -> None:
    """Seed Python, NumPy and torch."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - NeMo's stream
    torch.manual_seed(seed)


def _tensor(state: bytes) -> Tensor:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)
