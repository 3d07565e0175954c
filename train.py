"""Pre-train a NEST encoder: `python train.py [--config-name NAME] [key=value ...]`."""

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

            parse_command_line(sys.argv[1:], CONFIG)  # shows the help and leaves, with nothing heavy loaded
        from nest_ssl.training.run import main as train
    except ModuleNotFoundError as error:
        print(
            f"error: {error.name} is not installed here; activate .venv, or type: python start.py train ...",
            file=sys.stderr,
        )
        return FAILED
    return train(config_dir=CONFIG)


if __name__ == "__main__":
    sys.exit(main())
