"""Write run folders like those of training, but with known numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import yaml
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

CODES = 256
CONFIG = {
    "name": "NEST-example",
    "model": {"num_classes": CODES, "num_books": 1, "optim": {"lr": 0.3, "sched": {"warmup_steps": 100}}},
    "trainer": {"max_steps": 1000, "max_epochs": -1, "log_every_n_steps": 5},
}
Values = Mapping[str, Callable[[int], float]]


def write_events(folder: Path, *groups: tuple[Values, range], began: float, seconds_a_step: float = 1.0) -> Path:
    """Write the event file of one start: each group logs all its tags at all its steps."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"events.out.tfevents.{began:.0f}.{len(list(folder.iterdir()))}"
    first = min(steps.start for _, steps in groups)
    with path.open("wb") as file:
        writer = RecordWriter(file)
        writer.write(Event(wall_time=began, file_version="brain.Event:2").SerializeToString())
        for step in sorted({step for _, steps in groups for step in steps}):
            for values in (values for values, steps in groups if step in steps):
                for tag, value in values.items():
                    summary = Summary(value=[Summary.Value(tag=tag, simple_value=value(step))])
                    event = Event(wall_time=began + (step - first + 1) * seconds_a_step, step=step, summary=summary)
                    writer.write(event.SerializeToString())
    return path


def training(decay: float = 300.0) -> Values:
    """Return the values that a healthy run logs in training steps."""
    return {
        "train_loss": lambda step: 2.2 + (math.log(CODES) - 2.2) * math.exp(-step / decay) + 0.2 * math.sin(step * 7.3),
        "learning_rate": lambda step: 3e-3 * min((step + 1) / 100, math.sqrt(100 / (step + 1))),
        "epoch": lambda step: step // 40,
        "audio_seconds_per_second": lambda step: 60 + 8 * math.sin(step / 11) - (30 if step % 200 == 0 else 0),
        "data_wait_share": lambda step: 0.05 + 0.02 * math.sin(step / 5),
        "padding_efficiency": lambda step: 0.85 + 0.05 * math.sin(step * 3.1),
        "train_accuracy": lambda step: 0.35 * (1 - math.exp(-step / decay)) + 0.02 * math.sin(step * 5.1),
        "masked_share": lambda step: 0.4 + 0.05 * math.sin(step * 1.7),
        "gradient_norm": lambda step: 1.5 + math.exp(-step / 50) * 20 + (90 if step == 454 else 0),
        "weight_norm": lambda step: 80 + 0.02 * step,
    }


def validation(decay: float = 300.0) -> Values:
    """Return the values that a healthy run logs in validations."""
    return {
        "val_loss": lambda step: 2.4 + (math.log(CODES) - 2.4) * math.exp(-step / decay),
        "val_accuracy": lambda step: 0.33 * (1 - math.exp(-step / decay)),
        "val_masked_share": lambda step: 0.41,
        "codebook_0/target_coverage": lambda step: 0.6,
        "codebook_0/target_perplexity": lambda step: 95.0,
        "codebook_0/target_cumulative_coverage": lambda step: min(0.97, 0.5 + step / 1000),
        "codebook_0/predicted_coverage": lambda step: 0.5 * (1 - math.exp(-step / decay)),
        "codebook_0/predicted_perplexity": lambda step: 1 + 40 * (1 - math.exp(-step / decay)),
    }


def write_run(
    folder: Path, *, began: float, steps: int = 1000, config: dict | None = None, decay: float = 300.0
) -> Path:
    """Write the folder of a run that was started once."""
    groups = (training(decay), range(4, steps, 5)), (validation(decay), range(39, steps, 40))
    write_events(folder, *groups, began=began, seconds_a_step=0.2)
    (folder / "config.yaml").write_text(yaml.safe_dump(config or CONFIG, sort_keys=False))
    (folder / "environment.json").write_text(json.dumps({"command": ["nest-ssl", "train"], "torch": "2.13.0"}))
    return folder


def write_samples(folder: Path, step: int, *, count: int = 2, seconds: float = 3.0, books: int = 1) -> Path:
    """Write samples of rising tones with noise, in which every second masked frame is predicted correctly."""
    rate, generator = 16000, np.random.default_rng(step)
    arrays: dict[str, np.ndarray] = {"sample_rate": np.array(rate), "step": np.array(step)}
    for number in range(count):
        times = np.arange(int(seconds * rate)) / rate
        clean = 0.3 * np.sin(2 * np.pi * (200 + 300 * times) * times) * (np.sin(2 * np.pi * 2 * times) > -0.3)
        noisy = clean + 0.1 * generator.standard_normal(len(clean))
        frames = len(clean) // 160 // 8 * 8
        bands = np.arange(80)[:, None]
        ridge = 10 + 40 * np.linspace(0, 1, frames)[None] ** 1.5
        features = 4 * np.exp(-(((bands - ridge) / 4) ** 2)) + 0.5 * generator.standard_normal((80, frames))
        mask = (np.arange(frames) // 40) % 3 == 1
        targets = (ridge[0, ::8, None] * 3 + np.arange(books)).astype(np.int32)
        scored = mask.reshape(-1, 8).mean(1) > 0.8
        predicted = np.where((np.arange(len(targets)) % 2 == 0)[:, None], targets, targets + 7)
        of_sample = {
            "clean": clean.astype(np.float16),
            "noisy": noisy.astype(np.float16),
            "features": features.astype(np.float16),
            "mask": mask,
            "targets": targets,
            "predicted": predicted,
            "scored": scored,
        }
        arrays |= {f"{name}_{number}": array for name, array in of_sample.items()}
    path = folder / "samples" / f"step-{step:09d}.npz"
    path.parent.mkdir(exist_ok=True)
    np.savez_compressed(path, **arrays)
    return path
