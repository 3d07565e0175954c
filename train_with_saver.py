"""Pre-train as train.py does, and record every step that `save_steps` names, for comparison with NeMo.

python train_with_saver.py trainer.max_steps=1 output_dir=./saved_nest_outputs seed=42 save_steps=0
"""

import sys
from pathlib import Path

from nest_ssl.errors import FAILED
from nest_ssl.threads import sleep_soon

CONFIG = Path(__file__).resolve().parent / "config"


def main() -> int:
    sleep_soon()
    try:
        if not {"-h", "--help"}.isdisjoint(sys.argv):
            from nest_ssl.config.command_line import parse_command_line

            parse_command_line(sys.argv[1:], CONFIG, "train_with_saver.py")  # as in train.py
        from nest_ssl.apps.alignment.nest_side import main as train_and_record
    except ModuleNotFoundError as error:
        print(
            f"error: {error.name} is not installed here; activate .venv first (python start.py makes it)",
            file=sys.stderr,
        )
        return FAILED
    return train_and_record(config_dir=CONFIG)


if __name__ == "__main__":
    sys.exit(main())
