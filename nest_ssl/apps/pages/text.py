"""Text for pages: in English and Chinese at once, and escaped unless it is HTML already."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass


class Html(str):
    """Text that is HTML already; everything else is escaped before it enters a page."""


class Count(int):
    """A number of things: `{steps:step}` reads "1 step" or "2 steps", `{steps}` only the number."""

    def __format__(self, noun: str) -> str:
        return f"{int(self):,} {noun}{'' if self == 1 else 's'}" if noun else f"{int(self):,}"


@dataclass(frozen=True)
class Words:
    """One text in both languages; the page shows the one that is chosen."""

    english: Html
    chinese: Html

    def __str__(self) -> str:
        if self.english == self.chinese:
            return self.english
        return f'<span lang="en">{self.english}</span><span lang="zh">{self.chinese}</span>'

    @property
    def heading(self) -> Words:
        """With a capital letter, as the title of something."""
        return Words(Html(self.english[:1].upper() + self.english[1:]), self.chinese)

    @property
    def languages(self) -> tuple[tuple[str, Html], tuple[str, Html]]:
        return ("en", self.english), ("zh", self.chinese)


@dataclass(frozen=True)
class Phrases:
    """The texts of one kind of page by their keys, English and Chinese."""

    texts: Mapping[str, tuple[str, str]]

    def __call__(self, key: str, **values: object) -> Words:
        """The text of that key with values filled in: escaped, or in the same language if they are words themselves."""
        english, chinese = self.texts[key]
        return Words(
            Html(english.format(**{name: _filled(value, 0) for name, value in values.items()})),
            Html(chinese.format(**{name: _filled(value, 1) for name, value in values.items()})),
        )


def escaped(value: object) -> Html:
    return value if isinstance(value, Html) else Html(html.escape(str(value)))


def code(value: object) -> Html:
    """A name. Long ones may break after a dot."""
    return Html(f"<code>{escaped(value).replace('.', '.<wbr>')}</code>")


def _filled(value: object, language: int) -> object:
    if isinstance(value, Words):
        return value.languages[language][1]
    return value if isinstance(value, Count) else escaped(value)
