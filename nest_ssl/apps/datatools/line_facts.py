"""Facts about one line of a manifest for `nest-ssl data stats`, collected while its audio is checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from nest_ssl.apps.datatools.loudness import Loudness
from nest_ssl.data.audio import AudioFile

NOT_CATEGORIES = frozenset(("audio_filepath", "audio_filename", "duration", "offset", "text"))
_LONGEST_CATEGORY = 100  # characters; a longer value is text


class Header(NamedTuple):
    """The header of an audio file."""

    sample_rate: int  # Hz
    channels: int
    format: str

    @classmethod
    def of(cls, file: AudioFile) -> Header:
        return cls(file.sample_rate, file.channels, file.format)


class LineFacts(NamedTuple):
    """One line that is an entry, whether or not its audio can be used."""

    categories: dict[str, str]  # its other fields, such as the speaker
    in_tar: bool = False  # its audio is a member of a tar file
    header: Header | None = None  # None: the file cannot be opened
    loudness: Loudness | None = None  # None: its samples were not read, or cannot be used


def categories(value: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields of a line that may form groups: words, whole numbers, true and false."""
    found = ((name, as_category(said)) for name, said in value.items() if name not in NOT_CATEGORIES)
    return {name: text for name, text in found if text is not None}


def as_category(value: Any) -> str | None:
    """Return a field's value as text; None if it is a long text, a measurement or a structure."""
    if type(value) is str:
        return value if 0 < len(value) <= _LONGEST_CATEGORY else None
    return json.dumps(value) if type(value) in (int, bool) else None
