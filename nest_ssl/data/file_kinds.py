"""Recognise a file by its first bytes, for users who gave audio or an archive instead of a manifest."""

from __future__ import annotations

import re

_MOST_LOOKED_AT = 1024
_KINDS = (
    (re.compile(rb"(RIFF|RIFX|RF64)....WAVE|riff.{12}|FORM....AIF[FC]", re.DOTALL), "an audio file"),
    (re.compile(rb"\.snd|caff\0|NIST_1A|fLaC|OggS|ID3"), "an audio file"),
    (re.compile(rb"....ftyp|\x1aE\xdf\xa3", re.DOTALL), "an audio or video file"),
    (re.compile(rb"\xff[\xe2-\xfd](?!\xff)"), "an audio file"),  # the frame of an MP3 file, or of AAC
    (re.compile(rb"\x1f\x8b"), "packed by gzip"),
    (re.compile(rb"BZh[1-9]1AY&SY"), "packed by bzip2"),
    (re.compile(rb"\xfd7zXZ\0"), "packed by xz"),
    (re.compile(rb"\x28\xb5\x2f\xfd"), "packed by zstd"),
    (re.compile(rb"PK(\x03\x04|\x05\x06)"), "a zip archive"),
    (re.compile(rb"7z\xbc\xaf\x27\x1c"), "a 7-Zip archive"),
    (re.compile(rb"(?=.{0,256}\0).{257}ustar", re.DOTALL), "a tar file"),
    (re.compile(rb"\xff\xfe|\xfe\xff|[{\[]\0|\0[{\[]"), "text in UTF-16, not in UTF-8"),
    (re.compile(rb"[^{\n]*\0"), "a binary file"),
)


def not_text(start: bytes) -> str | None:
    """Return what a file with these first bytes is, as words after `is`; None for text."""
    looked_at = start[:_MOST_LOOKED_AT]
    return next((words for pattern, words in _KINDS if pattern.match(looked_at)), None)
