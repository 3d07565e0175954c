"""What our model and NeMo's are made of, tensor by tensor: names, shapes, types, and how many numbers that is."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from omegaconf import DictConfig, OmegaConf

from nest_ssl.checkpoint import load_nemo
from nest_ssl.errors import NestError
from nest_ssl.models import EncDecDenoiseMaskedTokenPredModel

_NEMO_SIDE = Path(__file__).with_name("nemo_parameters.py")
_SHOWN = 10  # differences in full


@dataclass(frozen=True)
class TensorKind:
    """Everything about a tensor but its values; `kind` is trainable, frozen or buffer, unknown in an archive."""

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
    """Two inventories side by side."""

    ours: Inventory
    theirs: Inventory
    differences: list[str] = field(default_factory=list)


def our_parameters(cfg: DictConfig) -> Inventory:
    """The tensors of our model of a `model` node; nothing is allocated, so the largest size takes no memory."""
    with torch.device("meta"):
        model = EncDecDenoiseMaskedTokenPredModel(cfg=cfg)
    kinds = {name: "trainable" if p.requires_grad else "frozen" for name, p in model.named_parameters()}
    return {name: _kind(tensor, kinds.get(name, "buffer")) for name, tensor in model.state_dict().items()}


def archive_parameters(path: Path) -> Inventory:
    """The tensors in a `.nemo` archive."""
    return {name: _kind(tensor, None) for name, tensor in load_nemo(path).state_dict.items()}


def nemo_parameters(cfg: DictConfig, python: str) -> Inventory:
    """The tensors of NeMo's model of the same node, built by an interpreter that has NeMo."""
    plain = OmegaConf.to_container(cfg, resolve=True)
    assert isinstance(plain, dict)
    without_data = {name: value for name, value in plain.items() if not str(name).endswith("_ds")}
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "model.yaml"
        config.write_text(OmegaConf.to_yaml(OmegaConf.create(without_data)), encoding="utf-8")
        run = subprocess.run([python, str(_NEMO_SIDE), str(config)], capture_output=True, text=True, errors="replace")
    if run.returncode:
        reason = run.stderr.strip().splitlines()[-1:] or ["no message"]
        raise NestError(f"{python}: NeMo could not build the model: {reason[0]}")
    tensors = json.loads(run.stdout.splitlines()[-1])
    return {name: TensorKind(tuple(t["shape"]), t["dtype"], t["kind"]) for name, t in tensors.items()}


def find_nemo() -> str | None:
    """An interpreter with NeMo: this one, or the one that NEST_NEMO_PYTHON names."""
    return sys.executable if importlib.util.find_spec("nemo") else os.environ.get("NEST_NEMO_PYTHON")


def compare_parameters(ours: Inventory, theirs: Inventory) -> ParameterComparison:
    """Every tensor that one side lacks or has differently; an archive does not say which of its tensors learn."""
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
    """Totals by module, both sides, then the verdict and the first differences."""
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


def _totals(inventory: Inventory) -> Counter[str]:
    """Numbers in each top-level module, then in all parameters, then in those that learn."""
    totals: Counter[str] = Counter()
    for name, tensor in inventory.items():
        if tensor.kind != "buffer":
            totals[name.partition(".")[0]] += tensor.count
    modules = list(totals)
    totals["all parameters"] = sum(totals[name] for name in modules)
    totals["trainable"] = sum(tensor.count for tensor in inventory.values() if tensor.kind == "trainable")
    return totals


def _kind(tensor: torch.Tensor, kind: str | None) -> TensorKind:
    return TensorKind(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), kind)
