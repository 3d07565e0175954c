"""What the page tells of the data: how long utterances are, how much is padding, and what they sound like."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from nest_ssl.apps.pages.svg import Frame, round_values, svg, text
from nest_ssl.apps.pages.text import Count, Html, Words
from nest_ssl.apps.report.charts import histogram
from nest_ssl.apps.report.curve_sections import padding_figure
from nest_ssl.apps.report.data_sets import READING_SECONDS, DataSet
from nest_ssl.apps.report.gathered import RunReport
from nest_ssl.apps.report.samples import Sample, as_wav, runs, spectrogram, token_strip
from nest_ssl.apps.report.texts import words
from nest_ssl.errors import NestError

_BARS = 40
_PICTURE = Frame(left=70, right=948, top=8, bottom=168)
_ROWS = (("row_targets", 178.0), ("row_predicted", 198.0), ("row_scored", 218.0))
_ROW_HEIGHT = 14.0


def data_section(report: RunReport, number: int, *, padding: bool) -> str:
    """Durations of both sets; `number` tells this run's charts from those of others on the page."""
    if not report.run.config:
        return f"<section><h2>{words('data')}</h2><p>{words('no_config_data')}</p></section>"
    figures = "".join(_set_figure(of, f"durations-{number}-{of.name}") for of in report.data)
    unread = "".join(
        f'<p class="muted">{words("set_problem", name=words(f"set_{of.name}"), problem=of.problem)}</p>'
        for of in report.data
        if of.problem is not None
    )
    hint = ""
    if padding:
        figures += padding_figure([report])
        hint = f'<p class="muted">{words("efficiency_hint")}</p>'
    return f'<section><h2>{words("data")}</h2><div class="pair">{figures}</div>{unread}{hint}</section>'


def samples_section(report: RunReport, number: int, most: int) -> str:
    """At most so many utterances of the newest validation."""
    found = report.samples
    if found is None:
        return f"<section><h2>{words('samples')}</h2><p>{words('no_samples')}</p></section>"
    if isinstance(found, NestError):
        return f"<section><h2>{words('samples')}</h2><p>{words('bad_samples', problem=found)}</p></section>"
    shown = "".join(
        _sample(sample, place, f"sample-{number}-{place}") for place, sample in enumerate(found.samples[:most], start=1)
    )
    return f"<section><h2>{words('samples')}</h2><p>{words('samples_at', step=Count(found.step))}</p>{shown}</section>"


def _set_figure(found: DataSet, caption: str) -> str:
    known = found.known
    if not len(known):
        return ""
    low = 0.0 if known.min() < known.max() / 3 else float(known.min())
    bars = min(_BARS, max(5, round(math.sqrt(len(known)) * 2)))
    counts, edges = np.histogram(known, bins=bars, range=(low, max(float(known.max()), low + 0.1)))
    notes = "".join(f'<p class="muted">{note}</p>' for note in _notes(found))
    described = words(
        "set_caption",
        name=Words(*(Html(f"<strong>{name}</strong>") for _, name in words(f"set_{found.name}").languages)),
        count=Count(len(found.durations)),
        hours=f"{known.sum() / 3600:,.4g}" if known.sum() < 3.6e6 else f"{known.sum() / 3600:,.0f}",
        median=f"{np.median(known):.3g}",
        longest=f"{known.max():.3g}",
    )
    drawn = histogram(counts, edges, caption, (found.shortest, found.longest))
    return (
        f'<figure><figcaption id="{caption}">{described}</figcaption>{drawn}'
        f'<output class="reading"></output>{notes}</figure>'
    )


def _notes(found: DataSet) -> Iterator[Words]:
    outside = len(found.known) - len(found.used)
    if outside:
        high = "∞" if math.isinf(found.longest) else f"{found.longest:g}"
        yield words("set_outside", count=Count(outside), low=f"{found.shortest:g}", high=high)
    unsaid = len(found.durations) - len(found.known)
    if unsaid:
        yield words("set_unsaid", count=Count(unsaid))
    if found.cut_short:
        yield words("set_cut_short", count=Count(len(found.durations)), seconds=f"{READING_SECONDS:g}")


def _sample(sample: Sample, place: int, name: str) -> str:
    sounds = as_wav([sample.clean, sample.noisy], sample.sample_rate)
    players = "".join(
        f'<label>{words(key)}<audio controls preload="metadata" src="{sound}"></audio></label>'
        for key, sound in zip(("clean", "noisy"), sounds, strict=True)
    )
    right, scored = int(sample.correct.sum()), int(sample.scored.sum())
    title = words("sample", number=place, seconds=f"{sample.seconds:.1f}")
    caption = words("picture_caption", right=Count(right), scored=Count(scored))
    keys = "".join(f'<span class="key"><i class="{key}"></i>{words(f"key_{key}")}</span>' for key in ("right", "wrong"))
    return (
        f'<h3>{title}</h3><div class="players">{players}</div>'
        f'<figure><figcaption id="{name}">{caption}</figcaption>'
        f'<div class="scroll">{_picture(sample, name)}</div><p class="legend">{keys}</p></figure>'
    )


def _picture(sample: Sample, caption: str) -> str:
    """Spectrogram and mask, and the tokens below them on the same axis of time."""
    frame, frames = _PICTURE, max(sample.features.shape[1], 1)
    width = frame.right - frame.left

    def across(mel_frame: float) -> float:
        return frame.left + min(mel_frame / frames, 1.0) * width

    parts = [
        '<defs><pattern id="' + caption + '-stripes" width="6" height="6" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><rect class="veil" width="6" height="6"/><path class="stripe" d="M0 0V6"/>'
        "</pattern></defs>",
        _image(spectrogram(sample.features), frame.left, frame.top, width, frame.bottom - frame.top),
    ]
    for start, end in runs(sample.mask):
        parts.append(
            f'<rect fill="url(#{caption}-stripes)" x="{across(start):.1f}" y="{frame.top:g}" '
            f'width="{across(end) - across(start):.1f}" height="{frame.bottom - frame.top:g}"/>'
        )
    per_token = sample.frames_per_token
    strip = across(len(sample.targets) * per_token) - frame.left
    for (key, y), tokens in zip(_ROWS, (sample.targets, sample.predicted), strict=False):
        parts += [*text(words(key), frame.left - 8, y + 11, "end"), *_strip(tokens, frame.left, y, strip)]
    key, y = _ROWS[-1]
    parts += text(words(key), frame.left - 8, y + 11, "end")
    for style, flags in (("right", sample.correct), ("wrong", sample.scored & ~sample.correct)):
        spans = [(across(start * per_token), across(end * per_token)) for start, end in runs(flags)]
        parts += [_box(style, left, right, y) for left, right in spans]
    parts += _time_axis(sample.seconds, frame)
    return svg(960, 258, caption, parts, "wide")


def _strip(tokens: np.ndarray, x: float, y: float, width: float) -> Sequence[str]:
    return [_image(token_strip(tokens), x, y, width, _ROW_HEIGHT)] if len(tokens) else []


def _image(address: str, x: float, y: float, width: float, height: float) -> str:
    return (
        f'<image class="pixels" href="{address}" x="{x:g}" y="{y:g}" width="{width:.1f}" height="{height:g}" '
        'preserveAspectRatio="none"/>'
    )


def _box(style: str, left: float, right: float, y: float) -> str:
    return f'<rect class="{style}" x="{left:.1f}" y="{y:g}" width="{right - left:.1f}" height="{_ROW_HEIGHT:g}"/>'


def _time_axis(seconds: float, frame: Frame) -> Iterator[str]:
    for value in round_values(0, max(seconds, 0.1), 10):
        x = frame.left + value / max(seconds, 0.1) * (frame.right - frame.left)
        yield f'<text class="middle" x="{x:.1f}" y="250">{value:g}</text>'
    yield from text(words("axis_seconds"), frame.left - 12, 250, "end")
