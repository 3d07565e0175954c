"""Write the model card of exported weights, from what the files say about the model and nothing else.

Hugging Face's layout: a README.md that begins with YAML. A card that somebody else wrote or changed is not replaced.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

import nest_ssl
from nest_ssl.apps.export.formats import Job
from nest_ssl.apps.export.usage import usage
from nest_ssl.checkpoint import load_lightning_checkpoint
from nest_ssl.errors import NestError, one_line

CARD = "README.md"
_MARK = re.compile(r"<!-- written by nest-ssl export: (?P<digest>[0-9a-f]{16}) -->\n")
Row = tuple[str, str]


@dataclass(frozen=True)
class Publication:
    """The facts that only the publisher of a model knows."""

    license: str | None = None  # an identifier, as Hugging Face lists them
    replace_card: bool = False


@dataclass(frozen=True)
class TrainingRecord:
    """The facts about a run that its Lightning checkpoint contains."""

    steps: int
    epochs: int  # started
    monitored: str | None = None
    score: float | None = None


def refuse_foreign_card(output: Path, publication: Publication) -> None:
    """Refuse to replace a README.md that was not written here, or was changed since."""
    path = output.with_name(CARD)
    if publication.replace_card or not path.exists():
        return
    text = path.read_text(encoding="utf-8", errors="replace")
    mark = _MARK.search(text)
    if mark is None or mark["digest"] != _digest(_MARK.sub("", text)):
        raise NestError(f"{path}: was written or changed by somebody else; --force replaces it")


def model_card(job: Job, name: str, publication: Publication) -> str:
    """Return the card of weights in a file of this name."""
    front, body = ("".join(f"{line}\n" for line in lines) for lines in (_front_matter(publication), _body(job, name)))
    return f"{front}<!-- written by nest-ssl export: {_digest(front + body)} -->\n{body}"


def training_record(source: Path) -> TrainingRecord | None:
    """Read the training record of a checkpoint; archives and weights have none."""
    if source.suffix.lower() != ".ckpt":
        return None
    checkpoint = load_lightning_checkpoint(source)
    steps, epoch = checkpoint.get("global_step"), checkpoint.get("epoch")
    if not isinstance(steps, int) or not isinstance(epoch, int):
        return None
    for state in _table(checkpoint, "callbacks").values():
        score = state.get("current_score") if isinstance(state, Mapping) else None
        if isinstance(score, Tensor) and score.numel() == 1 and state.get("monitor"):
            return TrainingRecord(steps, epoch + 1, str(state["monitor"]), score.item())
    return TrainingRecord(steps, epoch + 1)


def _front_matter(publication: Publication) -> Iterator[str]:
    yield "---"
    yield "library_name: nest_ssl"
    yield f"license: {json.dumps(publication.license) if publication.license else 'unknown'}"
    yield "pipeline_tag: feature-extraction"
    yield "tags:"
    yield from (f"- {tag}" for tag in ("speech", "self-supervised-learning", "nest", "fastconformer"))
    yield "---"


def _body(job: Job, name: str) -> Iterator[str]:
    settings, interface = job.model.settings, job.interface
    yield f"# {Path(name).stem}"
    yield ""
    yield (
        "A speech encoder of the NEST family ([arXiv 2408.13106](https://arxiv.org/abs/2408.13106)): a FastConformer "
        "that was trained without labels to predict the tokens of clean speech from masked, noisy speech."
    )
    yield from _section("Architecture", _architecture(job))
    yield from _section("Training", _training(settings, training_record(job.source)))
    yield ""
    yield "This card is made from the model's files; they say nothing beyond these tables."
    yield from ("", "## Use", "", "With nest_ssl:", "", "```python", usage(name, interface), "```", "")
    nemo = f"{Path(name).stem}.nemo"
    yield f"With NeMo, after `nest-ssl convert {name} {nemo}`:"
    yield from (
        "",
        "```python",
        "from nemo.collections.asr.models.ssl_models import EncDecDenoiseMaskedTokenPredModel",
        "",
    )
    yield from (f'model = EncDecDenoiseMaskedTokenPredModel.restore_from("{nemo}")', "```", "", "## Limits", "")
    yield f"- It expects one channel of audio at {interface.sample_rate} Hz."
    yield "- It only encodes speech: recognition, translation and other tasks need a head trained on top."
    yield "- The files do not say on which languages, speakers and recordings it was trained."
    yield ""
    yield f"Made with nest_ssl {nest_ssl.__version__}."


def _section(title: str, rows: Iterator[Row]) -> Iterator[str]:
    yield from ("", f"## {title}", "", "| | |", "|---|---|")
    yield from (f"| {one_line(name)} | {one_line(value)} |" for name, value in rows)


def _architecture(job: Job) -> Iterator[Row]:
    encoder, features = (json.loads(job.facts[name]) for name in ("encoder", "preprocessor"))
    counts = {part: _parameters(module) for part, module in (("all", job.model), ("encoder", job.model.encoder))}
    context = encoder["att_context_size"]
    yield "parameters", f"{counts['all']:,}, of which {counts['encoder']:,} in the encoder"
    yield "layers", f"{encoder['n_layers']} of width {encoder['d_model']}, {encoder['n_heads']} heads"
    yield "attention", f"{encoder['self_attention_model']}, context {context or 'unlimited'}"
    yield "convolution", f"kernel {encoder['conv_kernel_size']}, {encoder['conv_norm_type']}"
    yield "sub-sampling", f"{job.interface.frame_ratio} times ({encoder['subsampling']})"
    yield "output", f"one frame every {job.interface.seconds_per_frame:g} s"
    yield (
        "input",
        f"{job.interface.sample_rate} Hz, {features['features']} log-mel features, normalize: {features['normalize']}",
    )


def _training(settings: Mapping[str, Any], record: TrainingRecord | None) -> Iterator[Row]:
    if record is not None:
        yield "steps", f"{record.steps:,}, in epoch {record.epochs:,}"
        if record.monitored is not None:
            yield record.monitored, f"{record.score:.4f} at the last validation before this checkpoint"
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


def _parameters(module: Any) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
