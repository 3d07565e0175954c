"""Pre-train a NEST encoder: `python train.py [--config-name NAME] [key=value ...]`."""

import os
import sys
from pathlib import Path

# Before torch is loaded: threads that wait by spinning, as OpenMP's do unless told otherwise, cost a factor of ten and
# more on a machine that has anything else to do.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

try:
    from nest_ssl.training.run import main
except ModuleNotFoundError as error:
    sys.exit(f"error: {error.name} is not installed here; activate .venv, or type: python start.py train ...")

if __name__ == "__main__":
    sys.exit(main(config_dir=Path(__file__).resolve().parent / "config"))
