"""Train NeMo's own NEST model and record it, or print its tensors; runs in NeMo's environment, without nest_ssl.

`tools/masked_token_pred_pretrain_with_saver.py` is its command line; `parameters.py` calls `print_tensors`.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PROJECT_FOLDER = "nest_ssl_project"
NEMO_CONFIG = "examples/asr/conf/ssl/nest"
_MANIFESTS = ("manifest_filepath", "noise_manifest")
_DATASETS = ("train_ds", "validation_ds", "test_ds")
sys.path.append(str(Path(__file__).parent))  # for `recorder`, which is imported without the package around it


class ConfigurationError(Exception):
    """The command line names something that does not exist; the message says what."""


def main(argv: Sequence[str] | None = None) -> int:
    """Train and record as the command line says, and return the exit code."""
    options = _parse(argv)
    warnings.filterwarnings("ignore")
    from recorder.callback import RecorderOptions, show_messages
    from recorder.files import RecordingError

    show_messages()
    try:
        cfg = compose(options.config_path, options.config_name, options.overrides)
        recording = RecorderOptions.from_config(cfg)
        train(cfg, recording)
    except (RecordingError, ConfigurationError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2  # as every command of nest_ssl, whose constant cannot be imported here
    print(f"recorded in {recording.output_dir}")
    return 0


def train(cfg: Any, options: Any) -> None:
    """Train in NeMo's own order: seed, trainer, model, weights to start from, fit."""
    import lightning.pytorch as pl
    import nemo
    from nemo.collections.asr.models.ssl_models import EncDecDenoiseMaskedTokenPredModel
    from nemo.utils import logging
    from omegaconf import OmegaConf
    from recorder.callback import Recorder

    logging.setLevel(logging.ERROR)
    if cfg.get("seed") is not None:
        pl.seed_everything(int(cfg.seed), verbose=False)
    arguments: Any = OmegaConf.to_container(cfg.trainer, resolve=True)
    arguments.update(logger=False, enable_checkpointing=False, enable_model_summary=False, enable_progress_bar=False)
    model_config = OmegaConf.to_container(cfg.model, resolve=True)
    callback = Recorder(options, "nemo", nemo.__version__, model_config)
    trainer = pl.Trainer(**arguments, callbacks=[callback])
    model = EncDecDenoiseMaskedTokenPredModel(cfg=cfg.model, trainer=trainer)
    model.maybe_init_from_pretrained_checkpoint(cfg)
    _count_validations_across_epochs(trainer, model.train_dataloader())
    trainer.fit(model)


def _count_validations_across_epochs(trainer: Any, loader: Any) -> None:
    """Allow a `val_check_interval` above the steps of an epoch, which Lightning refuses; nest_ssl does the same."""
    if not isinstance(trainer.val_check_interval, int) or not hasattr(loader, "__len__"):
        return
    limit = trainer.limit_train_batches
    batches = min(len(loader), limit) if isinstance(limit, int) else len(loader) * (1.0 if limit is None else limit)
    if trainer.val_check_interval > batches:
        trainer.check_val_every_n_epoch = None


def compose(folder: str | None, name: str, overrides: Sequence[str]) -> Any:
    """Compose the configuration with its overrides, none of which needs a `+`, and adjust it to this machine."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf, open_dict

    config_dir = find_config_dir(folder, name)
    groups = {path.name for path in config_dir.iterdir() if path.is_dir()}
    try:
        with initialize_config_dir(str(config_dir), version_base="1.3"):
            cfg = hydra_compose(name, overrides=[_lenient(text, groups) for text in overrides])
    except HydraException as error:
        raise ConfigurationError(" ".join(str(error).split())) from error
    OmegaConf.set_struct(cfg, False)
    with open_dict(cfg):
        _fit_to_machine(cfg.trainer)
        for dataset in (cfg.model.get(key) for key in _DATASETS):
            for key in _MANIFESTS:
                if dataset is not None and dataset.get(key) is not None:
                    dataset[key] = _resolved(dataset[key])
    return cfg


def find_config_dir(folder: str | None, name: str) -> Path:
    """Find the folder of NAME.yaml; ours replaces NeMo's, which only a checkout of NeMo has."""
    given = [folder or NEMO_CONFIG]
    if given == [NEMO_CONFIG]:
        given.append("config")
    for candidate in (base / path for path in given for base in _bases()):
        if (candidate / f"{name}.yaml").is_file():
            print(f"configuration: {candidate.resolve() / name}.yaml")
            return candidate.resolve()
    raise ConfigurationError(f"--config-path: there is no {name}.yaml in {' or '.join(given)}")


def _bases() -> list[Path]:
    """Return the folders where a relative path may start: here, and all above this file and the started script."""
    above = [*Path(__file__).resolve().parents, *Path(sys.argv[0]).resolve().parents]
    return [Path.cwd(), *above, *(base / PROJECT_FOLDER for base in [Path.cwd(), *Path.cwd().parents])]


def _lenient(override: str, groups: set[str]) -> str:
    """Let `key=value` add a missing key, and quote values that Hydra would take for a sweep."""
    match = re.fullmatch(r"\+{0,2}([^\s=+~][^\s=]*)=(.*)", override, re.DOTALL)
    if match is None or match[1].partition("@")[0] in groups:
        return override
    key, value = match.groups()
    plain = re.fullmatch(r"[\[{'\"].*", value, re.DOTALL) is None and re.search(r"[^\w.+-]", value)
    return f"++{key}='{value}'" if plain else f"++{key}={value}"


def _fit_to_machine(trainer: Any) -> None:
    """Adjust a configuration for GPUs to a machine without one, as nest_ssl does, and print each change."""
    import torch

    if torch.cuda.is_available():
        return
    wanted = {"accelerator": "cpu", "devices": 1, "num_nodes": 1, "strategy": "auto", "sync_batchnorm": False}
    precision = str(trainer.get("precision", 32))
    if precision.startswith(("16", "bf16")) and not _multiplies_bf16(torch):
        wanted["precision"] = 32
    elif precision.startswith("16"):
        wanted["precision"] = "bf16-mixed"
    for key, value in wanted.items():
        old = trainer.get(key)
        if old is not None and old != value and not (key == "devices" and old == "auto"):
            print(f"adjusted trainer.{key}: {old} -> {value} (there is no GPU that PyTorch can use)", file=sys.stderr)
        trainer[key] = value


def _multiplies_bf16(torch: Any) -> bool:
    """Return what `nest_ssl.compat.cpu_multiplies_bf16` returns."""
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.cpu, "get_capabilities"):
        return False
    has = torch.cpu.get_capabilities()
    return any(has.get(instructions, False) for instructions in ("avx512_bf16", "amx_bf16", "bf16"))


def _resolved(path: Any) -> Any:
    """Return the absolute path of a manifest; `nest_ssl_project/...` is searched in all possible places."""
    if not isinstance(path, str):
        return [_resolved(item) for item in path]
    names = [path]
    if path.replace("\\", "/").startswith(f"{PROJECT_FOLDER}/"):
        names.append(path[len(PROJECT_FOLDER) + 1 :])  # the project's folder may have another name
    for candidate in (Path(path).expanduser(), *(base / name for name in names for base in _bases())):
        if candidate.is_file():
            return str(candidate.resolve())
    if "://" in path or any(mark in path for mark in ("_OP_", "{", "(", ",")):
        return path  # remote files, shards and lists, which NeMo resolves itself
    raise ConfigurationError(f"{path!r} does not exist; give the path of a JSON-lines manifest")


def print_tensors(paths: Sequence[str]) -> None:
    """Print the tensors of NeMo's models of some configurations as JSON: one list in the last line."""
    from nemo.collections.asr.models.ssl_models import EncDecDenoiseMaskedTokenPredModel
    from omegaconf import OmegaConf
    from recorder.files import structure_of
    from torch.nn import init

    for name, _ in inspect.getmembers(init, inspect.isfunction):
        if name.endswith("_") and not name.startswith("_"):
            # only shapes matter: without initial values, memory stays untouched, gigabytes of it in the largest model
            setattr(init, name, lambda tensor, *args, **kwargs: tensor)
    models = [structure_of(EncDecDenoiseMaskedTokenPredModel(cfg=OmegaConf.load(path)))["tensors"] for path in paths]
    print("\n" + json.dumps(models))


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Pre-train NEST with NeMo and record what it does.",
        epilog="example: %(prog)s --config-name nest_fast-conformer model.train_ds.manifest_filepath=train.json "
        "trainer.max_steps=1 output_dir=./saved_nemo_outputs seed=42 save_steps=0",
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="change a key of the configuration")
    parser.add_argument("-cp", "--config-path", help="folder of configuration files (default: NeMo's or ours)")
    parser.add_argument("-cn", "--config-name", default="nest_fast-conformer", help="file in it (default: %(default)s)")
    options = parser.parse_intermixed_args(argv)
    options.config_name = re.sub(r"\.ya?ml$", "", options.config_name)
    return options


if __name__ == "__main__":
    sys.exit(main())
