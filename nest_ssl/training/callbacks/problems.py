"""What goes wrong without ending the run, kept in its folder: problems with audio, and steps that are not finite."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from nest_ssl.atomic import atomic_write
from nest_ssl.compat import is_accumulating
from nest_ssl.data.problems import Problem, count_by_kind
from nest_ssl.errors import NestError, one_line

_log = logging.getLogger(__name__)
PROBLEM_REPORT = "problem_audio"  # .jsonl; other ranks write .rank1.jsonl and so on
_MOST_KEPT = 10  # batches of one rank that are not finite
_Key = tuple[str, str, str]


class ProblemReport(Callback):
    """Writes a report with one line for each problem with audio; one that an earlier start listed is only counted.

    Workers find the problems and send them with the batches. A new problem is written before its batch is trained on,
    so that a crash does not lose it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file: Path | None = None
        self._records: dict[_Key, dict[str, Any]] = {}
        self._whole = False  # whether the file contains every record, in complete lines
        self._warned = False

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._note(trainer, getattr(batch, "problems", ()))

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._note(trainer, getattr(batch, "problems", ()))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._conclude(trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._conclude(trainer)

    def _note(self, trainer: Trainer, problems: Iterable[Problem]) -> None:
        for problem in problems:
            file = self._file or self._begin(trainer.global_rank)
            key = (problem.kind, problem.file, problem.line)
            if key in self._records:
                self._records[key]["count"] += 1
                continue
            when = {"epoch": trainer.current_epoch, "step": trainer.global_step, "count": 1}
            self._records[key] = {**problem._asdict(), **when}
            self._write(file, self._records[key])

    def _begin(self, rank: int) -> Path:
        """Return the path of this rank's report, after reading what it contains; only runs with problems have one."""
        self._file = self.folder / f"{PROBLEM_REPORT}{f'.rank{rank}' if rank else ''}.jsonl"
        self._records = {(record["kind"], record["file"], record["line"]): record for record in read_report(self._file)}
        if self._records:
            self._write(self._file)  # without the incomplete line that a killed run may have left
        return self._file

    def _write(self, file: Path, new: dict[str, Any] | None = None) -> None:
        """Append a new record, or rewrite the report with present counts; a full disk only logs a warning."""
        try:
            if self._whole and new is not None:
                with file.open("a", encoding="utf-8") as report:
                    report.write(json.dumps(new) + "\n")
            else:
                lines = [json.dumps(record) + "\n" for record in self._records.values()]
                with atomic_write(file) as temporary:
                    temporary.write_text("".join(lines), encoding="utf-8")
            self._whole = True
        except OSError as error:
            self._whole = False
            if not self._warned:
                _log.warning("%s could not be written: %s; the next problem will try again", file, one_line(error))
            self._warned = True

    def _conclude(self, trainer: Trainer) -> None:
        if self._file is not None:
            self._write(self._file)
        if not trainer.is_global_zero:
            return
        reports = {file: read_report(file) for file in sorted(self.folder.glob(f"{PROBLEM_REPORT}*.jsonl"))}
        every = [record for records in reports.values() for record in records]
        if every:
            kinds = count_by_kind(record["kind"] for record in every)
            _log.warning(
                "problems with audio: %s: %s; named in %s", kinds, _outcomes(every), ", ".join(map(str, reports))
            )


def _outcomes(records: Iterable[dict[str, Any]]) -> str:
    """Return how many utterances and noise files were skipped and how many were used; each counts once."""
    last = {(record["file"], record["line"]): str(record.get("outcome", "used")) for record in records}
    counts = Counter(last.values())
    skipped, other_noise = counts["skipped"], counts["drew other noise"]
    noise = f", {other_noise:,} of noise replaced by other noise" if other_noise else ""
    return f"{skipped:,} skipped, {counts['used']:,} used{noise}"


def read_report(file: Path) -> list[dict[str, Any]]:
    """Return the records of a report, without an incomplete last line; none if there is no report."""
    records = []
    with suppress(FileNotFoundError), file.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            with suppress(ValueError, RecursionError):
                record = json.loads(line)
                if isinstance(record, dict) and record.keys() >= {"kind", "file", "line", "count"}:
                    records.append(record)
    return records


class NonFiniteSteps(Callback):
    """Reports the steps that the model skipped, and stops the run after too many in a row."""

    def __init__(self, folder: Path | None, most_in_a_row: int) -> None:
        self.folder = folder
        self.most_in_a_row = most_in_a_row
        self.count = 0
        self.in_a_row = 0

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "in_a_row": self.in_a_row}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.count, self.in_a_row = state_dict["count"], state_dict["in_a_row"]

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        skipped = bool(pl_module.step_skipped)
        loss_is_finite = bool(torch.isfinite(outputs["loss"]))
        kept = (skipped or not loss_is_finite) and self._keep(trainer, batch, outputs["loss"])
        if skipped:
            self.count += 1
            self.in_a_row += 1
            pl_module.log("nonfinite_steps", float(self.count), batch_size=1)
            _log.warning(
                "step %d: the %s is not finite; the step is skipped (so far %d)%s",
                *(trainer.global_step, "gradient or batch norm" if loss_is_finite else "loss", self.count),
                f"; the batch is in {self.folder}" if kept else "",
            )
            if self.in_a_row >= self.most_in_a_row:
                raise NestError(
                    f"step {trainer.global_step}: {self.in_a_row} steps in a row without a finite loss and gradient; "
                    "lower model.optim.lr or use trainer.precision=32" + (f"; see {self.folder}" if self.folder else "")
                )
        elif not is_accumulating(trainer):
            self.in_a_row = 0

    def _keep(self, trainer: Trainer, batch: Any, loss: Tensor) -> bool:
        """Write the batch unless enough are kept; return whether it was written (a full disk does not stop the run)."""
        if self.folder is None or len(list(self.folder.glob(f"*rank{trainer.global_rank}.pt"))) >= _MOST_KEPT:
            return False
        path = self.folder / f"step{trainer.global_step}-rank{trainer.global_rank}.pt"
        try:
            with atomic_write(path) as temporary:
                torch.save({"loss": loss.detach().cpu(), **vars(batch)}, temporary)
        except (OSError, RuntimeError) as error:  # torch's writer raises RuntimeError
            _log.warning("%s: the batch could not be kept: %s", path, one_line(error))
            return False
        return True
