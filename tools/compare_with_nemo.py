#!/usr/bin/env python3
"""Compare our model's parameters with NeMo's, name by name and shape by shape.

python tools/compare_with_nemo.py                            # Large; NeMo in this environment or in NEST_NEMO_PYTHON
python tools/compare_with_nemo.py --all-sizes                # every preset of config/size
python tools/compare_with_nemo.py +size=small --nemo-python PATH
python tools/compare_with_nemo.py --archive model.nemo       # without NeMo: with an archive that it saved
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also works where the package is not installed

try:
    from nest_ssl.apps.alignment.parameters import main
except ModuleNotFoundError as error:
    print(
        f"error: {error.name} is not installed here; activate .venv first (python start.py makes it)", file=sys.stderr
    )
    sys.exit(2)

if __name__ == "__main__":
    sys.exit(main(description=__doc__))
