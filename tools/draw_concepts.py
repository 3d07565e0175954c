"""Draw the pictures of docs/concepts.md with the training code itself: `python tools/draw_concepts.py`.

Each picture is drawn in English (NAME.png) and, if a font has the characters, in Chinese (NAME.zh.png).
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib import font_manager, pyplot
from matplotlib.axes import Axes
from matplotlib.colors import hsv_to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from torch import Tensor

from nest_ssl.config.command_line import CommandLine, preset_folder
from nest_ssl.config.compose import load_config
from nest_ssl.data.dummy import make_dummy_corpus
from nest_ssl.models import EncDecDenoiseMaskedTokenPredModel

SECONDS_PER_FRAME = 0.01  # log-mel frames
INK, ACCENT, QUIET = "#1f2933", "#c2410c", "#7b8794"
LEARNS, FIXED = "#fde8d9", "#eef2f6"  # colours of the boxes
CHINESE_FONTS = (
    *("Noto Sans CJK SC", "Source Han Sans SC", "Microsoft YaHei", "PingFang SC"),
    *("WenQuanYi Zen Hei", "WenQuanYi Micro Hei"),
)
CHINESE = {
    "noisy: what the encoder hears": "含噪：编码器听到的",
    "clean: what the targets come from": "干净：目标由它得出",
    "waveform": "波形",
    "clean\nlog-mel": "干净\nlog-mel",
    "noisy\nlog-mel": "含噪\nlog-mel",
    "seconds": "秒",
    "what the\nencoder sees": "编码器\n看到的",
    "masked": "掩码",
    "tokens of\nclean speech": "干净语音\n的 token",
    "seconds; bright: what has to be predicted, one of 8192 codes every 0.08 s": (
        "秒；鲜艳处是要预测的 token：每 0.08 秒一个，8192 个码之一"
    ),
    "manifest line\n+ noise": "manifest 的\n一行 + 噪声",
    "clean\nspeech": "干净语音",
    "noisy\nspeech": "含噪语音",
    "log-mel": "log-mel",
    "random\nquantizer": "随机\n量化器",
    "block\nmask": "块状掩码",
    "tokens:\nthe targets": "token：\n目标",
    "encoder\n(FastConformer)": "编码器\n(FastConformer)",
    "decoder": "解码器",
    "loss on\nmasked frames": "掩码帧上的\n损失",
    "learns": "参与训练",
}
Say = Callable[[str], str]  # a label in the language of the picture


@dataclass(frozen=True)
class Example:
    """One utterance at each stage of a model with the default configuration."""

    clean: Tensor  # (S)
    noisy: Tensor
    features: dict[str, Tensor]  # log-mel (D, T) of the clean and the noisy signal
    masked: Tensor  # (D, T)
    mask: Tensor  # (T)
    tokens: Tensor  # (U)
    scored: Tensor  # (U): frames that the loss uses
    rate: int


def example(seed: int = 3) -> Example:
    """Return the longest utterance of a batch, half of it noisy, with masked blocks."""
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
        np.random.seed(seed)  # noqa: NPY002 - NeMo's random generator for noise
        random.seed(seed)  # the augmentation uses this generator
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


def draw_noise(shown: Example, say: Say) -> Figure:
    """Draw the clean and the noisy waveform over each other, and the log-mel of both."""
    figure, (waves, clean, noisy) = pyplot.subplots(3, 1, figsize=(9, 5), sharex=True, height_ratios=[1, 1, 1])
    seconds = np.arange(len(shown.clean)) / shown.rate
    waves.plot(seconds, shown.noisy, color=ACCENT, linewidth=0.4, label=say("noisy: what the encoder hears"))
    waves.plot(seconds, shown.clean, color=INK, linewidth=0.4, label=say("clean: what the targets come from"))
    legend = waves.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, fontsize=8, frameon=False)  # above
    for line in legend.get_lines():
        line.set_linewidth(2)
    waves.set_yticks([])
    waves.set_ylabel(say("waveform"))
    _spectrogram(clean, shown.features["clean"], say("clean\nlog-mel"))
    _spectrogram(noisy, shown.features["noisy"], say("noisy\nlog-mel"))
    noisy.set_xlabel(say("seconds"))
    return figure


def draw_masking(shown: Example, say: Say) -> Figure:
    """Draw the noisy log-mel with its masked blocks, and below it the tokens of the clean one."""
    figure, (mel, tokens) = pyplot.subplots(2, 1, figsize=(9, 3.6), sharex=True, height_ratios=[5, 1])
    hidden = shown.masked.clone()
    hidden[:, shown.mask] = float("nan")
    _spectrogram(mel, hidden, say("what the\nencoder sees"))
    edges = np.flatnonzero(np.diff(shown.mask.numpy(), prepend=0, append=0)).reshape(-1, 2)  # of masked blocks
    for middle in edges.mean(axis=1) * SECONDS_PER_FRAME:
        mel.text(middle, shown.masked.shape[0] / 2, say("masked"), ha="center", va="center", color=QUIET, rotation=90)
    colours = hsv_to_rgb(np.stack([shown.tokens.numpy() * 0.618 % 1, *2 * [np.full(len(shown.tokens), 0.75)]], axis=-1))
    faded = np.where(shown.scored.numpy()[:, None], colours, 0.88 + 0.1 * colours)
    length = len(shown.tokens) * 8 * SECONDS_PER_FRAME
    tokens.imshow(faded[None], aspect="auto", extent=(0, length, 0, 1), interpolation="nearest")
    tokens.set_yticks([])
    tokens.set_ylabel(say("tokens of\nclean speech"), rotation=0, ha="right", va="center", linespacing=1.3)
    tokens.set_xlabel(say("seconds; bright: what has to be predicted, one of 8192 codes every 0.08 s"))
    return figure


def draw_flow(say: Say) -> Figure:
    """Draw the data flow of a training step."""
    figure, axes = pyplot.subplots(figsize=(9, 3.2))
    axes.set(xlim=(-3, 106), ylim=(0, 34))
    axes.axis("off")
    boxes = [  # (text, left, bottom, width)
        ("manifest line\n+ noise", -2, 13, 15),
        ("clean\nspeech", 17, 24, 13),
        ("noisy\nspeech", 17, 2, 13),
        ("log-mel", 33, 24, 13),
        ("log-mel", 33, 2, 13),
        ("random\nquantizer", 49, 24, 13),
        ("block\nmask", 49, 2, 13),
        ("tokens:\nthe targets", 68, 24, 13),
        ("encoder\n(FastConformer)", 65, 2, 17),
        ("decoder", 88, 2, 13),
        ("loss on\nmasked frames", 86, 13, 17),
    ]
    for text, x, y, width in boxes:
        face = LEARNS if text.startswith(("encoder", "decoder")) else FIXED
        axes.add_patch(
            FancyBboxPatch((x, y), width, 7, "round,pad=0.4", facecolor=face, edgecolor=QUIET, linewidth=0.8)
        )
        axes.text(x + width / 2, y + 3.5, say(text), ha="center", va="center", fontsize=9, color=INK, linespacing=1.3)
    arrows = [
        ((13.6, 18.5), (17, 24)),
        ((13.6, 14.5), (17, 9)),
        ((30.6, 27.5), (32.4, 27.5)),
        ((46.6, 27.5), (48.4, 27.5)),
        ((62.6, 27.5), (67.4, 27.5)),
        ((81.6, 26), (88, 20.6)),
        ((30.6, 5.5), (32.4, 5.5)),
        ((46.6, 5.5), (48.4, 5.5)),
        ((62.6, 5.5), (64.4, 5.5)),
        ((82.6, 5.5), (87.4, 5.5)),
        ((94.5, 9.6), (94.5, 12.4)),
    ]
    for start, end in arrows:
        axes.annotate("", xy=end, xytext=start, arrowprops={"arrowstyle": "-|>", "color": INK, "linewidth": 0.9})
    axes.plot([65.4], [13], marker="s", markersize=8, color=LEARNS, markeredgecolor=QUIET)
    axes.text(67.2, 13, say("learns"), color=ACCENT, fontsize=9, va="center")
    return figure


def _spectrogram(axes: Axes, mel: Tensor, label: str) -> None:
    colours = matplotlib.colormaps["magma"].with_extremes(bad=FIXED)
    end = mel.shape[1] * SECONDS_PER_FRAME
    axes.imshow(
        mel.numpy(), origin="lower", aspect="auto", cmap=colours, extent=(0, end, 0, mel.shape[0]), vmin=-2, vmax=3
    )
    axes.set_yticks([])
    axes.set_ylabel(label, linespacing=1.3)


def chinese_font() -> str | None:
    """Return a font of this machine that has the characters of the Chinese labels, if any."""
    there = set(font_manager.get_font_names())
    return next((name for name in CHINESE_FONTS if name in there), None)


def draw_all(shown: Example, output: Path, suffix: str, fonts: list[str], say: Say) -> None:
    """Draw all pictures in one language."""
    with pyplot.rc_context({"font.family": fonts}):
        figures = {"flow": draw_flow(say), "noise": draw_noise(shown, say), "masking": draw_masking(shown, say)}
        for name, figure in figures.items():
            path = output / f"{name}{suffix}.png"
            figure.savefig(path, dpi=110, bbox_inches="tight", facecolor="white")
            print(f"wrote {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path(__file__).resolve().parents[1] / "docs" / "pictures")
    output: Path = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    matplotlib.use("agg")
    pyplot.rcParams.update({"font.size": 9, "axes.edgecolor": QUIET, "axes.labelcolor": INK})
    shown = example()
    draw_all(shown, output, "", ["DejaVu Sans"], str)
    font = chinese_font()
    if font:
        draw_all(shown, output, ".zh", [font, "DejaVu Sans"], CHINESE.__getitem__)
    else:
        print(f"no font here has Chinese characters ({', '.join(CHINESE_FONTS)}): pictures with them are not drawn")


if __name__ == "__main__":
    main()
