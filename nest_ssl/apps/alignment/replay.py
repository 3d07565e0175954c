"""Give our model what NeMo recorded, its batch, weights, mask, dither and dropout, and record what ours computes.

Only the computation can differ then, so NeMo versions that draw random numbers in another order can be compared too.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, ListConfig, OmegaConf
from torch import Tensor, nn

import nest_ssl
from nest_ssl.apps.alignment.recorder.files import (
    empty_recording,
    machine_versions,
    structure_of,
    write_plain,
    write_step,
)
from nest_ssl.apps.alignment.recorder.listeners import LayerListener, gradients_of, listen_to_forward, total_norm
from nest_ssl.apps.alignment.recording import RecordedStep, Recording
from nest_ssl.checkpoint.config import config_of_values
from nest_ssl.checkpoint.restore import refuse_larger_model
from nest_ssl.checkpoint.weights import refuse_other_kinds
from nest_ssl.data import AudioNoiseBatch
from nest_ssl.errors import NestError, one_line
from nest_ssl.models import EncDecDenoiseMaskedTokenPredModel

_MOST_THREADS = 1024
Layers = Mapping[str, list[dict[str, Any]]]


def replay(theirs: Recording, steps: list[int], folder: Path) -> Recording:
    """Make our recording of the same steps from NeMo's."""
    model = _build(theirs)
    empty_recording(folder)
    with _threads(theirs):
        history = []
        for number in steps:
            with _as_one_line(theirs, f"step {number} cannot be replayed"):
                history.append(_replay_step(model, theirs, number, folder))
        versions = {"nest_ssl": nest_ssl.__version__, **machine_versions()}
    write_plain(structure_of(model), folder / "model_structure.pkl")
    ours = {"side": "nest_ssl", "versions": versions, "replay": True, "history": history}
    write_plain({**theirs.metadata, **ours}, folder / "metadata.pkl")
    return Recording(folder)


def _build(theirs: Recording) -> EncDecDenoiseMaskedTokenPredModel:
    config = theirs.metadata.get("config")
    if not isinstance(config, dict):
        raise NestError(f"{theirs.folder}: holds no model configuration to build ours from; record it again")
    cfg = config_of_values(config, theirs.folder / "metadata.pkl")
    with _as_one_line(theirs, "no model can be built from it"):
        _refuse_unrecorded_randomness(theirs, cfg)
        refuse_larger_model(cfg, theirs.initial_weights)
        model = EncDecDenoiseMaskedTokenPredModel(cfg=cfg)
    if _precision(theirs) == "64-true":
        model = model.double()
    return model.train()


def _replay_step(
    model: EncDecDenoiseMaskedTokenPredModel, theirs: Recording, number: int, folder: Path
) -> dict[str, Any]:
    """Compute the loss and the gradients of one step, write them, and return what the history says about it."""
    step = theirs.step(number)
    batch = step.batch
    _load_weights_before(model, theirs, number)
    listener = LayerListener(model)
    with _given(model, step) as outputs, _computing_as(theirs):
        model.zero_grad()
        loss = model.predict_masked(_as_batch(batch)).loss
    listener.detach()
    loss.backward()
    gradients = gradients_of(model)
    summary = {
        "step": number,
        "loss": float(loss.detach()),
        "grad_norm": total_norm(gradients.values()),
        "lr": step.metadata.get("lr", 0.0),
    }
    tensors = {
        "batch.pt": batch,
        "forward_output.pt": outputs,
        "loss.pt": loss.detach(),
        "parameter_gradients.pt": gradients,
        "layer_outputs.pkl": listener.by_layer(),
    }
    write_step(folder, summary, tensors)
    return summary


@contextlib.contextmanager
def _as_one_line(theirs: Recording, what: str) -> Iterator[None]:
    """Turn any error into one line: settings and tensors of a damaged recording can make anything fail."""
    try:
        yield
    except NestError:
        raise
    except Exception as error:
        raise NestError(f"{theirs.folder}: {what}: {one_line(error)}") from error


def _load_weights_before(model: nn.Module, theirs: Recording, number: int) -> None:
    """Load the weights that a step started with: the initial ones, or those after the step before it."""
    weights = theirs.initial_weights if number == 0 else theirs.step(number - 1).weights
    if weights is None:
        raise NestError(f"{theirs.folder}: step {number - 1} has no weights, so step {number} cannot be replayed")
    refuse_other_kinds(weights, model.state_dict(), theirs.folder)
    model.load_state_dict(weights)


@contextlib.contextmanager
def _given(model: EncDecDenoiseMaskedTokenPredModel, step: RecordedStep) -> Iterator[dict[str, Tensor]]:
    """Use the recorded mask, dither and dropout within the block; yield what the model's forward returns.

    A listener that was attached before records the dropped values, and the signal before dither, as in NeMo.
    """
    mask = step.outputs["masks"][:, 0].bool()  # (B, D, T) -> (B, T): the same for all features
    layers, dither = step.layers, model.preprocessor.dither
    dithered = _RecordedDither(layers, needed=dither > 0)
    hooks = [model.preprocessor.register_forward_pre_hook(dithered, with_kwargs=True)]
    hooks += [
        module.register_forward_hook(_RecordedDropout(name, layers), prepend=True)
        for name, module in model.named_modules()
        if isinstance(module, nn.Dropout) and module.p > 0
    ]
    outputs: dict[str, Tensor] = {}
    listen_to_forward(model, outputs.update)
    vars(model.mask_processor)["blocks"] = lambda lengths, frames: mask
    model.preprocessor.dither = 0.0
    try:
        yield outputs
    finally:
        model.preprocessor.dither = dither
        del vars(model)["forward"]
        del vars(model.mask_processor)["blocks"]
        for hook in hooks:
            hook.remove()


class _RecordedDropout:
    """Drops, in each call, the elements that NeMo's dropout of the same name dropped."""

    def __init__(self, name: str, layers: Layers) -> None:
        self._name = name
        self._calls = iter(layers.get(name, []))

    def __call__(self, module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        call = next(self._calls, None)
        if call is None:
            raise NestError(f"{self._name}: its dropout was not recorded; record all layers, or with dropout 0")
        (x,), kept = args, call["outputs"]["0"] != 0  # where x itself is 0, the result is 0 in any case
        if kept.shape != x.shape:
            raise NestError(f"{self._name}: NeMo dropped from {list(kept.shape)}, ours has {list(x.shape)}")
        return x * kept.to(x.dtype).div_(1 - module.p)  # type: ignore[operator]  # as PyTorch does


class _RecordedDither:
    """Replaces the preprocessor's input signals by NeMo's signals with dither.

    NeMo adds dither in place, in the layer inside its preprocessor: the overwritten input is the dithered signal.
    """

    def __init__(self, layers: Layers, needed: bool) -> None:
        calls = layers.get("preprocessor.featurizer", [])
        signals = [next(iter(call.get("changed", {}).values()), None) for call in calls]
        if needed and (not signals or any(signal is None for signal in signals)):
            raise NestError("its dither was not recorded; record all layers, or with model.preprocessor.dither=0")
        self._signals = iter(signals)

    def __call__(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        signal = next(self._signals, None)
        return args, kwargs if signal is None else {**kwargs, "input_signal": signal}


def _as_batch(batch: Mapping[str, Any]) -> AudioNoiseBatch:
    names = ("audio", "audio_len", "noise", "noise_len", "noisy_audio", "noisy_audio_len")
    missing = [name for name in names if not isinstance(batch.get(name), Tensor)]
    if missing:
        raise NestError(f"the recorded batch has no {missing[0]}; record it again")
    return AudioNoiseBatch(sample_id=[], **{name: batch[name].clone() for name in names})


def _precision(theirs: Recording) -> str:
    return str(theirs.metadata.get("precision", "32-true"))


@contextlib.contextmanager
def _threads(theirs: Recording) -> Iterator[None]:
    """Use as many threads as NeMo did, because they decide the order of sums."""
    own, recorded = torch.get_num_threads(), str(theirs.metadata.get("versions", {}).get("threads", ""))
    torch.set_num_threads(min(int(recorded), _MOST_THREADS) if recorded.isdecimal() and int(recorded) else own)
    try:
        yield
    finally:
        torch.set_num_threads(own)


@contextlib.contextmanager
def _computing_as(theirs: Recording) -> Iterator[None]:
    """Compute in NeMo's precision, as Lightning sets it up around a training step."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if _precision(theirs) == "64-true" else default)
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=_precision(theirs) == "bf16-mixed"):
            yield
    finally:
        torch.set_default_dtype(default)


def _refuse_unrecorded_randomness(theirs: Recording, cfg: DictConfig) -> None:
    """Refuse recordings whose random numbers are not all recorded, and say why."""
    option = functools.partial(OmegaConf.select, cfg)
    contexts = option("encoder.att_context_size")
    several_contexts = isinstance(contexts, ListConfig) and len(contexts) > 1 and isinstance(contexts[0], ListConfig)
    reasons = {
        "accumulated gradients; record with trainer.accumulate_grad_batches=1": (
            theirs.metadata.get("accumulate_grad_batches", 1) != 1
        ),
        "half precision; record with trainer.precision=32": _precision(theirs).startswith("16"),
        "stochastic depth; record with model.encoder.stochastic_depth_drop_prob=0": (
            option("encoder.stochastic_depth_drop_prob")
        ),
        "several attention contexts; record with one": several_contexts,
        "fused attention with dropout; record with model.encoder.dropout_att=0": (
            option("encoder.use_pytorch_sdpa") and option("encoder.dropout_att")
        ),
        "random narrow-band audio; record with model.preprocessor.nb_augmentation_prob=0": (
            option("preprocessor.nb_augmentation_prob")
        ),
    }
    for reason, applies in reasons.items():
        if applies:
            raise NestError(f"{theirs.folder}: cannot be replayed, for it has {reason}")
