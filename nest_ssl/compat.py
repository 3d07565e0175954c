"""Every private name of another library that nest_ssl uses, in one place.

A library may change such a name in any release. Each has one function here, or one line in `OVERRIDDEN` or `FIELDS`,
and a test in tests/test_compat.py that says which one changed. Libraries are imported inside the functions: this module
loads none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.loggers import TensorBoardLogger
    from lightning.pytorch.strategies import ModelParallelStrategy
    from omegaconf import DictConfig
    from torch import Tensor
    from torch.distributed.device_mesh import DeviceMesh
    from torch.optim import Optimizer

# Private methods that our subclasses override, with their parameters: the library has to go on calling them.
OVERRIDDEN: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "lightning.pytorch.callbacks.ModelCheckpoint": {
        "_save_topk_checkpoint": ("trainer", "monitor_candidates"),
        "_save_last_checkpoint": ("trainer", "monitor_candidates"),
        "_save_checkpoint": ("trainer", "filepath"),
        "_should_remove_checkpoint": ("trainer", "previous", "current"),
    },
    "torch.utils.data.DataLoader": {"_get_iterator": ()},
    "torch.utils.data.dataloader._MultiProcessingDataLoaderIter": {"_try_get_data": ("timeout",)},
    "torch.utils.tensorboard.SummaryWriter": {"_get_file_writer": ()},
}
# Private fields of a library's class that our subclasses read or set on themselves.
FIELDS: Mapping[str, tuple[str, ...]] = {
    "lightning.pytorch.callbacks.ModelCheckpoint": ("_last_checkpoint_saved", "_last_global_step_saved"),
    "lightning.pytorch.loggers.TensorBoardLogger": ("_experiment",),
    "torch.utils.data.DataLoader": ("_iterator", "_index_sampler"),
}


def is_accumulating(trainer: Trainer) -> bool:
    """Return whether the current batch only adds to the gradients: Lightning says so nowhere else."""
    return trainer.fit_loop.epoch_loop._should_accumulate()


def device_mesh(module: LightningModule) -> DeviceMesh | None:
    """Return the mesh that weights are sharded over, or None: the public property raises without a mesh."""
    return module._device_mesh


def attached_trainer(module: LightningModule) -> Trainer | None:
    """Return the trainer that runs the module, or None: the public property raises without a trainer."""
    return module._trainer


def restore_loader_position(trainer: Trainer) -> None:
    """Give the loader its state from the checkpoint, which Lightning ignores at the beginning of an epoch."""
    loop = trainer.fit_loop
    if loop._combined_loader_states_to_load and loop._combined_loader is not None:
        loop._combined_loader._load_state_dicts(loop._combined_loader_states_to_load)
        loop._combined_loader_states_to_load = []
        iter(loop._data_fetcher)  # type: ignore[arg-type]  # it has begun already


def skips_saving(callback: ModelCheckpoint, trainer: Trainer) -> bool:
    """Return whether Lightning would write no checkpoint now, because this step has one or nothing is trained."""
    return callback._should_skip_saving_checkpoint(trainer)


def monitored_values(callback: ModelCheckpoint, trainer: Trainer) -> dict[str, Tensor]:
    """Return the values that name and rank a checkpoint, as Lightning gathers them: its writers take them."""
    return callback._monitor_candidates(trainer)


def shard_over_all_processes(strategy: ModelParallelStrategy) -> None:
    """Make the mesh span all processes: Lightning fixes its size before the number of processes is known."""
    strategy._data_parallel_size = strategy.num_nodes * strategy.num_processes


def writer_arguments(logger: TensorBoardLogger) -> dict[str, Any]:
    """Return what the user gave for TensorBoard's writer, so that our own writer receives it too."""
    return logger._kwargs


def unscales_by_itself(optimizer: Optimizer) -> bool:
    """Return whether the optimizer divides by the loss scale within its step itself."""
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


def copy_all(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy many tensors in one call: a call for each costs a kernel launch for each."""
    import torch

    torch._foreach_copy_(targets, sources)


def cpu_multiplies_bf16() -> bool:
    """Return whether torch multiplies bfloat16 with this CPU's own instructions (oneDNN: AVX-512, AMX, ARM)."""
    import torch

    if not torch.backends.mkldnn.is_available():  # as on macOS: without oneDNN, torch's own loops take longer
        return False
    if not hasattr(torch.cpu, "get_capabilities"):  # an older torch
        return torch.cpu._is_avx512_bf16_supported()
    has = torch.cpu.get_capabilities()
    return any(has.get(instructions, False) for instructions in ("avx512_bf16", "amx_bf16", "bf16"))


def torch_archive(file: IO[bytes]) -> Any:
    """Return torch's own reader of its zip archives, so that we see the same members as `torch.load`."""
    import torch

    return torch._C.PyTorchFileReader(file)


def worker_batches_class() -> Any:
    """Return torch's iterator over the batches of workers, to be subclassed: its wait cannot be ended otherwise."""
    from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

    return _MultiProcessingDataLoaderIter


def worker_check_interval() -> float:
    """Return after how many seconds of waiting torch checks that its workers are alive."""
    from torch.utils.data._utils import MP_STATUS_CHECK_INTERVAL

    return MP_STATUS_CHECK_INTERVAL


def worker_processes(batches: Any) -> Sequence[Any]:
    """Return the worker processes behind torch's iterator, none without workers: there is no public list."""
    return getattr(batches, "_workers", ())


def end_workers(batches: Any) -> None:
    """End the workers behind torch's iterator, if it has any; otherwise they end only when it is collected."""
    if hasattr(batches, "_shutdown_workers"):
        batches._shutdown_workers()


def hydra_sources() -> dict[str, Any]:
    """Return Hydra's table of readers by scheme, which can be changed: it is the only way to replace one."""
    from hydra._internal.sources_registry import SourcesRegistry
    from hydra.core.plugins import Plugins

    Plugins.instance()  # which fills the registry, once in a process
    return SourcesRegistry.instance().types


def hydra_file_name(source: Any, config_path: str) -> str:
    """Return the name of the file that Hydra's reader opens for a configuration."""
    return source._normalize_file_name(config_path)


def is_sweep(override: str) -> bool:
    """Return whether Hydra reads the override as several values; raise Hydra's error if it cannot read it."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return OverridesParser.create().parse_override(override).is_sweep_override()


def root_config(config: DictConfig) -> Any:
    """Return the whole configuration that a node belongs to: references in the node may lead there."""
    return config._get_root()


def pickled_content(fields: Mapping[str, Any]) -> Any:
    """Return the value inside the pickled fields of an OmegaConf container or node, None if there is none."""
    return fields.get("_content", fields.get("_val"))


def python_unpickler() -> Any:
    """Return the unpickler written in Python, to be subclassed: the one in C trusts sizes in the file."""
    import pickle

    return pickle._Unpickler


def python3_name(module: str, name: str) -> str:
    """Return the full name that a pickle means, which may have been written by Python 2."""
    import _compat_pickle

    module, name = _compat_pickle.NAME_MAPPING.get((module, name), (module, name))
    return f"{_compat_pickle.IMPORT_MAPPING.get(module, module)}.{name}"


def is_starting_a_process() -> bool:
    """Return whether objects are being pickled for a process that is being spawned."""
    from multiprocessing.context import get_spawning_popen

    return get_spawning_popen() is not None


def lhotse_readers() -> tuple[Any, Any]:
    """Return what lhotse reads audio and other files with, None if not set: its getters would set a default."""
    import lhotse.audio.backend as audio_backends
    import lhotse.serialization as io_backends

    return audio_backends.CURRENT_AUDIO_BACKEND, io_backends.CURRENT_IO_BACKEND


def set_lhotse_readers(audio: Any, files: Any) -> None:
    """Set what lhotse reads audio and other files with; None, which its own setters refuse, for not set."""
    import lhotse.audio.backend as audio_backends
    import lhotse.serialization as io_backends

    audio_backends.CURRENT_AUDIO_BACKEND, io_backends.CURRENT_IO_BACKEND = audio, files
