"""Pre-train as train.py does, and record every step that `save_steps` names, for comparison with NeMo.

python train_with_saver.py trainer.max_steps=1 output_dir=./saved_nest_outputs seed=42 save_steps=0
"""

import sys
from pathlib import Path

try:
    from nest_ssl.alignment.nest_side import main
except ModuleNotFoundError as error:
    sys.exit(f"error: {error.name} is not installed here; activate .venv first (python start.py makes it)")

if __name__ == "__main__":
    sys.exit(main(config_dir=Path(__file__).resolve().parent / "config"))
