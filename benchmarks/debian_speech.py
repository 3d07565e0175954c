"""Real recorded speech, and music as noise, from packages of Debian: the telephone prompts of Asterisk."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from nest_ssl.errors import NestError

SOUNDS = Path("/usr/share/asterisk/sounds")
MUSIC = Path("/usr/share/asterisk/moh")
LANGUAGES = ("en", "es", "fr")


def is_installed() -> bool:
    """Return whether speech, music and the decoder of their format are installed."""
    return shutil.which("ffmpeg") is not None and any(SOUNDS.rglob("*.g722")) and any(MUSIC.glob("*.g722"))


def install(languages: Sequence[str] = LANGUAGES) -> None:
    """Install the missing packages with apt, about 100 MB; the languages `it` and `ru` exist, too."""
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise NestError("--install-speech needs apt-get and root; without it, speech is generated")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    packages = [f"asterisk-core-sounds-{language}-g722" for language in languages]
    packages += ["asterisk-moh-opsound-g722", "ffmpeg"]
    for command in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
        finished = subprocess.run(["apt-get", "-q", *command], capture_output=True, text=True, env=environment)
        if finished.returncode:
            last = (finished.stderr.strip().splitlines() or ["no message"])[-1]
            raise NestError(f"apt-get {command[0]} failed ({last}); without --install-speech, speech is generated")


def decode(folder: Path) -> tuple[list[Path], list[Path]]:
    """Decode all prompts and all music to 16 kHz mono WAV files in `folder`; return them in a fixed order."""
    prompts = [path for path in sorted(SOUNDS.rglob("*.g722")) if "silence" not in path.parts]
    speech = [(path, folder / "speech" / "_".join(path.relative_to(SOUNDS).parts)) for path in prompts]
    noise = [(path, folder / "noise" / path.name) for path in sorted(MUSIC.glob("*.g722"))]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(_decode, *zip(*speech, strict=True))), list(pool.map(_decode, *zip(*noise, strict=True)))


def _decode(source: Path, target: Path) -> Path:
    target = target.with_suffix(".wav")
    target.parent.mkdir(parents=True, exist_ok=True)
    reading, writing = ["-f", "g722", "-i", str(source)], ["-ar", "16000", "-ac", "1", str(target)]
    command = ["ffmpeg", "-loglevel", "error", "-y", *reading, *writing]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    return target
