"""Every key of a configuration, declared once: its type, its default and its bounds in a dataclass for each node.

What a key means is said beside it in `words/*.yaml`, in English and Chinese. Keys of the classes that `_target_` names,
of optimizers and of Lightning's `Trainer` are declared by those classes' signatures and have only their words here.
"""

from nest_ssl.config.schema.data import DataSettings, LhotseSettings, LoaderSettings
from nest_ssl.config.schema.experiment import CheckpointSettings, EarlyStoppingSettings, ExperimentSettings
from nest_ssl.config.schema.kinds import TAR_FILES, WEIGHTED_PATHS, split_paths
from nest_ssl.config.schema.node import Node, check_values, keys_of, read, read_value, settings_of, wrong
from nest_ssl.config.schema.run import (
    DATA_SETS,
    ModelSettings,
    Numerics,
    OptimizerSettings,
    RunSettings,
    ScheduleSettings,
    WeightSource,
)

__all__ = [
    "DATA_SETS",
    "TAR_FILES",
    "WEIGHTED_PATHS",
    "CheckpointSettings",
    "DataSettings",
    "EarlyStoppingSettings",
    "ExperimentSettings",
    "LhotseSettings",
    "LoaderSettings",
    "ModelSettings",
    "Node",
    "Numerics",
    "OptimizerSettings",
    "RunSettings",
    "ScheduleSettings",
    "WeightSource",
    "check_values",
    "keys_of",
    "read",
    "read_value",
    "settings_of",
    "split_paths",
    "wrong",
]
