"""Estimate memory and time of the recipes in docs/recipes.md, from the commands that the page prints.

python -m benchmarks.recipe_costs           # the two tables of the page

These are estimates. Operations and parameters are counted, activations were counted on a CPU, and the used share of a
GPU's peak speed is an assumption. `nest-ssl doctor` measures.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from benchmarks.flops import training_flops
from nest_ssl.apps.alignment.parameters import our_parameters
from nest_ssl.apps.alignment.sections import parameter_count
from nest_ssl.config.command_line import parse_command_line, preset_folder
from nest_ssl.config.compose import load_config

PAGE = Path(__file__).parents[1] / "docs" / "recipes.md"
CLIP = 10.0  # seconds; attention makes longer clips more expensive: by a tenth at 20 s
GPUS = 8  # for a recipe with `strategy: ddp`

# Memory: float32 weights, their gradients and AdamW's two moments; activations that the backward pass needs, as counted
# with torch.autograd.graph.saved_tensors_hooks in float32 (12.7, 16.5, 30.7 MB an audio second for Small, Medium, Large
# with clips of 10 s; mixed precision needs less); and the memory that CUDA and its kernels take at the start.
BYTES_PER_PARAMETER = 16
SUBSAMPLING_BYTES = 4.0e6  # for each audio second
LAYER_BYTES = 3.05e3  # for each audio second, layer and feature of `d_model`
FRAMEWORK_BYTES = 1.0e9

# Time: operations / (share of the peak * peak), but at least the time to launch the kernels.
PEAK = {"RTX 4090": 165e12, "A100": 312e12, "H100": 989e12}  # bf16 with float32 sums, dense, from the data sheets
UTILISATION = 0.1  # assumed: norms, activations and dropout wait for memory, not for arithmetic
QUICKEST_STEP = 0.15  # seconds, assumed


@dataclass(frozen=True)
class Recipe:
    """One command of the page, and the configuration that it composes."""

    hours: int
    config: dict[str, Any]

    @property
    def gpus(self) -> int:
        return GPUS if self.config["trainer"]["strategy"] == "ddp" else 1

    @property
    def batch_seconds(self) -> float:
        """The seconds of audio in the batch of one GPU."""
        return float(self.config["model"]["train_ds"]["batch_duration"])

    @property
    def passes(self) -> float:
        """The number of epochs of the run."""
        seconds = self.config["trainer"]["max_steps"] * self.batch_seconds * self.gpus
        return seconds / 3600 / self.hours

    @property
    def peak_rate(self) -> float:
        """The learning rate at the end of Noam's warm-up."""
        optim, width = self.config["model"]["optim"], self.config["model"]["encoder"]["d_model"]
        return optim["lr"] / math.sqrt(width * optim["sched"]["warmup_steps"])

    @property
    def parameters(self) -> int:
        return parameter_count(our_parameters(OmegaConf.create(self.config["model"])))

    @property
    def flops_per_second(self) -> float:
        """The operations for a second of audio, forward and backward."""
        count = max(1, round(self.batch_seconds / CLIP))
        return training_flops(self.config["model"], [CLIP] * count) / (count * CLIP)

    @property
    def memory(self) -> float:
        """The bytes that each GPU needs."""
        encoder = self.config["model"]["encoder"]
        activations = SUBSAMPLING_BYTES + LAYER_BYTES * encoder["n_layers"] * encoder["d_model"]
        return BYTES_PER_PARAMETER * self.parameters + activations * self.batch_seconds + FRAMEWORK_BYTES

    def hours_of_training(self, card: str) -> float:
        step = max(QUICKEST_STEP, self.flops_per_second * self.batch_seconds / (UTILISATION * PEAK[card]))
        return self.config["trainer"]["max_steps"] * step / 3600


def recipes(page: Path = PAGE) -> Iterator[Recipe]:
    """Yield the first training command below each heading with a number of hours."""
    text = page.read_text(encoding="utf-8")
    for hours, section in re.findall(r"(?ms)^## ([\d,]+) (?:hours?|小时)[^\n]*\n(.*?)(?=^## |\Z)", text):
        command = re.search(r"(?m)^nest-ssl train ([^#]*?)$", section.replace("\\\n", " "))
        assert command is not None, f"{page}: no train command below '{hours} hours'"
        line = parse_command_line(shlex.split(command[1]), preset_folder(), "nest-ssl train")
        config = OmegaConf.to_container(load_config(line), resolve=True)
        yield Recipe(int(hours.replace(",", "")), config)  # type: ignore[arg-type]


def values_row(recipe: Recipe) -> str:
    """Return the values that the command sets."""
    model, trainer = recipe.config["model"], recipe.config["trainer"]
    encoder, masking, optim = model["encoder"], model["masking"], model["optim"]
    shape = f"{encoder['n_layers']} x {encoder['d_model']}, {recipe.parameters / 1e6:.0f} M"
    batch = f"{recipe.batch_seconds:g} s" + (f" x {recipe.gpus}" if recipe.gpus > 1 else "")
    mask = f"{masking['block_size']}, {masking['mask_prob']:g}"
    rate = f"{optim['lr']:g} ({recipe.peak_rate:.1e})"
    steps = f"{optim['sched']['warmup_steps']:,} | {trainer['max_steps']:,} | {recipe.passes:.0f}"
    return f"| {recipe.hours:,} | {shape} | {model['num_classes']} | {batch} | {mask} | {rate} | {steps} |"


def costs_row(recipe: Recipe) -> str:
    """Return the estimated costs of the command."""
    times = " | ".join(f"{_rounded(recipe.hours_of_training(card))} h" for card in PEAK)
    return (
        f"| {recipe.hours:,} | {recipe.gpus} | {recipe.flops_per_second / 1e9:.1f} GFLOP | "
        f"{recipe.memory / 1e9:.0f} GB | {times} |"
    )


def _rounded(hours: float) -> str:
    """Round to two digits."""
    return f"{float(f'{hours:.2g}'):g}"


if __name__ == "__main__":
    found = list(recipes())
    print("\n".join(map(values_row, found)), "\n".join(map(costs_row, found)), sep="\n\n")
