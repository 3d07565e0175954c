#!/usr/bin/env python3
"""Compare recordings of NeMo and nest_ssl: structure, forward output, loss, gradients, layers.

python tools/compare_nemo_nest_outputs.py --nemo_output_dir ./saved_nemo_outputs \
    --nest_output_dir ./saved_nest_outputs --step 0 --atol 1e-5 --rtol 1e-5 --save_comparison ./comparison_results.pkl
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also works where the package is not installed

try:
    from nest_ssl.apps.alignment.compare_command import main
except ModuleNotFoundError as error:
    print(
        f"error: {error.name} is not installed here; activate .venv first (python start.py makes it)", file=sys.stderr
    )
    sys.exit(2)

if __name__ == "__main__":
    sys.exit(main())
