#!/usr/bin/env python3
"""Compare our model's parameters with NeMo's, name by name and shape by shape.

python tools/compare_with_nemo.py                            # Large; NeMo in this environment or in NEST_NEMO_PYTHON
python tools/compare_with_nemo.py --all-sizes                # every preset of config/size
python tools/compare_with_nemo.py +size=small --nemo-python PATH
python tools/compare_with_nemo.py --archive model.nemo       # without NeMo: against an archive it saved
python tools/compare_with_nemo.py --recording saved_nemo_outputs   # or against what its training script recorded
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # also works where the package is not installed

try:
    from nest_ssl.alignment import parameters
    from nest_ssl.environments import installed_nemo
    from nest_ssl.errors import NestError
    from nest_ssl.training.config import compose
except ModuleNotFoundError as error:
    sys.exit(f"error: {error.name} is not installed here; activate .venv first (python start.py makes it)")

CONFIG = ROOT / "config"


def main() -> int:
    options = parse()
    try:
        if options.all_sizes:
            comparisons = compare_all_sizes(options)
            print(parameters.table_of_sizes(comparisons))
            return int(any(comparison.differences for comparison in comparisons.values()))
        comparison = compare_one(options)
    except NestError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(parameters.report(comparison, options.list))
    return int(bool(comparison.differences))


def compare_one(options: argparse.Namespace) -> parameters.ParameterComparison:
    cfg = compose(CONFIG, options.config_name, options.overrides).model
    ours = parameters.our_parameters(cfg)
    if options.archive is not None:
        return parameters.compare_parameters(ours, parameters.archive_parameters(options.archive))
    if options.recording is not None:
        return parameters.compare_parameters(ours, parameters.recorded_parameters(options.recording))
    (theirs,) = parameters.nemo_parameters([cfg], nemo_python(options))
    return parameters.compare_parameters(ours, theirs)


def compare_all_sizes(options: argparse.Namespace) -> dict[str, parameters.ParameterComparison]:
    sizes = [path.stem for path in (CONFIG / "size").glob("*.yaml")]
    cfgs = [compose(CONFIG, options.config_name, [f"+size={size}", *options.overrides]).model for size in sizes]
    theirs = parameters.nemo_parameters(cfgs, nemo_python(options))
    found = {
        size: parameters.compare_parameters(parameters.our_parameters(cfg), inventory)
        for size, cfg, inventory in zip(sizes, cfgs, theirs, strict=True)
    }
    return dict(sorted(found.items(), key=lambda item: sum(tensor.count for tensor in item[1].ours.values())))


def nemo_python(options: argparse.Namespace) -> str:
    python = options.nemo_python or installed_nemo()
    if python is None:
        raise NestError("NeMo is not installed here; give --nemo-python, or --archive with a .nemo file")
    return str(python)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="change a key of the configuration")
    parser.add_argument("--config-name", default="nest_fast-conformer", help="file in config/ (default: %(default)s)")
    parser.add_argument("--nemo-python", help="an interpreter that has NeMo")
    against = parser.add_mutually_exclusive_group()
    against.add_argument("--archive", type=Path, help="compare with a .nemo file, in place of NeMo itself")
    against.add_argument(
        "--recording", type=Path, help="compare with the model of a recording, in place of NeMo itself"
    )
    against.add_argument("--all-sizes", action="store_true", help="compare every preset size")
    parser.add_argument("--list", action="store_true", help="list every tensor")
    return parser.parse_intermixed_args()


if __name__ == "__main__":
    sys.exit(main())
