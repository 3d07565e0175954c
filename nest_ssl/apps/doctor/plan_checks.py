"""What a run of a configuration would change or refuse here, and settings that do harm."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from nest_ssl.apps.doctor.finding import Finding, gigabytes
from nest_ssl.apps.doctor.machine_facts import Facts
from nest_ssl.apps.doctor.plan import RunPlan
from nest_ssl.config.machine import FSDP, describe
from nest_ssl.data.inspection.bandwidth import estimate_narrow_band

_MEASURED = 64  # files whose bandwidth is estimated
_SIGNALS = 3  # in a batch: clean, noise, mixed; four bytes a sample


def check_plan(plan: RunPlan, facts: Facts) -> list[Finding]:
    """What a run would change or refuse, and settings that do harm here."""
    adjusted = [Finding("adjusted", "note", line) for line in describe(plan.adjustments)]
    return [*plan.problems, *adjusted, *(finding for check in _CHECKS for finding in check(plan, facts))]


def _check_data(plan: RunPlan, facts: Facts) -> Iterator[Finding]:
    durations = plan.durations()
    if not len(durations):
        return
    lengths = f"{durations.min():.3g} to {durations.max():.3g} s, {np.median(durations):.3g} s in the middle"
    yield Finding("data", "ok", f"{len(durations):,} utterances, {durations.sum() / 3600:.3g} hours: {lengths}")
    missing = [name for name in plan.files() if not Path(name).is_file()]
    if missing:
        count = len(plan.files())
        yield Finding(
            *("data", "problem" if len(missing) == count else "warning"),
            f"{len(missing)} of {count} audio files looked for are not there, such as {missing[0]}",
            "nest-ssl data check names all of them; paths in a manifest are relative to its folder",
        )


def _check_bandwidth(plan: RunPlan, facts: Facts) -> Iterator[Finding]:
    if plan.train_ds.get("is_tarred") or not plan.manifests:
        return
    rate = plan.train_ds.get("sample_rate") or plan.cfg.model.get("sample_rate") or 16000
    found = estimate_narrow_band(plan.manifests, rate, _MEASURED)
    if found.lines > 1:
        yield Finding(
            *("bandwidth", "warning", f"an estimate from {found.measured} files: {found}"),
            "nest-ssl data check with --min-bandwidth names all of them, and leaves them out with --write-clean",
        )


def _check_workers(plan: RunPlan, facts: Facts) -> Iterator[Finding]:
    workers = plan.train_ds.get("num_workers") or 0
    if workers > facts.usable_cores:
        yield Finding(
            *("workers", "warning", f"model.train_ds.num_workers={workers} on {facts.usable_cores:g} cores"),
            f"More processes than cores: model.train_ds.num_workers={max(1, int(facts.usable_cores) - 1)} at most",
        )
    elif workers and facts.start_method != "fork" and not plan.train_ds.get("persistent_workers"):
        yield Finding(
            *("workers", "note", f"{workers} are started by {facts.start_method}, anew for every epoch"),
            "model.train_ds.persistent_workers=true starts them once",
        )


def check_shared_memory(plan: RunPlan, facts: Facts, **changes: Any) -> Iterator[Finding]:
    """Whether the batches of all workers find room; `changes` are options of `train_ds`."""
    data = {**plan.train_ds, **changes}
    workers = data.get("num_workers") or 0
    if facts.shared_memory is None or not workers:
        return
    needed = _shared_bytes(plan, data, workers)
    everybody = workers if plan.processes == 1 else f"{plan.processes} x {workers}"
    found = f"/dev/shm has {gigabytes(facts.shared_memory)} free, {everybody} workers fill up to {gigabytes(needed)}"
    if needed > facts.shared_memory:
        gigabyte = max(1, math.ceil(2 * needed / 2**30))
        yield Finding(
            *("shared memory", "warning", found),
            f"docker run --shm-size={gigabyte}g (or --ipc=host), fewer workers, or model.train_ds.num_workers=0",
        )
    else:
        yield Finding("shared memory", "ok", found)


def workers_with_room(plan: RunPlan, facts: Facts, most: int, **changes: Any) -> int:
    """How many workers, of `most`, shared memory has room for: with one more, a worker would die by a bus error."""
    data = {**plan.train_ds, **changes}
    free = math.inf if facts.shared_memory is None else facts.shared_memory
    return next((count for count in range(most, 0, -1) if _shared_bytes(plan, data, count) <= free), 0)


def _shared_bytes(plan: RunPlan, data: dict[str, Any], workers: int) -> int:
    """Batches wait in shared memory: for each worker those that it prepares in advance, and the one in use."""
    durations = plan.durations()
    longest = float(durations.max()) if len(durations) else float(data.get("max_duration") or 20)
    seconds = data.get("batch_duration") or (data.get("batch_size") or 1) * longest
    batch = _SIGNALS * 4 * seconds * (data.get("sample_rate") or 16000)
    return int(plan.processes * batch * (workers * (data.get("prefetch_factor") or 2) + 1))


def _check_windows_ddp(plan: RunPlan, facts: Facts) -> Iterator[Finding]:
    strategy = str(OmegaConf.select(plan.cfg, "trainer.strategy") or "auto")
    if facts.system == "Windows" and plan.processes > 1 and strategy == FSDP:
        yield Finding(
            *("strategy", "problem", "trainer.strategy=fsdp needs NCCL, which Windows does not have"),
            "trainer.strategy=auto",
        )


_CHECKS: tuple[Callable[[RunPlan, Facts], Iterator[Finding]], ...] = (
    *(_check_data, _check_bandwidth, _check_workers, check_shared_memory, _check_windows_ddp),
)
