"""What one process of a benchmark is asked to do; standard library only, both environments read it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Implementation = Literal["nemo", "nest_ssl"]
Kind = Literal["train", "first_step", "data", "save", "ablation", "watching"]
# where the time of a step goes
FEATURES, QUANTIZER, SUBSAMPLING, ENCODER, DECODER = "features", "quantizer", "sub-sampling", "encoder", "decoder, loss"
BACKWARD, OPTIMIZER, WAITING, REST = "backward", "optimiser", "waiting for data", "rest"
STAGES = (WAITING, FEATURES, QUANTIZER, SUBSAMPLING, ENCODER, DECODER, BACKWARD, OPTIMIZER, REST)
WARM_UP = 1  # steps that are not timed: the first one allocates what the others find


@dataclass(frozen=True)
class Job:
    """One run of one implementation."""

    kind: Kind
    config: str
    size: str  # a file of config/size
    overrides: tuple[str, ...]  # of the configuration: key=value
    steps: int  # timed ones, or for data the seconds to go on for
    seed: int
    stages: bool = False  # also tell where the time of a step goes
    matrix_peak: bool = False  # also measure what this process could do at best
