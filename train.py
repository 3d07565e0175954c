"""Pre-train a NEST encoder: `python train.py [--config-name NAME] [key=value ...]`."""

import sys
from pathlib import Path

try:
    from nest_ssl.training.run import main
except ModuleNotFoundError as error:
    sys.exit(f"error: {error.name} is not installed here; activate .venv, or type: python start.py train ...")

if __name__ == "__main__":
    sys.exit(main(config_dir=Path(__file__).resolve().parent / "config"))
