#!/usr/bin/env python3
"""Write docs/configuration*.md and docs/configuration*.schema.json: every key of nest_ssl/config/schema."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # also works where the package is not installed

try:
    from nest_ssl.apps.reference.pages import write_pages
    from nest_ssl.errors import NestError
except ModuleNotFoundError as error:
    print(
        f"error: {error.name} is not installed here; activate .venv first (python start.py makes it)", file=sys.stderr
    )
    sys.exit(2)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "docs", help="folder (default: %(default)s)")
    try:
        for page in write_pages(parser.parse_args().output):
            print(f"wrote {page}")
    except NestError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
