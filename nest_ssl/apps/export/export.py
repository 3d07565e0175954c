"""`nest-ssl export`: write the encoder of a model file for other programs, check it, and keep it if it is right."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nest_ssl.apps.export.card import CARD, Publication, model_card, refuse_foreign_card
from nest_ssl.apps.export.check import Check, check
from nest_ssl.apps.export.formats import FORMATS, Format, Job
from nest_ssl.apps.export.interface import Interface, facts
from nest_ssl.apps.export.network import Kind
from nest_ssl.apps.export.usage import usage
from nest_ssl.atomic import atomic_write
from nest_ssl.checkpoint import restore_for_use
from nest_ssl.errors import NestError, one_line
from nest_ssl.folder_lock import lock_file

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Exported:
    """The result of an export; the files exist only if the check passed."""

    files: list[Path]
    bytes: int
    seconds: float
    facts: dict[str, str]
    check: Check
    usage: str  # Python code that uses the file

    def as_dict(self) -> dict[str, Any]:
        return {
            "passed": self.check.passed,
            "files": [str(path) for path in self.files],
            "bytes": self.bytes,
            "seconds": round(self.seconds, 3),
            **self.check.as_dict(),
            "facts": self.facts,
            "usage": self.usage,
        }


def export(
    source: Path,
    output: Path,
    kind: Kind = "audio",
    publication: Publication | None = None,
    progress: Progress = lambda _: None,
) -> Exported:
    """Write the encoder in `source` in the format of `output`'s suffix, and compare it with the model.

    `.safetensors` holds the weights of the whole model, and gets a model card, which `publication` adds to.
    """
    start = time.monotonic()
    form = _format(source, output)
    with_card = output.suffix.lower() == ".safetensors"
    publication = publication or Publication()
    if with_card:
        refuse_foreign_card(output, publication)
    progress("reading the model")
    model = restore_for_use(source, "cpu")  # where exporters trace
    interface = Interface.of(model, kind)
    job = Job(source, model, interface, facts(model, interface, form.tolerance))
    with _folder_beside(output) as folder:
        progress(f"writing {output.name}")
        _write(form, job, folder / output.name)
        found = _check(form, job, folder / output.name, progress)
        if with_card:
            (folder / CARD).write_text(model_card(job, output.name, publication), encoding="utf-8")
        written = sorted(folder.iterdir(), key=lambda path: path.name == output.name)  # the named file last
        size = sum(path.stat().st_size for path in written)
        if found.passed:
            for path in written:
                with atomic_write(output.with_name(path.name)) as temporary:
                    os.replace(path, temporary)  # noqa: PTH105 (as in atomic_write, which now makes it last)
    files = [output.with_name(path.name) for path in reversed(written)] if found.passed else []
    return Exported(files, size, time.monotonic() - start, job.facts, found, usage(output.name, interface))


def _format(source: Path, output: Path) -> Format:
    form = FORMATS.get(output.suffix.lower())
    if form is None:
        raise NestError(f"{output}: unknown suffix; expected {', '.join(FORMATS)}")
    if source.resolve() == output.resolve():
        raise NestError(f"{output}: is the model itself; give the result another name")
    form.refuse_missing_packages(output)
    return form


def _write(form: Format, job: Job, path: Path) -> None:
    try:
        form.write(job, path)
    except NestError:
        raise
    except OSError as error:
        raise NestError(f"{path.name}: cannot be written: {one_line(error)}") from error
    except Exception as error:  # exporters raise anything
        raise NestError(
            f"{job.source}: torch cannot export this encoder as {path.suffix}: {one_line(error)}"
        ) from error


def _check(form: Format, job: Job, path: Path, progress: Progress) -> Check:
    try:
        return check(form.open(path, job.interface), job.model, job.interface, form.tolerance, progress)
    except Exception as error:  # a runtime may not support what the exporter wrote
        raise NestError(f"{job.source}: was exported as {path.suffix}, but does not run: {one_line(error)}") from error


@contextlib.contextmanager
def _folder_beside(output: Path) -> Iterator[Path]:
    """Make a temporary folder on the same disk for unchecked files; remove those of attempts that were killed.

    A lock allows one process at a time for this output, so no running attempt is removed.
    """
    with contextlib.ExitStack() as held:
        try:
            lock = output.with_name(f".{output.name}.lock")
            held.enter_context(lock_file(lock, f"wait for its end, or give another name than {output.name}"))
            for leftover in output.parent.glob(f".{glob.escape(output.name)}.*.unchecked"):
                shutil.rmtree(leftover, ignore_errors=True)
            folder = output.with_name(f".{output.name}.{uuid.uuid4().hex[:8]}.unchecked")
            folder.mkdir()
        except OSError as error:
            raise NestError(f"{output}: cannot be written: {one_line(error)}") from error
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
