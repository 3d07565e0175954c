#!/usr/bin/env python3
"""Compare our model's parameters with NeMo's, name by name and shape by shape.

python tools/compare_with_nemo.py                          # Large; NeMo in this environment or in NEST_NEMO_PYTHON
python tools/compare_with_nemo.py +size=small --nemo-python PATH
python tools/compare_with_nemo.py --archive model.nemo     # without NeMo: against an archive it saved
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # also works where the package is not installed

from nest_ssl.alignment import parameters  # noqa: E402
from nest_ssl.errors import NestError  # noqa: E402
from nest_ssl.training.config import compose  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="change a key of the configuration")
    parser.add_argument("--config-name", default="nest_fast-conformer", help="file in config/ (default: %(default)s)")
    parser.add_argument("--nemo-python", default=parameters.find_nemo(), help="an interpreter that has NeMo")
    parser.add_argument("--archive", type=Path, help="a .nemo file to compare with, in place of NeMo itself")
    parser.add_argument("--list", action="store_true", help="list every tensor")
    options = parser.parse_intermixed_args()
    try:
        cfg = compose(ROOT / "config", options.config_name, options.overrides).model
        ours = parameters.our_parameters(cfg)
        if options.archive is not None:
            theirs = parameters.archive_parameters(options.archive)
        elif options.nemo_python:
            theirs = parameters.nemo_parameters(cfg, options.nemo_python)
        else:
            raise NestError("NeMo is not installed here; give --nemo-python, or --archive with a .nemo file")
    except NestError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    comparison = parameters.compare_parameters(ours, theirs)
    print(parameters.report(comparison, options.list))
    return int(bool(comparison.differences))


if __name__ == "__main__":
    sys.exit(main())
