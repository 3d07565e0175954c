"""Train a list of variants with one implementation, NeMo's or ours, and keep what every stage produced.

    python record.py IMPLEMENTATION PLAN.json OUTPUT_FOLDER          IMPLEMENTATION: nemo | nest_ssl

The same script runs in both environments, so two recordings differ only where the implementations differ. All
variants share one process, because importing NeMo takes longer than training a tiny model; each starts from its seed.
The plan is `{"config": path, "seed": number, "variants": [{"name", "steps", "resumed_after", "overrides"}]}`; a
recording is one `NAME.pt`, and `environment.json` says what made them.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import importlib
import json
import platform
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
from torch import Tensor

# elements; for a larger tensor a digest decides equality, a sample shows how large a difference is
KEEP_WHOLE = 1 << 16
SAMPLE = 1 << 12
BATCH_FIELDS = ("audio", "audio_len", "noise", "noise_len", "noisy_audio", "noisy_audio_len")
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
# what a variant may say about the trainer; the rest of the configuration's trainer node describes a large machine
TRAINER_OPTIONS = (
    "accumulate_grad_batches",
    "gradient_clip_algorithm",
    "gradient_clip_val",
    "limit_train_batches",
    "limit_val_batches",
    "precision",
    "val_check_interval",
)


def keep(tensor: Tensor) -> Tensor | dict[str, Any]:
    """A copy of a tensor, or of a large one what is needed to tell whether another is equal to it."""
    tensor = tensor.detach()
    if tensor.numel() <= KEEP_WHOLE:
        return tensor.clone()
    flat = tensor.contiguous().flatten()
    flat = flat + 0  # -0.0 and 0.0 are equal, their bytes are not
    return {
        "sha256": hashlib.sha256(flat.view(torch.uint8).numpy().tobytes()).hexdigest(),
        "shape": tuple(tensor.shape),
        "dtype": str(tensor.dtype),
        "sample": flat[:: max(1, flat.numel() // SAMPLE)].clone(),
    }


class Recorder(pl.Callback):
    """Writes down each batch, what the model made of it, and the step that the optimiser took."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []
        self.validations: list[dict[str, float]] = []
        self._recorded_gradients = False
        self._outputs: tuple[Tensor, ...] = ()

    def listen(self, model: pl.LightningModule) -> None:
        """Keep what the model's forward returns."""
        forward = model.forward

        def recording_forward(*args: Any, **kwargs: Any) -> Any:
            outputs = forward(*args, **kwargs)
            self._outputs = tuple(tensor.detach() for tensor in outputs)
            return outputs

        model.forward = recording_forward  # type: ignore[method-assign]

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        fields = {name: getattr(batch, name) for name in BATCH_FIELDS}
        self.steps.append({"batch": {name: keep(value) for name, value in fields.items() if value is not None}})

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: torch.optim.Optimizer) -> None:
        gradients = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
        square = sum(float((gradient.double() ** 2).sum()) for gradient in gradients.values())
        self.steps[-1].update(lr=float(optimizer.param_groups[0]["lr"]), grad_norm=square**0.5)
        if not self._recorded_gradients:
            self.steps[-1]["gradients"] = {name: keep(gradient) for name, gradient in gradients.items()}
            self._recorded_gradients = True

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        log_probs, encoded_len, masks, tokens = self._outputs
        step = self.steps[-1]
        step.update(encoded_len=keep(encoded_len), tokens=keep(tokens), masks=keep(masks[:, 0]))
        step["loss"] = float(outputs["loss"])
        if len(self.steps) == 1:
            step["log_probs"] = keep(log_probs)

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        metrics = trainer.callback_metrics
        self.validations.append({name: float(metrics[name]) for name in sorted(metrics) if name.endswith("val_loss")})


def model_class(implementation: str) -> type[pl.LightningModule]:
    """The class of the same name from either implementation."""
    if implementation == "nemo":
        from nemo.collections.asr.models.ssl_models import EncDecDenoiseMaskedTokenPredModel
        from nemo.utils import logging

        logging.setLevel(logging.ERROR)
        return EncDecDenoiseMaskedTokenPredModel
    from nest_ssl.models import EncDecDenoiseMaskedTokenPredModel as OurModel

    return OurModel


def compose(config: Path, overrides: list[str]) -> DictConfig:
    """The configuration file with a variant's changes, in their order: `~key`, `+size=name` or `key=value`."""
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

    With `resumed_after`, training stops there with a checkpoint, from which a new trainer and a new model go on.
    """
    recorder = Recorder()
    initial: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        checkpoint: Path | None = None
        for phase, last_step in enumerate([steps] if resumed_after is None else [resumed_after, steps]):
            pl.seed_everything(seed + phase, verbose=False)
            trainer = pl.Trainer(**_trainer_arguments(cfg), max_steps=last_step, callbacks=[recorder])
            model = build(cfg=cfg.model, trainer=trainer)
            initial = initial or _weights(model)
            recorder.listen(model)
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
    """NeMo's checkpoints do not know it: its resumed runs begin the epoch anew, with other random numbers."""
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


def environment(implementation: str) -> dict[str, str]:
    """What the numbers of a recording depend on, apart from its plan."""
    return {
        implementation: importlib.import_module(implementation).__version__,
        "torch": torch.__version__,
        "lightning": pl.__version__,
        "python": platform.python_version(),
        "processor": f"{_processor()}, {torch.backends.cpu.get_cpu_capability()}",
        "threads": str(torch.get_num_threads()),
    }


def _processor() -> str:
    """The processor's name as far as the system tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


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
    made_by = json.dumps(environment(arguments.implementation))
    (arguments.output / "environment.json").write_text(made_by, encoding="utf-8")
    for variant in plan["variants"]:
        started = time.perf_counter()
        try:
            cfg = compose(Path(plan["config"]), variant["overrides"])
            recording = record(build, cfg, variant["steps"], plan["seed"], variant["resumed_after"])
        except Exception as error:  # one variant that fails must not hide the others
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
