"""`tools/compare_with_nemo.py`: compare the tensors of our model with NeMo's: names, shapes, types and counts."""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from nest_ssl.apps.alignment.recorder.files import dtype_name, structure_of
from nest_ssl.apps.alignment.sections import Structure, compare_structure, parameter_count
from nest_ssl.checkpoint import load_nemo
from nest_ssl.config.command_line import DEFAULT_CONFIG, preset_folder
from nest_ssl.config.compose import compose
from nest_ssl.environments import installed_nemo
from nest_ssl.errors import FAILED, NestError
from nest_ssl.models import EncDecDenoiseMaskedTokenPredModel
from nest_ssl.printable import say, say_lines

_PRINT_TENSORS = "import sys; sys.path.append(sys.argv[1]); import nemo_side; nemo_side.print_tensors(sys.argv[2:])"
_SHOWN = 10  # differences in full
_ALL, _TRAINABLE = "all parameters", "trainable"


def main(argv: Sequence[str] | None = None, description: str | None = __doc__) -> int:
    """Return 0 if both have the same tensors, 1 if they differ, 2 if nothing could be compared."""
    options, folder = _parse(argv, description), preset_folder()
    sizes = [path.stem for path in (folder / "size").glob("*.yaml")] if options.all_sizes else []
    try:
        overrides = [[f"+size={size}", *options.overrides] for size in sizes] or [options.overrides]
        cfgs = [compose(folder, options.config_name, changes).model for changes in overrides]
        ours = [our_parameters(cfg) for cfg in cfgs]
        if options.archive is not None:
            theirs = [archive_parameters(options.archive, ours[0])]
        else:
            python = options.nemo_python or installed_nemo()
            if python is None:
                raise NestError("NeMo is not installed here; give --nemo-python, or --archive with a .nemo file")
            theirs = nemo_parameters(cfgs, str(python))
    except (NestError, OSError) as error:
        say(f"error: {error}", error=True)
        return FAILED
    say_lines(table_of_sizes(sizes, ours, theirs) if sizes else report(ours[0], theirs[0], options.list))
    return int(ours != theirs)


def our_parameters(cfg: DictConfig) -> Structure:
    """Return the tensors of our model of a `model` node, without allocating them."""
    with torch.device("meta"):
        tensors: Structure = structure_of(EncDecDenoiseMaskedTokenPredModel(cfg=cfg))["tensors"]
    return tensors


def archive_parameters(path: Path, ours: Structure) -> Structure:
    """Return the tensors in a `.nemo` archive; it does not say which are trainable, so their kinds are ours."""
    return {
        name: {
            "shape": list(tensor.shape),
            "dtype": dtype_name(tensor),
            "kind": ours[name]["kind"] if name in ours else "of unknown kind",
        }
        for name, tensor in load_nemo(path).state_dict.items()
    }


def nemo_parameters(cfgs: Sequence[DictConfig], python: str) -> list[Structure]:
    """Return the tensors of NeMo's models of the same nodes, built by an interpreter that has NeMo."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"model_{index}.yaml" for index in range(len(cfgs))]
        for cfg, path in zip(cfgs, paths, strict=True):
            plain: Any = OmegaConf.to_container(cfg, resolve=True)
            without_data = {name: value for name, value in plain.items() if not str(name).endswith("_ds")}
            path.write_text(OmegaConf.to_yaml(OmegaConf.create(without_data)), encoding="utf-8")
        command = [python, "-c", _PRINT_TENSORS, str(Path(__file__).parent), *map(str, paths)]
        run = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if run.returncode:
        reason = run.stderr.strip().splitlines()[-1:] or ["no message"]
        raise NestError(f"{python}: NeMo could not build the model: {reason[0]}")
    models: list[Structure] = json.loads(run.stdout.splitlines()[-1])
    return models


def report(ours: Structure, theirs: Structure, every_tensor: bool = False) -> str:
    """Return totals by module of both sides, the first differences, and the verdict."""
    our_totals, their_totals = _totals(ours), _totals(theirs)
    lines = [f"{'module':<24}{'ours':>16}{'NeMo':>16}"]
    for name in dict.fromkeys([*our_totals, *their_totals]):
        lines.append(f"{name:<24}{our_totals[name]:>16,}{their_totals[name]:>16,}")
    if every_tensor:
        lines += ["", *(f"{name}  {t['shape']} {t['dtype']} {t['kind']}" for name, t in ours.items())]
    differences = _differences(ours, theirs)
    lines += ["", *differences[:_SHOWN]]
    if differences:
        lines.append(f"DIFFERENT: {len(differences)} of {len(theirs)} tensors")
    else:
        lines.append(f"THE SAME: {len(ours)} tensors, equal in name, shape and type")
    return "\n".join(lines)


def table_of_sizes(sizes: Sequence[str], ours: Sequence[Structure], theirs: Sequence[Structure]) -> str:
    """Return one line per size, the smallest first: parameters of both sides, trainable ones, and whether all agree."""
    lines = [f"{'size':<12}{'ours':>16}{'NeMo':>16}{'trainable':>16}  tensors"]
    differences = []
    models = sorted(zip(sizes, ours, theirs, strict=True), key=lambda model: parameter_count(model[1]))
    for size, our_tensors, their_tensors in models:
        totals, found = _totals(our_tensors), _differences(our_tensors, their_tensors)
        differences += found[:_SHOWN]
        counts = f"{totals[_ALL]:>16,}{parameter_count(their_tensors):>16,}{totals[_TRAINABLE]:>16,}"
        lines.append(f"{size:<12}{counts}  {'DIFFERENT' if found else f'{len(our_tensors)} the same'}")
    return "\n".join([*lines, *differences])


def _differences(ours: Structure, theirs: Structure) -> list[str]:
    return [f"{item.name}: {item.note}" for item in compare_structure(theirs, ours).mismatches]


def _totals(tensors: Structure) -> Counter[str]:
    """Count the numbers in each top-level module, in all parameters, and in the trainable ones."""
    totals: Counter[str] = Counter()
    for name, tensor in tensors.items():
        totals[name.partition(".")[0]] += parameter_count({name: tensor})
    trainable = {name: tensor for name, tensor in tensors.items() if tensor["kind"] == "trainable"}
    return +totals + Counter({_ALL: parameter_count(tensors), _TRAINABLE: parameter_count(trainable)})


def _parse(argv: Sequence[str] | None, description: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="change a key of the configuration")
    parser.add_argument("--config-name", default=DEFAULT_CONFIG, help="file in config/ (default: %(default)s)")
    parser.add_argument("--nemo-python", help="an interpreter that has NeMo")
    against = parser.add_mutually_exclusive_group()
    against.add_argument("--archive", type=Path, help="compare with a .nemo file instead of NeMo")
    against.add_argument("--all-sizes", action="store_true", help="compare every preset size")
    parser.add_argument("--list", action="store_true", help="list every tensor")
    return parser.parse_intermixed_args(argv)
