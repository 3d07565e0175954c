"""Compare the tensors of our model and NeMo's: names, shapes, types and counts."""

from __future__ import annotations

import json
import math
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from nest_ssl.apps.alignment.recorder import dtype_name, structure_of
from nest_ssl.apps.alignment.recording import Recording
from nest_ssl.checkpoint import load_nemo
from nest_ssl.errors import NestError
from nest_ssl.models import EncDecDenoiseMaskedTokenPredModel

_NEMO_SIDE = Path(__file__).with_name("nemo_parameters.py")
_SHOWN = 10  # differences in full
_ALL, _LEARNING = "all parameters", "trainable"


@dataclass(frozen=True)
class TensorKind:
    """A tensor's shape, type and kind: trainable, frozen or buffer, or unknown (from an archive)."""

    shape: tuple[int, ...]
    dtype: str
    kind: str | None = None

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    def __str__(self) -> str:
        return f"{list(self.shape)} {self.dtype}" + (f" {self.kind}" if self.kind else "")


Inventory = Mapping[str, TensorKind]


@dataclass(frozen=True)
class ParameterComparison:
    """The tensors of both models, and their differences."""

    ours: Inventory
    theirs: Inventory
    differences: list[str] = field(default_factory=list)


def our_parameters(cfg: DictConfig) -> Inventory:
    """Return the tensors of our model of a `model` node, without allocating them."""
    with torch.device("meta"):
        model = EncDecDenoiseMaskedTokenPredModel(cfg=cfg)
    return _inventory(structure_of(model)["tensors"])


def archive_parameters(path: Path) -> Inventory:
    """Return the tensors in a `.nemo` archive."""
    tensors = load_nemo(path).state_dict.items()
    return {name: TensorKind(tuple(tensor.shape), dtype_name(tensor)) for name, tensor in tensors}


def recorded_parameters(folder: Path) -> Inventory:
    """Return the tensors of the model of a recording."""
    return _inventory(Recording(folder).structure["tensors"])


def nemo_parameters(cfgs: Sequence[DictConfig], python: str) -> list[Inventory]:
    """Return the tensors of NeMo's models of the same nodes, built by an interpreter that has NeMo."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"model_{index}.yaml" for index in range(len(cfgs))]
        for cfg, path in zip(cfgs, paths, strict=True):
            plain: Any = OmegaConf.to_container(cfg, resolve=True)
            without_data = {name: value for name, value in plain.items() if not str(name).endswith("_ds")}
            path.write_text(OmegaConf.to_yaml(OmegaConf.create(without_data)), encoding="utf-8")
        command = [python, str(_NEMO_SIDE), *map(str, paths)]
        run = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if run.returncode:
        reason = run.stderr.strip().splitlines()[-1:] or ["no message"]
        raise NestError(f"{python}: NeMo could not build the model: {reason[0]}")
    return [_inventory(tensors) for tensors in json.loads(run.stdout.splitlines()[-1])]


def _inventory(tensors: Mapping[str, Any]) -> Inventory:
    return {name: TensorKind(tuple(t["shape"]), t["dtype"], t["kind"]) for name, t in tensors.items()}


def compare_parameters(ours: Inventory, theirs: Inventory) -> ParameterComparison:
    """Find every tensor that is missing or different on one side; an archive does not say which are trainable."""
    theirs = {
        name: replace(t, kind=t.kind or (ours[name].kind if name in ours else None)) for name, t in theirs.items()
    }
    differences = [f"{name}: only in NeMo's, {theirs[name]}" for name in theirs if name not in ours]
    differences += [f"{name}: only in ours, {ours[name]}" for name in ours if name not in theirs]
    for name in ours.keys() & theirs.keys():
        if ours[name] != theirs[name]:
            differences.append(f"{name}: ours {ours[name]}, NeMo's {theirs[name]}")
    return ParameterComparison(ours, theirs, sorted(differences))


def report(comparison: ParameterComparison, every_tensor: bool = False) -> str:
    """Return totals by module of both sides, the first differences, and the verdict."""
    ours, theirs = _totals(comparison.ours), _totals(comparison.theirs)
    lines = [f"{'module':<24}{'ours':>16}{'NeMo':>16}"]
    lines += [f"{name:<24}{ours[name]:>16,}{theirs[name]:>16,}" for name in dict.fromkeys([*ours, *theirs])]
    if every_tensor:
        lines += ["", *(f"{name}  {kind}" for name, kind in comparison.ours.items())]
    lines += ["", *comparison.differences[:_SHOWN]]
    if comparison.differences:
        lines.append(f"DIFFERENT: {len(comparison.differences)} of {len(comparison.theirs)} tensors")
    else:
        lines.append(f"THE SAME: {len(comparison.ours)} tensors, equal in name, shape and type")
    return "\n".join(lines)


def table_of_sizes(comparisons: Mapping[str, ParameterComparison]) -> str:
    """Return one line per size: parameters of both sides, trainable ones, and whether all tensors agree."""
    lines = [f"{'size':<12}{'ours':>16}{'NeMo':>16}{'trainable':>16}  tensors"]
    for name, comparison in comparisons.items():
        ours, theirs = _totals(comparison.ours), _totals(comparison.theirs)
        same = f"{len(comparison.ours)} the same" if not comparison.differences else "DIFFERENT"
        counts = f"{ours[_ALL]:>16,}{theirs[_ALL]:>16,}{ours[_LEARNING]:>16,}"
        lines.append(f"{name:<12}{counts}  {same}")
    return "\n".join([*lines, *(line for c in comparisons.values() for line in c.differences[:_SHOWN])])


def _totals(inventory: Inventory) -> Counter[str]:
    """Count the numbers in each top-level module, in all parameters, and in the trainable ones."""
    totals: Counter[str] = Counter()
    for name, tensor in inventory.items():
        if tensor.kind != "buffer":
            totals[name.partition(".")[0]] += tensor.count
    modules = list(totals)
    totals[_ALL] = sum(totals[name] for name in modules)
    totals[_LEARNING] = sum(tensor.count for tensor in inventory.values() if tensor.kind == "trainable")
    return totals
