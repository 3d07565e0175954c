"""One run at a time in a folder: a second one would move and remove the checkpoints of the first."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from nest_ssl.errors import NestError, one_line
from nest_ssl.folder_lock import lock_folder
from nest_ssl.training.checkpointing.checkpoint_files import checkpoint_to_continue, newest_last
from nest_ssl.training.experiment import Experiment

_ADVICE = "wait for its end, or give this run a folder of its own (exp_manager.name, exp_dir)"


@contextlib.contextmanager
def hold_run_folders(experiment: Experiment | None) -> Iterator[None]:
    """Hold the run's folder, and that of its checkpoints if it is another; for the first process of a run alone.

    What was planned before must still be so: another start of the run may have ended in between.
    """
    if experiment is None:
        yield
        return
    with contextlib.ExitStack() as held:
        for folder in _folders(experiment):
            try:
                held.enter_context(lock_folder(folder, _ADVICE))
            except OSError as error:
                raise NestError(f"{folder}: the run's folder cannot be written: {one_line(error)}") from error
        _refuse_outdated_plan(experiment)
        yield


def _folders(experiment: Experiment) -> list[Path]:
    checkpoints = experiment.checkpoints
    within = checkpoints.resolve().is_relative_to(experiment.folder.resolve())
    return [experiment.folder] if within else [experiment.folder, checkpoints]


def _refuse_outdated_plan(experiment: Experiment) -> None:
    planned, newest = experiment.resume_from, newest_last(experiment.checkpoints)
    replaced = planned is not None and not planned.is_file()
    if experiment.settings.resume_if_exists and newest is not None and newest != planned:
        replaced = checkpoint_to_continue(experiment.checkpoints) != planned  # the newest may be damaged
    if replaced:
        raise NestError(f"{experiment.folder}: another start of this run has ended just now; type the command again")
