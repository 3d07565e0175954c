"""Convert formats that libsndfile does not read (m4a, webm, ...) to FLAC by an installed ffmpeg.

The file may be hostile: ffmpeg runs without a shell, may open only this file by the `file` protocol and only containers
that name no other files, and has limits of time and length.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from nest_ssl.atomic import atomic_write
from nest_ssl.data.audio.sample_rate import SAMPLE_RATE
from nest_ssl.errors import AudioError, one_line

_MOST_SECONDS_OF_WORK = 1800
_MOST_SECONDS_OF_AUDIO = 24 * 3600
# Without playlists (hls, concat, sdp), which open the files that they name.
_CONTAINERS = (
    *("mov", "mp4", "m4a", "3gp", "3g2", "mj2", "matroska", "webm", "ogg", "mp3", "aac", "asf", "amr", "wav", "w64"),
    *("flac", "aiff", "au", "ac3", "eac3", "wv", "ape", "tta", "dsf", "nistsphere"),
    "caf",  # codespell:ignore caf
)


def find_ffmpeg() -> str | None:
    """Return the path of the program, None if it is not installed."""
    return shutil.which("ffmpeg")


def convert(source: Path, target: Path, program: str) -> None:
    """Write the first audio stream of a file as 16 kHz FLAC with all its channels; raise AudioError on failure."""
    with atomic_write(target) as temporary:
        command = [
            *(program, "-nostdin", "-hide_banner", "-loglevel", "error", "-xerror", "-threads", "1"),
            *("-protocol_whitelist", "file", "-format_whitelist", ",".join(_CONTAINERS)),
            *("-i", f"file:{source.absolute()}", "-map", "0:a:0", "-vn", "-sn", "-dn", "-map_metadata", "-1"),
            *("-t", str(_MOST_SECONDS_OF_AUDIO), "-ar", str(SAMPLE_RATE), "-sample_fmt", "s16"),
            *("-f", "flac", "-y", f"file:{temporary.absolute()}"),
        ]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=_MOST_SECONDS_OF_WORK,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise AudioError(f"{source}: ffmpeg needs more than {_MOST_SECONDS_OF_WORK} s for it") from None
        except OSError as error:
            raise AudioError(f"{source}: ffmpeg cannot be run: {one_line(error.strerror or error)}") from None
        if done.returncode or done.stderr:
            said = done.stderr.decode("utf-8", "replace").replace(f"file:{source.absolute()}: ", "").splitlines()
            raise AudioError(f"{source}: ffmpeg cannot read it: {one_line(said[-1] if said else done.returncode)}")
