"""Draw the pictures of docs/concepts.md, with the parts that train: `python tools/draw_concepts.py`."""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.colors import hsv_to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from torch import Tensor

from nest_ssl.data.dummy import make_dummy_corpus
from nest_ssl.models import EncDecDenoiseMaskedTokenPredModel
from nest_ssl.presets import preset_folder
from nest_ssl.report.samples import runs
from nest_ssl.training.command_line import CommandLine
from nest_ssl.training.config import load_config

SECONDS_PER_FRAME = 0.01  # of the log-mel
INK, ACCENT, QUIET = "#1f2933", "#c2410c", "#7b8794"


@dataclass(frozen=True)
class Example:
    """One utterance on its way through a model of the default configuration."""

    clean: Tensor  # (S)
    noisy: Tensor
    features: dict[str, Tensor]  # log-mel (D, T) of both
    masked: Tensor  # (D, T)
    mask: Tensor  # (T)
    tokens: Tensor  # (U)
    scored: Tensor  # (U): frames that the loss looks at
    rate: int


def example(seed: int = 3) -> Example:
    """The longest utterance of a batch, with noise mixed into half of it and blocks of it masked."""
    with tempfile.TemporaryDirectory() as folder:
        corpus = make_dummy_corpus(Path(folder), train=16, val=1, noise=2)
        overrides = [
            f"model.train_ds.manifest_filepath={corpus.train_manifest}",
            f"model.train_ds.noise_manifest={corpus.noise_manifest}",
            *("model.train_ds.batch_augmentor.prob=1.0", "model.train_ds.batch_augmentor.noise_ratio=1.0"),
            *("model.train_ds.batch_augmentor.min_r_noise=8.0", "model.train_ds.batch_augmentor.max_r_noise=8.0"),
            *("model.encoder.n_layers=1", "model.train_ds.shuffle=false", "model.train_ds.batch_size=16"),
        ]
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002 - the augmentation draws from it, as NeMo's does
        cfg = load_config(CommandLine(preset_folder(), "nest_fast-conformer", overrides))
        model = EncDecDenoiseMaskedTokenPredModel(cfg=cfg.model).eval()
        model.setup_training_data(cfg.model.train_ds)
        batch = next(iter(model.train_dataloader()))  # type: ignore[arg-type]
    index = int(batch.audio_len.argmax())
    with torch.inference_mode():
        mel, frames = model.preprocessor(input_signal=batch.audio, length=batch.audio_len)
        noisy_mel, _ = model.preprocessor(input_signal=batch.noisy_audio, length=batch.noisy_audio_len)
        masked, masks = model.mask_processor(input_feats=noisy_mel, input_lengths=frames)
        tokens = model.quantizer(input_signal=mel)
        scored = model.loss.masked_frames(masks)
    length = int(frames[index])
    return Example(
        clean=batch.audio[index],
        noisy=batch.noisy_audio[index],
        features={"clean": mel[index, :, :length], "noisy": noisy_mel[index, :, :length]},
        masked=masked[index, :, :length],
        mask=masks[index, 0, :length].bool(),
        tokens=tokens[index, : length // 8, 0],
        scored=scored[index, : length // 8],
        rate=int(cfg.model.sample_rate),
    )


def draw_noise(shown: Example) -> Figure:
    """Waveforms over each other, and what the two sound like as log-mel."""
    figure, (waves, clean, noisy) = pyplot.subplots(3, 1, figsize=(9, 5), sharex=True, height_ratios=[1, 1, 1])
    seconds = np.arange(len(shown.clean)) / shown.rate
    waves.plot(seconds, shown.noisy, color=ACCENT, linewidth=0.4, label="noisy: what the encoder hears")
    waves.plot(seconds, shown.clean, color=INK, linewidth=0.4, label="clean: what the targets come from")
    legend = waves.legend(loc="upper right", fontsize=8, frameon=True, framealpha=0.9, edgecolor="none")
    for line in legend.get_lines():
        line.set_linewidth(2)
    waves.set_yticks([])
    waves.set_ylabel("waveform")
    _spectrogram(clean, shown.features["clean"], "clean\nlog-mel")
    _spectrogram(noisy, shown.features["noisy"], "noisy\nlog-mel")
    noisy.set_xlabel("seconds")
    return figure


def draw_masking(shown: Example) -> Figure:
    """The noisy log-mel with its masked blocks, and below it the tokens of the clean one."""
    figure, (mel, tokens) = pyplot.subplots(2, 1, figsize=(9, 3.6), sharex=True, height_ratios=[5, 1])
    hidden = shown.masked.clone()
    hidden[:, shown.mask] = float("nan")
    _spectrogram(mel, hidden, "what the\nencoder sees")
    for start, end in runs(shown.mask.numpy()):
        middle = (start + end) / 2 * SECONDS_PER_FRAME
        mel.text(middle, shown.masked.shape[0] / 2, "masked", ha="center", va="center", color=QUIET, rotation=90)
    colours = hsv_to_rgb(np.stack([shown.tokens.numpy() * 0.618 % 1, *2 * [np.full(len(shown.tokens), 0.75)]], axis=-1))
    faded = np.where(shown.scored.numpy()[:, None], colours, 0.88 + 0.1 * colours)
    length = len(shown.tokens) * 8 * SECONDS_PER_FRAME
    tokens.imshow(faded[None], aspect="auto", extent=(0, length, 0, 1), interpolation="nearest")
    tokens.set_yticks([])
    tokens.set_ylabel("tokens of\nclean speech", rotation=0, ha="right", va="center")
    tokens.set_xlabel("seconds; bright: what has to be predicted, one of 8192 codes every 0.08 s")
    return figure


def draw_flow() -> Figure:
    """Where data go in a step of training."""
    figure, axes = pyplot.subplots(figsize=(9, 3.2))
    axes.set(xlim=(-1, 106), ylim=(0, 34))
    axes.axis("off")
    boxes = {
        "manifest line\n+ noise": (0, 13),
        "clean\nspeech": (17, 24),
        "noisy\nspeech": (17, 2),
        "log-mel": (33, 24),
        "log-mel\n ": (33, 2),
        "random\nquantizer": (49, 24),
        "block\nmask": (49, 2),
        "tokens:\nthe targets": (68, 24),
        "encoder\n(FastConformer)": (65, 2),
        "decoder": (88, 2),
        "loss on\nmasked frames": (86, 13),
    }
    for text, (x, y) in boxes.items():
        trained = text.startswith(("encoder", "decoder"))
        face = "#fde8d9" if trained else "#eef2f6"
        width = 17 if text.startswith(("encoder", "loss")) else 13
        axes.add_patch(
            FancyBboxPatch((x, y), width, 7, "round,pad=0.4", facecolor=face, edgecolor=QUIET, linewidth=0.8)
        )
        axes.text(x + width / 2, y + 3.5, text.strip(), ha="center", va="center", fontsize=9, color=INK)
    arrows = [
        ((13.6, 18.5), (17, 24)),
        ((13.6, 14.5), (17, 9)),
        ((30.6, 27.5), (32.4, 27.5)),
        ((46.6, 27.5), (48.4, 27.5)),
    ]
    arrows += [
        ((62.6, 27.5), (67.4, 27.5)),
        ((81.6, 26), (88, 20.6)),
        ((30.6, 5.5), (32.4, 5.5)),
        ((46.6, 5.5), (48.4, 5.5)),
    ]
    arrows += [((62.6, 5.5), (64.4, 5.5)), ((82.6, 5.5), (87.4, 5.5)), ((94.5, 9.6), (94.5, 12.4))]
    for start, end in arrows:
        axes.annotate("", xy=end, xytext=start, arrowprops={"arrowstyle": "-|>", "color": INK, "linewidth": 0.9})
    axes.text(65, 13, "learns", color=ACCENT, fontsize=9, va="center")
    axes.plot([63.8], [13], marker="s", markersize=8, color="#fde8d9", markeredgecolor=QUIET)
    return figure


def _spectrogram(axes: Axes, mel: Tensor, label: str) -> None:
    colours = matplotlib.colormaps["magma"].with_extremes(bad="#eef2f6")
    end = mel.shape[1] * SECONDS_PER_FRAME
    axes.imshow(
        mel.numpy(), origin="lower", aspect="auto", cmap=colours, extent=(0, end, 0, mel.shape[0]), vmin=-2, vmax=3
    )
    axes.set_yticks([])
    axes.set_ylabel(label)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path(__file__).resolve().parents[1] / "docs" / "pictures")
    output: Path = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    matplotlib.use("agg")
    pyplot.rcParams.update(
        {"font.size": 9, "axes.edgecolor": QUIET, "axes.labelcolor": INK, "svg.hashsalt": "nest_ssl"}
    )
    shown = example()
    for name, figure in {"flow": draw_flow(), "noise": draw_noise(shown), "masking": draw_masking(shown)}.items():
        figure.savefig(output / f"{name}.png", dpi=110, bbox_inches="tight", facecolor="white")
        print(f"wrote {output / name}.png")


if __name__ == "__main__":
    main()
