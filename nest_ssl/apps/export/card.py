"""Write the model card of exported weights, from what the files say about the model and nothing else.

Hugging Face's layout: a README.md that begins with YAML. A card that somebody else wrote or changed is not replaced.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

import nest_ssl
from nest_ssl.apps.export.formats import Job, template, usage
from nest_ssl.checkpoint import load_lightning_checkpoint
from nest_ssl.errors import NestError, one_line

CARD = "README.md"
_MARK = re.compile(r"<!-- written by nest-ssl export: (?P<digest>[0-9a-f]{16}) -->\n")


def refuse_foreign_card(output: Path) -> None:
    """Refuse to replace a README.md beside `output` that was not written here, or was changed since."""
    path = output.with_name(CARD)
    if not path.exists():
        return
    text = path.read_text(encoding="utf-8", errors="replace")
    mark = _MARK.search(text)
    if mark is None or mark["digest"] != _digest(_MARK.sub("", text)):
        raise NestError(f"{path}: was written or changed by somebody else; --force replaces it")


def model_card(job: Job, name: str, license: str | None) -> str:
    """Return the card of weights in a file of this name, with the digest of its text as a mark."""
    card = template("card.md")
    values = {
        "name": name,
        "stem": Path(name).stem,
        "license": json.dumps(license) if license else "unknown",
        "parameters": f"{_parameters(job.model):,}",
        "encoder_parameters": f"{_parameters(job.model.encoder):,}",
        "interface": job.interface,
        "encoder": json.loads(job.facts["encoder"]),
        "log_mel": json.loads(job.facts["preprocessor"]),
        "training": [*_record(job.source), *_settings(job.model.settings)],
        "usage": usage(name, job.interface),
        "version": nest_ssl.__version__,
        "line": one_line,
    }
    digest = _digest(card.render(mark="", **values))
    return card.render(mark=f"<!-- written by nest-ssl export: {digest} -->\n", **values)


def _record(source: Path) -> Iterator[tuple[str, str]]:
    """Yield the facts about a run that its Lightning checkpoint contains; archives and weights have none."""
    if source.suffix.lower() != ".ckpt":
        return
    checkpoint = load_lightning_checkpoint(source)
    steps, epoch = checkpoint.get("global_step"), checkpoint.get("epoch")
    if not isinstance(steps, int) or not isinstance(epoch, int):
        return
    yield "steps", f"{steps:,}, in epoch {epoch + 1:,}"
    for state in _table(checkpoint, "callbacks").values():
        score = state.get("current_score") if isinstance(state, Mapping) else None
        if isinstance(score, Tensor) and score.numel() == 1 and state.get("monitor"):
            yield str(state["monitor"]), f"{score.item():.4f} at the last validation before this checkpoint"
            return


def _settings(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the settings of training, of which a file may lack some."""
    masking, codes, data, optim = (_table(settings, name) for name in ("masking", "quantizer", "train_ds", "optim"))
    if "block_size" in masking and "mask_prob" in masking:
        overlap = "may overlap" if masking.get("allow_overlap") else "apart"
        yield "masking", f"blocks of {masking['block_size']} frames, {overlap}, probability {masking['mask_prob']}"
    if "num_classes" in codes and "num_books" in codes:
        yield "targets", f"{codes['num_classes']} codes of random projections, {codes['num_books']} at a time"
    augmentor = _table(data, "batch_augmentor")
    if "prob" in augmentor:
        source = "noise or other speakers" if data.get("noise_manifest") else "other speakers"
        yield "augmentation", f"{source} mixed into a clip with probability {augmentor['prob']}"
    if "min_duration" in data and "max_duration" in data:
        yield "clips", f"{data['min_duration']} to {data['max_duration']} s, batches of {data.get('batch_size')}"
    if "name" in optim:
        yield "optimizer", f"{optim['name']}, lr {optim.get('lr')}, {_table(optim, 'sched').get('name')}"


def _table(settings: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a table of settings; an empty one if it is missing or, in an unchecked file, is no table."""
    value = settings.get(name)
    return value if isinstance(value, Mapping) else {}


def _parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
