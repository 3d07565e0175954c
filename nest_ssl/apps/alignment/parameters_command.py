"""`tools/compare_with_nemo.py`: compare our model's parameters with NeMo's, by name and shape."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from nest_ssl.apps.alignment import parameters
from nest_ssl.apps.alignment.parameters import ParameterComparison
from nest_ssl.config.command_line import DEFAULT_CONFIG
from nest_ssl.config.compose import compose
from nest_ssl.environments import installed_nemo
from nest_ssl.errors import NestError
from nest_ssl.printable import say, say_lines

SAME, DIFFERENT, NOTHING_COMPARED = 0, 1, 2


def main(argv: Sequence[str] | None = None, description: str | None = __doc__) -> int:
    """Return 0 if both have the same tensors, 1 if they differ, 2 if nothing could be compared."""
    from nest_ssl.config.presets import preset_folder

    options, folder = _parse(argv, description), preset_folder()
    try:
        if options.all_sizes:
            comparisons = _compare_all_sizes(options, folder)
            say_lines(parameters.table_of_sizes(comparisons))
            return DIFFERENT if any(found.differences for found in comparisons.values()) else SAME
        comparison = _compare_one(options, folder)
    except (NestError, OSError) as error:
        say(f"error: {error}", error=True)
        return NOTHING_COMPARED
    say_lines(parameters.report(comparison, options.list))
    return DIFFERENT if comparison.differences else SAME


def _compare_one(options: argparse.Namespace, folder: Path) -> ParameterComparison:
    cfg = compose(folder, options.config_name, options.overrides).model
    ours = parameters.our_parameters(cfg)
    if options.archive is not None:
        return parameters.compare_parameters(ours, parameters.archive_parameters(options.archive))
    if options.recording is not None:
        return parameters.compare_parameters(ours, parameters.recorded_parameters(options.recording))
    (theirs,) = parameters.nemo_parameters([cfg], _nemo_python(options))
    return parameters.compare_parameters(ours, theirs)


def _compare_all_sizes(options: argparse.Namespace, folder: Path) -> dict[str, ParameterComparison]:
    """Compare every preset size, the smallest first."""
    sizes = [path.stem for path in (folder / "size").glob("*.yaml")]
    cfgs = [compose(folder, options.config_name, [f"+size={size}", *options.overrides]).model for size in sizes]
    theirs = parameters.nemo_parameters(cfgs, _nemo_python(options))
    found = {
        size: parameters.compare_parameters(parameters.our_parameters(cfg), inventory)
        for size, cfg, inventory in zip(sizes, cfgs, theirs, strict=True)
    }
    return dict(sorted(found.items(), key=lambda item: sum(tensor.count for tensor in item[1].ours.values())))


def _nemo_python(options: argparse.Namespace) -> str:
    python = options.nemo_python or installed_nemo()
    if python is None:
        raise NestError("NeMo is not installed here; give --nemo-python, or --archive with a .nemo file")
    return str(python)


def _parse(argv: Sequence[str] | None, description: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="change a key of the configuration")
    parser.add_argument("--config-name", default=DEFAULT_CONFIG, help="file in config/ (default: %(default)s)")
    parser.add_argument("--nemo-python", help="an interpreter that has NeMo")
    against = parser.add_mutually_exclusive_group()
    against.add_argument("--archive", type=Path, help="compare with a .nemo file instead of NeMo")
    against.add_argument("--recording", type=Path, help="compare with the model of a recording instead of NeMo")
    against.add_argument("--all-sizes", action="store_true", help="compare every preset size")
    parser.add_argument("--list", action="store_true", help="list every tensor")
    return parser.parse_intermixed_args(argv)


if __name__ == "__main__":
    sys.exit(main())
