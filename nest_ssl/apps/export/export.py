"""`nest-ssl export`: write the encoder of a model file for other programs, check it, and keep it if it is right."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nest_ssl.apps.export.card import CARD, model_card, refuse_foreign_card
from nest_ssl.apps.export.formats import FORMATS, Encode, Format, Job, usage
from nest_ssl.apps.export.interface import Interface, encode_eagerly, facts
from nest_ssl.apps.export.network import Kind
from nest_ssl.atomic import atomic_write
from nest_ssl.checkpoint import restore_for_use
from nest_ssl.errors import NestError, one_line
from nest_ssl.folder_lock import lock_file
from nest_ssl.model.nest import Nest

Progress = Callable[[str], None]  # what the export does at present
_LONGEST_SECONDS = 60.0  # of the inputs of the check
_SEED = 0


@dataclass(frozen=True)
class ComparedBatch:
    """One batch, encoded by the file and by the model."""

    lengths: tuple[int, ...]
    difference: float  # the largest, relative to the encoding's root mean square; infinite if shapes or lengths differ


@dataclass(frozen=True)
class Check:
    """The results of all batches."""

    trials: tuple[ComparedBatch, ...]
    tolerance: float

    @property
    def largest(self) -> float:
        return max(trial.difference for trial in self.trials)

    @property
    def passed(self) -> bool:
        return self.largest <= self.tolerance

    def as_dict(self) -> dict[str, Any]:
        return {
            "largest_difference": _json(self.largest),
            "tolerance": self.tolerance,
            "trials": [{"lengths": trial.lengths, "difference": _json(trial.difference)} for trial in self.trials],
        }


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
    *,
    license: str | None = None,
    replace_card: bool = False,
    progress: Progress = lambda _: None,
) -> Exported:
    """Write the encoder in `source` in the format of `output`'s suffix, and compare it with the model.

    `.safetensors` holds the weights of the whole model, and gets a model card that names the license, an identifier as
    Hugging Face lists them; `replace_card` replaces a card that somebody else wrote.
    """
    start = time.monotonic()
    form = _format(source, output)
    with_card = output.suffix.lower() == ".safetensors"
    if with_card and not replace_card:
        refuse_foreign_card(output)
    progress("reading the model")
    model = restore_for_use(source, "cpu")  # where exporters trace
    interface = Interface.of(model, kind)
    job = Job(source, model, interface, facts(model, interface, form.tolerance))
    with _folder_beside(output) as folder:
        progress(f"writing {output.name}")
        _write(form, job, folder / output.name)
        found = _check(form, job, folder / output.name, progress)
        if with_card:
            (folder / CARD).write_text(model_card(job, output.name, license), encoding="utf-8")
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
    """Make a temporary folder on the same disk for unchecked files; a lock lets one process at a time use it."""
    folder = output.with_name(f".{output.name}.unchecked")
    with contextlib.ExitStack() as held:
        try:
            lock = output.with_name(f".{output.name}.lock")
            held.enter_context(lock_file(lock, f"wait for its end, or give another name than {output.name}"))
            shutil.rmtree(folder, ignore_errors=True)  # of an export that was killed
            folder.mkdir()
        except OSError as error:
            raise NestError(f"{output}: cannot be written: {one_line(error)}") from error
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def check(
    encode: Encode, model: Nest, interface: Interface, tolerance: float, progress: Progress = lambda _: None
) -> Check:
    """Compare a file's encoder with the model, which must be in eval mode."""
    generator = torch.Generator().manual_seed(_SEED)
    batches = lengths_to_try(interface, generator)
    trials = []
    for number, lengths in enumerate(batches, start=1):
        progress(f"checking batch {number} of {len(batches)}")
        x, length = interface.batch(lengths, generator)
        expected = encode_eagerly(model, interface, x, length)
        trials.append(ComparedBatch(tuple(lengths), difference(encode(x, length), expected)))
    return Check(tuple(trials), tolerance)


def lengths_to_try(interface: Interface, generator: torch.Generator) -> list[list[int]]:
    """Return batches: the shortest input; one and several of random lengths; one beyond the table of positions."""
    shortest, longest = interface.shortest, interface.example()[0].shape[-1]

    def drawn(count: int, low: int, high: int) -> list[int]:
        return torch.randint(low, high, (count,), generator=generator).tolist()

    beyond = interface.known_positions * interface.steps_in_frame + shortest
    return [
        [shortest],
        drawn(1, shortest, longest),
        drawn(3, shortest, longest),
        [*drawn(1, longest, 4 * longest), shortest],
        [min(beyond, interface.steps(_LONGEST_SECONDS)) + drawn(1, 0, shortest)[0]],
    ]


def difference(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> float:
    """Return the largest difference of two pairs of encodings (B, D, U) and lengths (B), up to those lengths."""
    (encoded, lengths), (expected, expected_lengths) = ours, theirs
    if encoded.shape != expected.shape or not torch.equal(lengths, expected_lengths):
        return float("inf")
    valid = torch.arange(expected.shape[2]) < expected_lengths.unsqueeze(1)  # (B, U)
    encoded, expected = (x.transpose(1, 2)[valid] for x in (encoded, expected))  # (B, D, U) -> (frames, D)
    largest = ((encoded - expected).abs().max() / expected.pow(2).mean().sqrt()).item()
    return largest if largest == largest else float("inf")  # NaN


def _json(difference: float) -> float | None:
    """Replace infinity, which JSON does not have."""
    return difference if math.isfinite(difference) else None
