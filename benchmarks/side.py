"""Make one measurement with one implementation; the same script runs in both environments.

    python -m benchmarks.side IMPLEMENTATION JOB.json RESULT.json STARTED          IMPLEMENTATION: nemo | nest_ssl

STARTED is the time (seconds since the epoch) at which this process was started. An exception is a result too.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

from benchmarks.job import Job


def main(implementation: str, job_path: str, result_path: str, started: str) -> None:
    warnings.filterwarnings("ignore")
    job = Job(**json.loads(Path(job_path).read_text(encoding="utf-8")))
    _limit_memory()
    if implementation == "nest_ssl":
        from nest_ssl.threads import sleep_soon

        sleep_soon()  # as train.py does
    result: dict[str, Any]
    try:
        from benchmarks import measure  # imports torch: its time counts as time until the first step

        result = measure.KINDS[job.kind](implementation, job, float(started))
        foreign = "nest_ssl.model" if implementation == "nemo" else "nemo"  # nest_ssl.memory measures NeMo too
        if foreign in sys.modules:
            raise RuntimeError(f"the side of {implementation} imported {foreign}, so this measurement is invalid")
    except Exception as error:  # a failure is a row of the table
        traceback.print_exc()
        result = {"error": f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"}
    result["process_seconds"] = time.time() - float(started)
    Path(result_path).write_text(json.dumps(result), encoding="utf-8")


def _limit_memory() -> None:
    """Limit the memory of this process, because a system without memory kills a process of its own choice."""
    memory = Path("/proc/meminfo")
    try:
        import resource  # not on Windows
    except ImportError:
        return
    if not memory.is_file():
        return
    lines = dict(line.split(":") for line in memory.read_text(encoding="utf-8").splitlines())
    available = int(lines["MemAvailable"].split()[0]) * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (available, available))


if __name__ == "__main__":
    main(*sys.argv[1:])
