"""Private names of other libraries still exist and behave as `nest_ssl.compat` relies on; no other file uses any."""

from __future__ import annotations

import ast
import importlib
import inspect
import io
import pickle
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import lightning.pytorch as pl
import pytest
import torch
from hydra.errors import HydraException
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.strategies import ModelParallelStrategy
from omegaconf import OmegaConf
from torch import Tensor, nn
from torch.utils.data import DataLoader

from nest_ssl import compat

PACKAGE = Path(compat.__file__).parent
PUBLIC = {"_exit", "_replace", "_asdict"}  # documented names of os and of named tuples
# file -> private names that stay there
ELSEWHERE = {
    "apps/alignment/recorder/listeners.py": {
        "_version"
    },  # it runs in NeMo's environment, without the rest of the package
}


class _Module(pl.LightningModule):
    """A model of one number, trained on four batches; it records for each whether gradients are only accumulated."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.accumulating: list[bool] = []
        self.loader = _Loader(torch.ones(4, 1), batch_size=1)

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        self.accumulating.append(compat.is_accumulating(self.trainer))
        return (self.weight * batch).sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_dataloader(self) -> DataLoader[Any]:
        return self.loader


class _Loader(DataLoader[Any]):
    """A loader with a state that counts its iterations."""

    loaded: Any = None
    iterated = 0

    def __iter__(self) -> Any:
        self.iterated += 1
        return super().__iter__()

    def state_dict(self) -> dict[str, Any]:
        return {"place": 3}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.loaded = state_dict


def _trainer(folder: Path, **settings: Any) -> pl.Trainer:
    quiet: dict[str, Any] = {
        **dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False),
        "accelerator": "cpu",
        "max_epochs": 1,
        "default_root_dir": folder,
    }
    return pl.Trainer(**{**quiet, **settings})


def _found(path: str) -> Any:
    module, name = path.rsplit(".", 1)
    return getattr(importlib.import_module(module), name)


def test_no_other_file_uses_private_names_of_libraries() -> None:
    found = set()
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for line, used in _private_names(tree):
            if name != "compat.py" and used not in PUBLIC | ELSEWHERE.get(name, set()):
                found.add(f"{name}:{line}: {used}")
    assert not found, f"private names of a library belong in nest_ssl/compat.py: {sorted(found)}"


def _private_names(tree: ast.Module) -> list[tuple[int, str]]:
    """Return private names: imports, and attributes except of `self`, `cls`, `super()` and objects of own classes."""
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names = [part for name in (*module, *(alias.name for alias in node.names)) for part in name.split(".")]
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) not in ("self", "cls", "super()"):
            names = [node.attr] if node.attr not in own else []
        else:
            continue
        found += [(node.lineno, name) for name in names if name.startswith("_") and not name.startswith("__")]
    return found


def test_importing_it_loads_no_library() -> None:
    code = "import sys, nest_ssl.compat; print(*{name.split('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, capture_output=True, text=True).stdout
    assert "nest_ssl" in loaded.split()
    assert not {"torch", "lightning", "hydra", "omegaconf", "lhotse"} & set(loaded.split())


@pytest.mark.parametrize(
    ("owner", "method"), [(owner, method) for owner, methods in compat.OVERRIDDEN.items() for method in methods]
)
def test_methods_that_we_override_keep_their_parameters(owner: str, method: str) -> None:
    function = getattr(_found(owner), method, None)
    assert function is not None, f"{owner} has no {method} any more: what overrides it is never called"
    parameters = tuple(inspect.signature(function).parameters)[1:]
    expected = compat.OVERRIDDEN[owner][method]
    assert parameters == expected, f"{owner}.{method} takes {parameters} now, and our override takes {expected}"
    called = f"self.{method}(" in inspect.getsource(sys.modules[_found(owner).__module__])
    assert called, f"{owner} does not call {method} any more: neither does it call our override"


def test_fields_that_we_use_in_subclasses_exist(tmp_path: Path) -> None:
    made = {
        "lightning.pytorch.callbacks.ModelCheckpoint": ModelCheckpoint(),
        "lightning.pytorch.loggers.TensorBoardLogger": TensorBoardLogger(tmp_path),
        "torch.utils.data.DataLoader": DataLoader([1]),  # type: ignore[arg-type]
    }
    for owner, fields in compat.FIELDS.items():
        missing = [field for field in fields if not hasattr(made[owner], field)]
        assert not missing, f"{owner} has no {missing} any more, which our subclass reads or sets"


def test_is_accumulating(tmp_path: Path) -> None:
    module = _Module()
    _trainer(tmp_path, accumulate_grad_batches=2).fit(module)
    expected = [True, False, True, False]
    assert module.accumulating == expected, "Lightning's _should_accumulate does not tell which batches accumulate"


def test_device_mesh_is_none_without_sharding() -> None:
    assert compat.device_mesh(_Module()) is None, "LightningModule._device_mesh is not None without a strategy"
    assert "lightning_module._device_mesh =" in inspect.getsource(ModelParallelStrategy.setup_environment), (
        "ModelParallelStrategy does not set LightningModule._device_mesh any more"
    )


def test_attached_trainer() -> None:
    module = _Module()
    assert compat.attached_trainer(module) is None, "LightningModule._trainer is not None before a run"
    module.trainer = trainer = pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    assert compat.attached_trainer(module) is trainer, "LightningModule._trainer is not the trainer that was set"


def test_restore_loader_position(tmp_path: Path) -> None:
    class Restore(pl.Callback):
        iterated = 0

        def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            loader = pl_module.loader
            compat.restore_loader_position(trainer)
            assert loader.loaded is None, "a state was restored although Lightning had none in its FitLoop"
            trainer.fit_loop._combined_loader_states_to_load = [{"place": 3}]
            before = loader.iterated
            compat.restore_loader_position(trainer)
            self.iterated = loader.iterated - before
            assert trainer.fit_loop._combined_loader_states_to_load == [], "Lightning would restore the state again"

    module, restore = _Module(), Restore()
    _trainer(tmp_path, callbacks=[restore]).fit(module)
    assert module.loader.loaded == {"place": 3}, "Lightning's CombinedLoader did not pass the state to the loader"
    assert restore.iterated == 1, "Lightning's data fetcher did not start the loader again from the restored state"


def test_stored_loader_states_wait_in_the_fit_loop(tmp_path: Path) -> None:
    loop = _trainer(tmp_path).fit_loop
    loop.on_load_checkpoint({"combined_loader": [{"place": 3}]})
    found = loop._combined_loader_states_to_load
    assert found == [{"place": 3}], "Lightning keeps the loader's state elsewhere: restore_loader_position misses it"


def test_skips_saving_and_monitored_values(tmp_path: Path) -> None:
    class Ask(pl.Callback):
        def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            checkpoint = ModelCheckpoint(tmp_path)
            assert not compat.skips_saving(checkpoint, trainer), "Lightning skips a step that has no checkpoint"
            checkpoint._last_global_step_saved = trainer.global_step
            assert compat.skips_saving(checkpoint, trainer), "Lightning does not skip a step that has a checkpoint"
            values = compat.monitored_values(checkpoint, trainer)
            assert {"epoch", "step"} <= set(values), f"Lightning's monitor candidates lack epoch and step: {values}"
            assert int(values["step"]) == trainer.global_step == 4

    _trainer(tmp_path, callbacks=[Ask()]).fit(_Module())


def test_shard_over_all_processes() -> None:
    source = inspect.getsource(ModelParallelStrategy)
    assert "_setup_device_mesh(\n            self._data_parallel_size" in source, (
        "ModelParallelStrategy does not make its mesh from _data_parallel_size any more"
    )

    class Strategy(ModelParallelStrategy):
        num_processes = 3  # type: ignore[assignment]

    strategy = Strategy()
    strategy.num_nodes = 2
    compat.shard_over_all_processes(strategy)
    assert strategy._data_parallel_size == 6


def test_writer_arguments(tmp_path: Path) -> None:
    found = compat.writer_arguments(TensorBoardLogger(tmp_path, max_queue=7))
    assert found == {"max_queue": 7}, f"TensorBoardLogger._kwargs is not what the user gave for the writer: {found}"


def test_unscales_by_itself() -> None:
    weights = [torch.ones(1, requires_grad=True)]
    assert not compat.unscales_by_itself(torch.optim.AdamW(weights)), "plain AdamW claims to unscale gradients"
    fused = compat.unscales_by_itself(torch.optim.AdamW(weights, fused=True))
    assert fused, "torch's fused AdamW has no _step_supports_amp_scaling any more: gradients would be unscaled twice"
    from torch.amp import grad_scaler

    assert "_step_supports_amp_scaling" in inspect.getsource(grad_scaler), "GradScaler asks for another attribute now"


def test_copy_all() -> None:
    sources = [torch.tensor([3.0, 4.0]), torch.tensor(7)]
    targets = [torch.zeros(2), torch.tensor(0)]
    compat.copy_all(targets, sources)
    assert all(map(torch.equal, targets, sources)), "torch._foreach_copy_ does not copy every tensor"


def test_cpu_multiplies_bf16() -> None:
    told = "torch.cpu does not tell whether the processor has bfloat16 instructions: always False now"
    assert hasattr(torch.cpu, "get_capabilities") or hasattr(torch.cpu, "_is_avx512_bf16_supported"), told
    if Path("/proc/cpuinfo").is_file() and platform.machine() in ("x86_64", "AMD64"):
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
        assert compat.cpu_multiplies_bf16() == ("avx512_bf16" in flags), told


@pytest.mark.parametrize(
    ("onednn", "capabilities", "expected"),
    [
        (True, {"avx512_f": True}, False),
        (True, {"avx512_bf16": True}, True),
        (True, {"amx_bf16": True}, True),
        (True, {"bf16": True}, True),  # ARM
        (False, {"bf16": True}, False),  # a Mac
    ],
)
def test_cpu_multiplies_bf16_where_onednn_has_instructions_for_it(
    onednn: bool, capabilities: dict[str, bool], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: onednn)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    assert compat.cpu_multiplies_bf16() is expected


def test_torch_archive() -> None:
    file = io.BytesIO()
    torch.save({"weight": torch.zeros(3)}, file)
    file.seek(0)
    reader = compat.torch_archive(file)
    assert {"data.pkl", "data/0"} <= set(reader.get_all_records()), "torch.save names the members of its archive anew"
    assert reader.get_record_size("data/0") == 12, "PyTorchFileReader.get_record_size is not the size in bytes"
    assert isinstance(reader.get_record("data.pkl"), bytes)


def test_worker_batches() -> None:
    loader = DataLoader(torch.ones(2, 1), batch_size=1, num_workers=1)  # type: ignore[arg-type]
    batches = iter(loader)
    assert isinstance(batches, compat.worker_batches_class()), "DataLoader makes another iterator over workers now"
    next(batches)
    (worker,) = compat.worker_processes(batches)
    assert worker.is_alive(), "the iterator's _workers are not its processes"
    compat.end_workers(batches)
    assert not worker.is_alive(), "_shutdown_workers does not end the workers: they would outlive the loader"


def test_batches_without_workers() -> None:
    batches = iter(DataLoader(torch.ones(2, 1)))  # type: ignore[arg-type]
    assert not compat.worker_processes(batches)
    compat.end_workers(batches)


def test_worker_check_interval() -> None:
    default = inspect.signature(compat.worker_batches_class()._try_get_data).parameters["timeout"].default
    assert compat.worker_check_interval() == default, "torch waits for workers by another constant now"


def test_hydra_sources() -> None:
    readers = compat.hydra_sources()
    for scheme in ("file", "pkg", "structured"):
        assert readers[scheme].scheme() == scheme, f"Hydra reads {scheme}:// with {readers[scheme]}"
    assert compat.hydra_sources() is readers, "Hydra's table of readers is a copy: to change it has no effect"


def test_hydra_file_name(tmp_path: Path) -> None:
    source = compat.hydra_sources()["file"]("test", f"file://{tmp_path}")
    found = [compat.hydra_file_name(source, name) for name in ("size/large", "size/large.yaml")]
    assert found == ["size/large.yaml"] * 2, f"Hydra opens other files than those that we check: {found}"


def test_is_sweep() -> None:
    assert compat.is_sweep("x=1,2"), "Hydra reads x=1,2 as one value"
    assert not compat.is_sweep("x=[1,2]"), "Hydra reads a list as several values"
    with pytest.raises(HydraException):
        compat.is_sweep("x={")


def test_root_config() -> None:
    config = OmegaConf.create({"a": {"b": {"c": 1}}})
    assert compat.root_config(config.a.b) is config, "OmegaConf's _get_root is not the whole configuration"


def test_pickled_content() -> None:
    config = OmegaConf.create({"a": "${b}", "b": 1})
    content = compat.pickled_content(config.__getstate__())
    assert set(content) == {"a", "b"}, "a pickled DictConfig does not keep its values in _content"
    value = compat.pickled_content(vars(content["a"]))
    assert value == "${b}", "a pickled node of OmegaConf does not keep its value in _val, unresolved"
    assert compat.pickled_content({}) is None


def test_python_unpickler() -> None:
    unpickler = compat.python_unpickler()
    assert unpickler is not pickle.Unpickler
    seen: list[Any] = []

    class Watching(unpickler):  # type: ignore[misc, valid-type]
        dispatch: ClassVar[dict[int, Any]] = dict(unpickler.dispatch)

        def watch(self) -> None:
            seen.append(list(self.stack))
            unpickler.dispatch[pickle.SETITEM[0]](self)

        dispatch[pickle.SETITEM[0]] = watch

    assert Watching(io.BytesIO(pickle.dumps({"key": 1}))).load() == {"key": 1}
    assert seen == [[{"key": 1}, "key", 1]], f"pickle's dispatch table or stack differs: {seen}"


def test_python3_name() -> None:
    found = [compat.python3_name(*name) for name in (("__builtin__", "xrange"), ("copy_reg", "_reconstructor"))]
    assert found == ["builtins.range", "copyreg._reconstructor"], f"Python 2's names are translated to {found}"
    assert compat.python3_name("torch", "Size") == "torch.Size"


def test_is_starting_a_process() -> None:
    assert not compat.is_starting_a_process()
    code = (
        "import multiprocessing, pathlib\n"
        "from nest_ssl import compat\n"
        "class Asked:\n"
        "    def __reduce__(self):\n"
        "        print(compat.is_starting_a_process())\n"
        "        return int, ()\n"
        "process = multiprocessing.get_context('spawn').Process(target=print, args=(Asked(),))\n"
        "process.start(), process.join()\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, capture_output=True, text=True)
    assert "True" in ran.stdout.split(), f"multiprocessing does not tell that a process is being spawned: {ran.stderr}"


def test_lhotse_readers() -> None:
    pytest.importorskip("lhotse")
    from lhotse.audio.backend import LibsndfileBackend, get_current_audio_backend
    from lhotse.serialization import BuiltinIOBackend, get_current_io_backend

    before, own = compat.lhotse_readers(), (LibsndfileBackend(), BuiltinIOBackend())
    try:
        compat.set_lhotse_readers(*own)
        used = get_current_audio_backend(), get_current_io_backend()
        assert used == own, f"lhotse reads with {used}, not with what CURRENT_*_BACKEND says"
        assert compat.lhotse_readers() == own
    finally:
        compat.set_lhotse_readers(*before)
