"""`tools/compare_nemo_nest_outputs.py`: compare two recordings, and print five sections and a verdict."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nest_ssl.apps.alignment.compare import Comparison, compare
from nest_ssl.apps.alignment.recorder.callback import parse_steps
from nest_ssl.apps.alignment.recorder.files import RecordingError
from nest_ssl.apps.alignment.recording import Recording
from nest_ssl.apps.alignment.sections import Tolerance
from nest_ssl.apps.alignment.text_report import text_report, verdict
from nest_ssl.atomic import atomic_write
from nest_ssl.errors import NestError
from nest_ssl.printable import say, say_lines

MATCH, MISMATCH, NOTHING_COMPARED = 0, 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0 if everything matches, 1 on any mismatch, 2 if nothing could be compared."""
    options = _parse(argv)
    try:
        tolerance = Tolerance(options.atol, options.rtol)
        nemo, nest = Recording(options.nemo_output_dir), Recording(options.nest_output_dir)
        steps = None if options.step == "all" else list(parse_steps(options.step, "--step"))
        comparison = compare(nemo, nest, steps, tolerance)
        say(f"NeMo: {_side(nemo)}")
        say(f"nest_ssl: {_side(nest)}")
        say_lines(text_report(comparison))
        if options.save_comparison is not None:
            save_comparison(comparison, options.save_comparison)
            say(f"saved {options.save_comparison}")
    except (NestError, RecordingError, OSError) as error:
        say(f"error: {error}", error=True)
        return NOTHING_COMPARED
    return MATCH if comparison.aligned else MISMATCH


def save_comparison(comparison: Comparison, path: Path) -> None:
    """Write all results as plain values: as JSON if the name ends in .json, else as a pickle."""
    results = as_plain(comparison)
    as_json = path.suffix.lower() == ".json"
    content = json.dumps(results, indent=1).encode() if as_json else pickle.dumps(results, protocol=4)
    with atomic_write(path) as temporary:
        temporary.write_bytes(content)


def as_plain(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison as tables, lists and numbers; infinity becomes None, because JSON has none."""
    return {
        "verdict": verdict(comparison),
        "aligned": comparison.aligned,
        "identical": comparison.identical,
        **{
            name: value
            for name, value in _plain(dataclasses.asdict(comparison)).items()
            if name not in ("nemo", "ours")
        },
        "versions": {side: dict(getattr(comparison, side).get("versions", {})) for side in ("nemo", "ours")},
    }


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _side(recording: Recording) -> str:
    versions = recording.metadata.get("versions", {})
    known = [f"{name} {versions[name]}" for name in ("nemo", "nest_ssl", "torch", "python") if name in versions]
    steps = ", ".join(map(str, recording.steps)) or "none"
    return f"{recording.folder} ({', '.join(known)}; steps {steps}; precision {recording.metadata.get('precision')})"


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare what NeMo and nest_ssl recorded.")
    parser.add_argument("--nemo_output_dir", type=Path, required=True, help="what NeMo's script recorded")
    parser.add_argument("--nest_output_dir", type=Path, required=True, help="what train_with_saver.py recorded")
    parser.add_argument("--step", default="0", help="steps to compare: 0, 0-4, 0,10 or all (default: %(default)s)")
    parser.add_argument("--atol", type=float, default=1e-5, help="absolute tolerance (default: %(default)g)")
    parser.add_argument("--rtol", type=float, default=1e-5, help="relative tolerance (default: %(default)g)")
    parser.add_argument("--save_comparison", type=Path, help="write all results to this .pkl or .json file")
    options = parser.parse_args(argv)
    if not (options.atol >= 0 and options.rtol >= 0):
        parser.error("--atol and --rtol must be 0 or more")
    return options
