"""Check some lines of a manifest in one process: whether they are entries, and what their audio is like."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from nest_ssl.data.audio import AudioFile, ChannelSelector
from nest_ssl.data.audio.entry import check_offset, read_entry, seconds_in_file
from nest_ssl.data.inspection.bandwidth import Hertz, measure_bandwidth
from nest_ssl.data.manifest import stable_hash
from nest_ssl.data.manifest_lines import ManifestEntry, ManifestRow, Seconds, numbered_lines, parse_json, parse_value
from nest_ssl.data.paths import real_name
from nest_ssl.data.problems import LENGTH_TOLERANCE, Problem, broken, file_name, length_problem, problem
from nest_ssl.errors import AudioError

NOT_CATEGORIES = frozenset(("audio_filepath", "audio_filename", "duration", "offset", "text"))
_LONGEST_CATEGORY = 100  # characters; a longer value is text
_FULL_SCALE = 32767 / 32768  # the highest value of 16 bits; louder samples are clipped
_FRAME_SECONDS = 0.025
# Speech spans 30 dB around its long-term level (ANSI S3.5, the Speech Intelligibility Index, counts 15 dB above and 15
# below); its loudest frame is at the upper end. Ten decibels of margin below the lower end are a pause in any voice.
_SILENCE_DB = -40.0  # relative to the loudest frame

Decibels = float


@dataclass(frozen=True)
class Rules:
    """The rules that decide whether a line has a problem."""

    sample_rate: int | None = None  # None: any, since training resamples
    channel_selector: ChannelSelector = None
    quick: bool = False  # read headers only: finds no damaged, silent or NaN samples
    ignored: frozenset[str] = frozenset()  # kinds of problems to ignore
    describe: bool = False  # also measure loudness and collect the categories of lines, for `nest-ssl data stats`
    min_bandwidth: Hertz | None = None  # None: any is allowed


class Loudness(NamedTuple):
    """The loudness of one signal; 0 dBFS is a constant 1.0, so a sine at full scale has an RMS of -3.01 dBFS."""

    rms: Decibels  # -inf if all samples are 0
    clipped: float  # share of samples at full scale
    silence: float  # share of frames far below the loudest; 1 if all samples are 0


@dataclass
class CheckedAudio:
    """The results of checking a line's audio; if a check fails, those of the checks before it."""

    problems: list[Problem] = field(default_factory=list)
    seconds: Seconds = 0.0
    sample_rate: int | None = None  # of audio that can be used
    header: tuple[int, str] | None = None  # sample rate and format of a file that can be opened
    loudness: Loudness | None = None
    bandwidth: Hertz = math.nan  # in a quick check, half of the header's rate


class CheckedLine(NamedTuple):
    """The result for one line; a tuple, because it comes from another process."""

    number: int
    audio: CheckedAudio
    row: ManifestRow | None = None  # None for a line that is no manifest entry
    part: int = 0  # the same for the same part of the same file
    file: int = 0  # the same for the same file
    categories: Mapping[str, str] | None = None  # if the rules ask for them


class ParsedLine(NamedTuple):
    """The JSON value of one line, and its row."""

    value: dict[str, Any]
    row: ManifestRow


class Block(NamedTuple):
    """Some lines to check; a tuple, because it is sent to another process."""

    manifest: int  # its number among those to check
    file: str
    first: int  # number of the first line
    content: bytes
    rules: Rules


def check_block(block: Block) -> list[CheckedLine]:
    """Check every line that is not blank."""
    lines = numbered_lines(block.first, block.content)
    return [_check_line(block.file, number, line, block.rules) for number, line in lines]


def parse_or_problem(manifest: str, number: int, line: bytes) -> ParsedLine | Problem:
    """Return the parsed line or, if it is no manifest entry, the problem."""
    try:
        value = parse_json(line)
        return ParsedLine(value, parse_value(value))
    except ValueError as error:
        place = f"{manifest}:{number}"
        return Problem("bad_line", "", place, f"{place}: {error}")


def _check_line(manifest: str, number: int, line: bytes, rules: Rules) -> CheckedLine:
    parsed = parse_or_problem(manifest, number, line)
    if isinstance(parsed, Problem):
        return CheckedLine(number, CheckedAudio([] if "bad_line" in rules.ignored else [parsed]))
    value, row = parsed
    entry = row.entry(manifest, number)
    found = categories(value) if rules.describe else None
    return CheckedLine(number, check_entry(entry, rules), row, *_fingerprints(entry), found)


def categories(value: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields of a line that may form groups, as texts: words, whole numbers, true and false."""
    found = {}
    for name, content in value.items():
        if name in NOT_CATEGORIES:
            continue
        if type(content) is str and 0 < len(content) <= _LONGEST_CATEGORY:
            found[name] = content
        elif type(content) in (int, bool):
            found[name] = str(content).lower()
    return found


def check_entry(entry: ManifestEntry, rules: Rules) -> CheckedAudio:
    """Read an entry's audio, or only its header, and return what was found."""
    audio = CheckedAudio()
    try:
        _check_audio(entry, rules, audio)
    except AudioError as error:
        audio.problems.append(broken(entry, error, "skipped"))
    audio.problems = [found for found in audio.problems if found.kind not in rules.ignored]
    return audio


def _check_audio(entry: ManifestEntry, rules: Rules, audio: CheckedAudio) -> None:
    """Add what is found to `audio`, which keeps it if an AudioError ends the check."""
    several = not isinstance(entry.audio_file, str)
    with AudioFile(file_name(entry)) as file:
        rate = file.sample_rate
        audio.header = rate, file.format
        if rules.quick and not several:
            audio.seconds, audio.problems = _by_its_header(entry, file, rules)
        else:
            samples, audio.problems = read_entry(
                entry, channel_selector=rules.channel_selector, file=None if several else file
            )
            audio.seconds = len(samples) / rate
            audio.bandwidth = measure_bandwidth(samples, rate)
            if rules.describe and not rules.quick:
                audio.loudness = measure_loudness(samples, rate)
    audio.sample_rate = rate
    if rules.quick:
        audio.bandwidth = rate / 2
    if rules.min_bandwidth is not None and audio.bandwidth < rules.min_bandwidth:
        audio.problems.append(problem(entry, "narrow_band", f"holds no sound above {audio.bandwidth:g} Hz"))
    if rules.sample_rate not in (None, rate):
        audio.problems.append(problem(entry, "sample_rate", f"has {rate} Hz, not {rules.sample_rate}"))


def _by_its_header(entry: ManifestEntry, file: AudioFile, rules: Rules) -> tuple[Seconds, list[Problem]]:
    """Return duration and problems by the header alone, with the rules of `read_entry`."""
    file_seconds = seconds_in_file(file)
    check_offset(entry, file_seconds)
    if entry.offset == file_seconds:
        raise AudioError(f"{file_name(entry)}: has no samples at offset {entry.offset:g} s", "empty")
    if file.channels > 1 and rules.channel_selector is None:
        raise AudioError(f"{file_name(entry)}: has {file.channels} channels", "channels")
    seconds = file_seconds - entry.offset
    if entry.duration is not None:
        seconds = min(seconds, entry.duration)
    length = length_problem(entry, seconds, file_seconds, LENGTH_TOLERANCE)
    return 0.0 if math.isnan(seconds) else seconds, [] if length is None else [length]


def _fingerprints(entry: ManifestEntry) -> tuple[int, int]:
    """Return hashes of the part and of the file; in ten million lines, the chance of a false match is 1 in 300,000."""
    names = [entry.audio_file] if isinstance(entry.audio_file, str) else entry.audio_file
    file = "\0".join(map(real_name, names))
    return stable_hash(f"{file}\0{entry.offset}\0{entry.duration}"), stable_hash(file)


def measure_loudness(samples: np.ndarray, sample_rate: int) -> Loudness:
    """Measure (S) finite samples, at least one.

    Silence is measured in frames that do not overlap; an incomplete last frame counts only if it is the only one.
    """
    length = min(max(1, round(_FRAME_SECONDS * sample_rate)), len(samples))
    whole = len(samples) // length * length
    frames = samples[:whole].reshape(-1, length)
    energies = np.einsum("fl,fl->f", frames, frames, dtype=np.float64)  # (frames, FRAME) -> (frames)
    energy = energies.sum() + np.square(samples[whole:], dtype=np.float64).sum()
    silent = energies <= energies.max() * 10 ** (_SILENCE_DB / 10)
    return Loudness(
        rms=float(10 * np.log10(energy / len(samples))) if energy > 0 else -np.inf,
        clipped=float(np.mean(np.abs(samples) >= _FULL_SCALE)),
        silence=float(np.mean(silent)),
    )
