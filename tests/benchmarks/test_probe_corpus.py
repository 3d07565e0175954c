"""The probe is tested on speech that was not used for pre-training, and means over time cannot give the answer."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from benchmarks import probe_corpus
from benchmarks.corpus import Corpus


@pytest.fixture(scope="module")
def folder(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("probe")
    probe_corpus.make(corpus, output)
    return output


def lines(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_no_prompt_is_used_for_both_pre_training_and_the_probe(folder: Path) -> None:
    tried = {line["prompt"] for line in lines(folder / "direction.json")}
    trained, validated = (
        {Path(line["audio_filepath"]).stem for line in lines(folder / f"{name}.json")}
        for name in ("speech", "validation")
    )
    assert tried
    assert trained
    assert not tried & (trained | validated)
    assert not trained & validated


def test_pieces_are_parts_of_their_prompts_and_half_of_them_are_reversed(folder: Path, corpus: Corpus) -> None:
    prompts = {Path(clip.audio_filepath).stem: clip.audio_filepath for clip in corpus.prompts}
    found = lines(folder / "direction.json")
    for line in found[:20]:
        heard = soundfile.read(line["audio_filepath"], dtype="int16")[0]
        whole = soundfile.read(prompts[line["prompt"]], dtype="int16")[0]
        number = int(Path(line["audio_filepath"]).stem.rpartition("_")[2])
        said = whole[number * len(heard) :][: len(heard)]
        np.testing.assert_array_equal(heard, said[::-1] if line["direction"] == "backwards" else said)
    share = np.mean([line["direction"] == "backwards" for line in found])
    assert 0.3 < share < 0.7


def test_music_is_added_at_the_stated_level(folder: Path) -> None:
    clean, noisy = lines(folder / "direction.json"), lines(folder / "direction_in_music.json")
    for one, other in list(zip(clean, noisy, strict=True))[:20]:
        assert (one["prompt"], one["direction"]) == (other["prompt"], other["direction"])
        speech = soundfile.read(one["audio_filepath"])[0]
        music = 2 * soundfile.read(other["audio_filepath"])[0] - speech
        ratio = 10 * np.log10(np.mean(speech**2) / np.mean(music**2))
        assert ratio == pytest.approx(probe_corpus.MUSIC_BELOW_SPEECH, abs=0.2)
