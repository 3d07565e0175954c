"""Train a list of variants with one implementation, NeMo's or ours, and record what every stage produced.

    python record.py IMPLEMENTATION PLAN.json OUTPUT_FOLDER          IMPLEMENTATION: nemo | nest_ssl

The same script runs in both environments, so two recordings differ only where the implementations differ. All
variants share one process, because importing NeMo takes longer than training a tiny model; each starts from its seed.
The plan is `{"config": path, "seed": number, "variants": [{"name", "steps", "resumed_after", "overrides"}]}`; a
recording is one `NAME.pt`, and `environment.json` describes the machine and the versions.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn

# the recorder of `nest-ssl align`, without the rest of the package, which NeMo's environment does not have
sys.path.append(str(Path(__file__).resolve().parents[2] / "nest_ssl" / "apps" / "alignment"))
from digests import keep  # in the folder of this file, which runs as a script
from recorder.files import machine_versions
from recorder.listeners import BatchListener, TrainedBatch

TRAINER: dict[str, Any] = {
    "accelerator": "cpu",
    "devices": 1,
    "strategy": "auto",
    "max_epochs": -1,
    "precision": 32,
    "limit_val_batches": 0,
    "num_sanity_val_steps": 0,
    "log_every_n_steps": 1,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "enable_checkpointing": False,
    "logger": False,
}
# keys of the trainer that a variant may set; the other keys of the configuration are for a large machine
TRAINER_OPTIONS = (
    "accumulate_grad_batches",
    "gradient_clip_algorithm",
    "gradient_clip_val",
    "limit_train_batches",
    "limit_val_batches",
    "precision",
    "val_check_interval",
)


class VariantRecorder(BatchListener):
    """Collects each batch, the model's outputs, and the optimizer steps; log-probabilities and gradients only once."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[dict[str, Any]] = []  # one for each batch, including accumulated ones
        self.validations: list[dict[str, float]] = []
        self._recorded_gradients = False

    def keep(self, name: str, tensor: Tensor) -> Any:
        return keep(tensor[:, 0] if name == "masks" else tensor)  # (B, D, T) -> (B, T): the same for all features

    def on_batch_recorded(self, model: nn.Module, batch: TrainedBatch) -> None:
        assert batch.loss is not None
        # without file names, which are lists
        fields = {name: value for name, value in batch.fields.items() if not isinstance(value, list)}
        step = {"batch": fields, **batch.outputs, "loss": float(batch.loss)}
        if self.steps:
            del step["log_probs"]
        if batch.grad_norm is not None:
            step.update(lr=batch.lr, grad_norm=batch.grad_norm)
            if not self._recorded_gradients:
                step["gradients"] = batch.gradients
                self._recorded_gradients = True
        self.steps.append(step)

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        metrics = trainer.callback_metrics
        self.validations.append({name: float(metrics[name]) for name in sorted(metrics) if name.endswith("val_loss")})


def model_class(implementation: str) -> type[pl.LightningModule]:
    """Return the class of the same name from either implementation."""
    if implementation == "nemo":
        from nemo.collections.asr.models.ssl_models import EncDecDenoiseMaskedTokenPredModel
        from nemo.utils import logging

        logging.setLevel(logging.ERROR)
        return EncDecDenoiseMaskedTokenPredModel
    from nest_ssl.models import EncDecDenoiseMaskedTokenPredModel as OurModel

    return OurModel


def compose(config: Path, overrides: list[str]) -> DictConfig:
    """Return the configuration file with a variant's changes, in their order: `~key`, `+size=name` or `key=value`."""
    cfg = OmegaConf.load(config)
    for change in overrides:
        if change.startswith("+size="):
            cfg = OmegaConf.merge(cfg, OmegaConf.load(config.parent / "size" / f"{change[len('+size=') :]}.yaml"))
        elif change.startswith("~"):
            parent, _, name = change[1:].rpartition(".")
            del OmegaConf.select(cfg, parent)[name]
        else:
            cfg = OmegaConf.merge(cfg, OmegaConf.from_dotlist([change]))
    assert isinstance(cfg, DictConfig)
    return cfg


def record(
    build: type[pl.LightningModule], cfg: DictConfig, steps: int, seed: int, resumed_after: int | None = None
) -> dict[str, Any]:
    """Train for some steps and return everything that should be the same in the other implementation.

    With `resumed_after`, training stops there with a checkpoint, from which a new trainer and a new model continue.
    """
    recorder = VariantRecorder()
    initial: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        checkpoint: Path | None = None
        for phase, last_step in enumerate([steps] if resumed_after is None else [resumed_after, steps]):
            pl.seed_everything(seed + phase, verbose=False)
            trainer = pl.Trainer(**_trainer_arguments(cfg), max_steps=last_step, callbacks=[recorder])
            model = build(cfg=cfg.model, trainer=trainer)
            initial = initial or _weights(model)
            trainer.fit(model, ckpt_path=checkpoint)
            if last_step < steps:
                checkpoint = Path(folder) / "stopped.ckpt"
                trainer.save_checkpoint(checkpoint)
                _forget_place_in_data(checkpoint)
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "trainable": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "initial": initial,
        "steps": recorder.steps,
        "validations": recorder.validations,
        "final": _weights(model),
    }


def _forget_place_in_data(checkpoint: Path) -> None:
    """Remove the position in the data from a checkpoint: NeMo's have none, and its resumed runs restart the epoch."""
    content = torch.load(checkpoint, weights_only=False)
    content["loops"]["fit_loop"]["state_dict"].pop("combined_loader", None)
    torch.save(content, checkpoint)


def _trainer_arguments(cfg: DictConfig) -> dict[str, Any]:
    chosen = {name: cfg.trainer[name] for name in TRAINER_OPTIONS if name in cfg.trainer}
    if "limit_val_batches" not in chosen:
        chosen.pop("val_check_interval", None)
    return {**TRAINER, **chosen}


def _weights(model: pl.LightningModule) -> dict[str, Any]:
    return {name: keep(value) for name, value in model.state_dict().items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("implementation", choices=["nemo", "nest_ssl"])
    parser.add_argument("plan", type=Path)
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    plan = json.loads(arguments.plan.read_text(encoding="utf-8"))
    arguments.output.mkdir(parents=True, exist_ok=True)
    build = model_class(arguments.implementation)
    version = importlib.import_module(arguments.implementation).__version__
    made_by = json.dumps({arguments.implementation: version, **machine_versions()})
    (arguments.output / "environment.json").write_text(made_by, encoding="utf-8")
    for variant in plan["variants"]:
        started = time.perf_counter()
        try:
            cfg = compose(Path(plan["config"]), variant["overrides"])
            recording = record(build, cfg, variant["steps"], plan["seed"], variant["resumed_after"])
        except Exception as error:  # a variant that fails must not prevent the others
            traceback.print_exc()
            recording = {"error": f"{type(error).__name__}: {error}"}
        recording["seconds"] = time.perf_counter() - started
        torch.save(recording, arguments.output / f"{variant['name']}.pt")
        print(f"{variant['name']}: {recording['seconds']:.1f} s", recording.get("error", ""), flush=True)
        gc.collect()
    foreign = "nest_ssl" if arguments.implementation == "nemo" else "nemo"
    if foreign in sys.modules:
        sys.exit(f"the {arguments.implementation} side imported {foreign}: the recordings prove nothing")


if __name__ == "__main__":
    main()
