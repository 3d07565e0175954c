"""The content of a run's page, for complete runs and for runs with missing files."""

from __future__ import annotations

import json
import re
import shutil
import string
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest

from nest_ssl.apps.pages.page import templates
from nest_ssl.apps.report.health import Finding, Health
from nest_ssl.apps.report.page import FOLDER, render
from nest_ssl.apps.report.run import open_runs
from nest_ssl.apps.report.summary import gather
from nest_ssl.apps.report.texts import number, span, words
from tests.apps.report.example_runs import CONFIG, training, write_events, write_run, write_samples


class Text(HTMLParser):
    """The English text and the elements of a page; fails if elements are not nested correctly."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.english = ""
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.ids: list[str] = []
        self._open: list[tuple[str, str | None]] = []
        self.feed(page)
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id" and value]
        if tag not in ("meta", "input", "wbr", "br"):
            self._open.append((tag, dict(attrs).get("lang")))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        if not any(tag in ("style", "script") or language == "zh" for tag, language in self._open):
            self.english += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def page_of(*folders: Path) -> str:
    return render(gather(open_runs(folders)))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", began=time.time() - 200)


def test_a_whole_run_has_every_section(run: Path) -> None:
    write_samples(run, 1000)
    said = Text(page_of(run))
    for heading in (
        "Healthy",
        "Finished",
        "step 1,000 of 1,000",
        "Curves",
        "Codebooks",
        "Throughput",
    ):
        assert heading in said.english
    for heading in ("Samples to listen to", "Skipped data", "Starts", "Configuration", "Environment"):
        assert heading in said.english
    assert len(said.all("audio")) == 4
    assert len(said.ids) == len(set(said.ids))
    assert "Not logged by this run" not in said.english


def test_the_page_of_a_trained_run_shows_both_starts(trained: Path) -> None:
    said = Text(page_of(trained))
    assert "Too early to say" in said.english
    assert "trainer.max_steps: 4 → 8" in said.english
    assert "0 – 3" in said.english
    assert "4 – 7" in said.english


def test_a_folder_with_next_to_nothing_in_it_makes_a_page(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("name: just begun\n")
    said = Text(page_of(tmp_path)).english
    assert "Nothing to judge by yet" in said
    assert "Nothing has been logged yet." in said
    assert "There is no environment.json" in said
    assert "has no samples" in said


def test_missing_values_are_listed_by_tag(tmp_path: Path) -> None:
    write_events(tmp_path, ({"train_loss": training()["train_loss"]}, range(0, 500, 5)), began=time.time() - 100)
    said = Text(page_of(tmp_path)).english
    assert "Not logged by this run: train/accuracy, val/accuracy, learning_rate" in said
    assert "This run logs nothing about its codebooks" in said
    assert "There is no config.yaml" in said


def test_a_damaged_samples_file_is_reported_on_a_complete_page(run: Path) -> None:
    write_samples(run, 7).write_bytes(b"PK not a zip file")
    said = Text(page_of(run)).english
    assert "The samples cannot be read." in said
    assert "Environment" in said


def test_several_runs_share_charts_and_their_differences_are_listed(tmp_path: Path) -> None:
    other = json.loads(json.dumps(CONFIG))
    other["model"]["optim"]["lr"] = 0.6
    began = time.time() - 300
    folders = [
        write_run(tmp_path / "first", began=began),
        write_run(tmp_path / "second", began=began, config=other, decay=900),
    ]
    for folder in folders:
        write_samples(folder, 1000)
    page = page_of(*folders)
    said = Text(page)
    assert "2 training runs side by side" in said.english
    assert len(said.ids) == len(set(said.ids))
    assert len(said.all("audio")) == 4  # one utterance of each
    difference = re.search(r"model\.<wbr>optim\.<wbr>lr</code></th><td>(.*?)</td><td>(.*?)</td>", page)
    assert difference is not None
    assert difference.groups() == ("0.3", "0.6")
    lines = json.loads(said.all("figure")[0]["data-chart"] or "")["lines"]
    assert [line["en"] for line in lines] == [
        f"{run} {kind}" for run in ("first", "second") for kind in ("training", "validation")
    ]


def test_the_best_value_of_a_row_is_bold(tmp_path: Path) -> None:
    began = time.time() - 300
    folders = [write_run(tmp_path / name, began=began, decay=decay) for name, decay in (("a", 300.0), ("b", 900.0))]
    page = page_of(*folders)
    row = re.search(r"Best validation loss.*?</tr>", page)
    assert row is not None
    assert len(re.findall(r"<td><strong>", row[0])) == 1
    assert row[0].index("<strong>") < row[0].index("</td>")


def test_skipped_data_are_counted_with_an_example(run: Path) -> None:
    values = {"skipped_audio": lambda step: 3.0, "nonfinite_steps": lambda step: 2.0}
    write_events(run, (values, range(995, 1000)), began=time.time())
    record = {"kind": "silent", "file": "a.wav", "line": "m:1", "message": "a.wav: is silent", "count": 5}
    (run / "problem_audio.rank1.jsonl").write_text(json.dumps(record) + "\n")
    (run / "nonfinite_batches").mkdir()
    (run / "nonfinite_batches" / "step7-rank0.pt").touch()
    said = Text(page_of(run)).english
    assert "Utterances skipped: 3. Batches without masked frames: 0." in said
    assert "not finite: 2." in said
    assert "silent1a.wav: is silent" in said
    assert "step7-rank0.pt" in said


def test_spikes_restarts_and_the_loss_of_guessing_are_drawn(run: Path) -> None:
    write_events(run, (training(), range(904, 1200, 5)), began=time.time() - 5)
    page = page_of(run)
    gradient = re.search(r'<svg class="chart narrow"[^>]*chart-gradient_norm.*?</svg>', page, re.DOTALL)
    assert gradient is not None
    assert pytest.approx(_highest(gradient[0]), abs=1) == 16 + 180 * 0.06  # the spike is drawn one margin below the top
    assert "restart" in gradient[0]
    loss = re.search(r'<svg class="chart narrow"[^>]*chart-losses.*?</svg>', page, re.DOTALL)
    assert loss is not None
    assert "level-name" in loss[0]


def _highest(chart: str) -> float:
    """Return the smallest y of the logged curve, which is its highest point on the page."""
    raw = re.search(r'<path class="curve raw[^"]*" d="([^"]*)"', chart)
    assert raw is not None
    return min(float(point.split()[1]) for point in re.split("[ML]", raw[1]) if point)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, -5.0, 1e300, 1e-300])
def test_unusual_numbers_can_be_drawn(tmp_path: Path, value: float) -> None:
    odd = {tag: (lambda step, of=of: value if step % 3 else of(step)) for tag, of in training().items()}
    write_events(tmp_path, (odd, range(100)), began=time.time() - 100)
    write_events(tmp_path, ({"val_loss": lambda step: value}, range(100, 102)), began=time.time() - 50)
    numbers = re.findall(r' (?:d|x|y|width|height)="([^"]*)"', page_of(tmp_path))
    assert not [text for text in numbers if "nan" in text or "inf" in text]


def test_names_and_settings_never_become_markup(tmp_path: Path) -> None:
    attack = "<script>alert(1)<script>\"'&<img src=x onerror=alert(1)>"
    config = {**CONFIG, "name": attack, attack: attack}
    folder = write_run(tmp_path / "a<img src=x>&b", began=time.time() - 200, config=config)
    adjusted = [{"key": attack, "asked": attack, "used": attack, "reason": attack}]
    (folder / "environment.json").write_text(json.dumps({attack: attack, "command": [attack], "adjusted": adjusted}))
    record = {"kind": attack, "file": attack, "line": attack, "message": attack, "count": 1}
    (folder / "problem_audio.jsonl").write_text(json.dumps(record) + "\n")
    other = shutil.copytree(folder, tmp_path / "other")
    for page in (page_of(folder), page_of(folder, other)):
        said = Text(page)
        assert len(said.all("script")) == 1
        assert not said.all("img")
        assert said.english.count("<script>alert(1)") >= 6


def test_the_policy_allows_data_addresses_of_pictures_and_sound_and_nothing_else(run: Path) -> None:
    write_samples(run, 1000)
    page = page_of(run)
    policy = next(str(of["content"]) for of in Text(page).all("meta") if of.get("http-equiv"))
    parts = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert parts["default-src"] == "'none'"
    assert parts["img-src"] == parts["media-src"] == "data:"
    assert "unsafe" not in policy
    addresses = {value for _, of in Text(page).elements for name, value in of.items() if name in ("src", "href")}
    assert addresses
    assert {str(value).partition(";")[0] for value in addresses} == {"data:audio/wav", "data:image/png"}


def test_a_long_run_makes_a_light_page_quickly(tmp_path: Path) -> None:
    write_events(tmp_path, (training(decay=1e5), range(49, 500_000, 250)), began=time.time() - 1e5)
    (tmp_path / "config.yaml").write_text(json.dumps(CONFIG))
    began = time.process_time()
    page = page_of(tmp_path)
    assert time.process_time() - began < 3
    assert len(page) < 1_000_000


def test_both_languages_say_every_text_with_the_same_values() -> None:
    def fields(text: str) -> set[str | None]:
        return {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}

    for key, (english, chinese) in words.texts.items():
        assert fields(english) == fields(chinese), key


def test_every_finding_has_a_sentence_and_every_bad_one_a_title() -> None:
    from nest_ssl.apps.report import health

    source = Path(health.__file__).read_text(encoding="utf-8")
    found = re.findall(r'Finding\("(\w+)", "(\w+)"', source)
    assert len(found) > 10
    assert [key for _, key in found if f"why_{key}" not in words.texts] == []
    assert [key for state, key in found if state in ("bad", "caution") and key not in words.texts] == []


@pytest.mark.parametrize(
    ("seconds", "english"), [(0, "0 s"), (59.4, "59 s"), (60, "1 min"), (3700, "1 h 1 min"), (90_000, "1 d 1 h")]
)
def test_spans_of_time_have_two_units_at_most(seconds: float, english: str) -> None:
    assert span(seconds).english.replace("\xa0", " ") == english


@pytest.mark.parametrize(
    ("value", "shown"), [(4.12345, "4.123"), (12345.6, "12,346"), (1.2e-5, "1.2e-05"), (float("nan"), "NaN")]
)
def test_numbers_are_short(value: float, shown: str) -> None:
    assert number(value) == shown


def test_findings_of_several_codebooks_are_listed_once() -> None:
    values = {"perplexity": 80.0, "codes": 256.0}
    books = [Finding("good", "varied_targets", {"book": float(number), **values}) for number in range(3)]
    findings = templates(FOLDER).get_template("sections.html").module.findings
    listed = findings(Health(tuple(books)))
    assert listed.count("<li") == 1
    assert "Codebook 0" in listed
    assert "2 other codebooks likewise." in listed
    assert "likewise" not in findings(Health(tuple(books[:1])))
