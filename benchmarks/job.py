"""The job of one benchmark process; only the standard library, because both environments import it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Implementation = Literal["nemo", "nest_ssl"]
Kind = Literal["train", "first_step", "data", "save", "ablation", "watching"]
# where the time of a step goes
FEATURES, QUANTIZER, SUBSAMPLING, ENCODER, DECODER = "features", "quantizer", "sub-sampling", "encoder", "decoder, loss"
BACKWARD, OPTIMIZER, WAITING, REST = "backward", "optimizer", "waiting for data", "rest"
STAGES = (WAITING, FEATURES, QUANTIZER, SUBSAMPLING, ENCODER, DECODER, BACKWARD, OPTIMIZER, REST)
WARM_UP = 1  # untimed steps: the first one allocates memory that the others use


@dataclass(frozen=True)
class Job:
    """One run of one implementation."""

    kind: Kind
    config: str
    size: str  # a file of config/size
    overrides: tuple[str, ...]  # changes to the configuration: key=value
    steps: int  # timed steps; for `data`, seconds
    seed: int
    stages: bool = False  # also measure the stages of a step
    matrix_peak: bool = False  # also measure the peak speed of matrix products
