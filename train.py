"""Pre-train a NEST encoder: `python train.py [--config-name NAME] [key=value ...]`."""

import sys
from pathlib import Path

from nest_ssl.training.run import main

if __name__ == "__main__":
    sys.exit(main(config_dir=Path(__file__).resolve().parent / "config"))
