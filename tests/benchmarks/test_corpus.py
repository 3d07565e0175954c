"""The corpus: clips of every round have the same lengths, distributed as in the whole corpus."""

from __future__ import annotations

import json
import statistics
import wave
from pathlib import Path

import pytest

from benchmarks import debian_speech
from benchmarks.corpus import Clip, Corpus, load_corpus
from nest_ssl.errors import NestError


def _corpus(durations: list[float]) -> Corpus:
    prompts = [Clip(f"{number}.wav", duration) for number, duration in enumerate(sorted(durations))]
    return Corpus("test", prompts, [Clip("long.wav", 30.0), Clip("longer.wav", 60.0)], Clip("tape.wav", 25.0), Path())


SKEWED = _corpus([1.0 + 19.0 * (index / 200) ** 4 for index in range(200)])


def test_a_few_clips_have_the_distribution_of_all() -> None:
    chosen = [clip.duration for clip in SKEWED.clips_to(20.0, 40, order=0)]
    everything = [clip.duration for clip in SKEWED.prompts]
    assert statistics.mean(chosen) == pytest.approx(statistics.mean(everything), rel=0.02)
    assert max(chosen) > 0.9 * max(everything)


def test_rounds_differ_only_in_order() -> None:
    first, again, second = (SKEWED.clips_to(60.0, 24, order) for order in (0, 0, 1))
    assert first == again != second
    assert sorted(first, key=str) == sorted(second, key=str)
    assert sum(clip.duration > 20 for clip in first) == 2


@pytest.mark.parametrize("limit", [5.0, 20.0])
def test_no_clip_exceeds_the_limit(limit: float) -> None:
    assert all(1.0 <= clip.duration <= limit for clip in SKEWED.clips_to(limit, 30, order=3))
    assert all(1.0 <= clip.duration <= limit for clip in SKEWED.prompts_of(limit))


def test_cut_clips_are_within_the_tape() -> None:
    clips = SKEWED.cut([10.0] * 5)
    assert [clip.duration for clip in clips] == [10.0] * 5
    assert [clip.offset for clip in clips] == [0.0, 10.0, 0.0, 10.0, 0.0]


def test_generated_files_have_the_durations_in_their_manifest(corpus: Corpus) -> None:
    noises = [Clip(**json.loads(line)) for line in corpus.noise_manifest.read_text().splitlines()]
    for clip in [*corpus.prompts, *corpus.long_clips, corpus.tape, *noises]:
        with wave.open(clip.audio_filepath) as file:
            assert (file.getframerate(), file.getnchannels()) == (16000, 1)
            assert file.getnframes() / 16000 == pytest.approx(clip.duration)


def test_a_complete_corpus_is_not_made_again(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debian_speech, "is_installed", lambda: False)
    before = corpus.noise_manifest.stat().st_mtime_ns
    assert load_corpus(corpus.noise_manifest.parents[1]) == corpus
    assert corpus.noise_manifest.stat().st_mtime_ns == before


def test_installing_speech_without_apt_gives_an_error_that_names_the_alternative(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(NestError, match="needs apt-get and root; without it, speech is generated"):
        debian_speech.install()
