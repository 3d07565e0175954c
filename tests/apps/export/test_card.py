"""The model card: it states only facts from the file, and replaces no README of the user."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from nest_ssl.apps.export import export
from nest_ssl.errors import NestError
from tests.apps.export.saved_models import checkpoint_of, small_model


def front_matter(card: Path) -> dict[str, object]:
    _, text, _ = card.read_text(encoding="utf-8").split("---\n", 2)
    return yaml.safe_load(text)


def test_a_checkpoint_tells_how_it_was_trained(tmp_path: Path) -> None:
    model = small_model("model.num_books=2", "model.train_ds.noise_manifest=noise.json")
    export(checkpoint_of(model, tmp_path / "last.ckpt"), tmp_path / "out" / "nest.safetensors")
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    parameters = sum(parameter.numel() for parameter in model.parameters())
    for fact in (
        "# nest\n",
        f"| parameters | {parameters:,}, of which ",
        "| steps | 1,200, in epoch 7 |",
        "| val_loss | 3.2500 at the last validation",
        "| attention | rel_pos, context unlimited |",
        "| masking | blocks of 40 frames, may overlap, probability 0.04 |",
        "| targets | 64 codes of random projections, 2 at a time |",
        "| augmentation | noise or other speakers mixed into a clip with probability 0.5 |",
        "nest-ssl convert nest.safetensors nest.nemo",
    ):
        assert fact in card


def test_an_archive_does_not_know_and_the_card_does_not_say(archive: Path, tmp_path: Path) -> None:
    export(archive, tmp_path / "nest.safetensors")
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "| steps |" not in card
    assert "loss |" not in card
    assert "| augmentation | other speakers mixed" in card  # there is no noise manifest


@pytest.mark.parametrize(
    ("given", "written"), [(None, "unknown"), ("cc-by-4.0", "cc-by-4.0"), ("no: [yes", "no: [yes")]
)
def test_the_license_is_what_was_given(archive: Path, tmp_path: Path, given: str | None, written: str) -> None:
    export(archive, tmp_path / "nest.safetensors", license=given)
    told = front_matter(tmp_path / "README.md")
    assert (told["license"], told["library_name"]) == (written, "nest_ssl")


def test_our_own_card_is_replaced(archive: Path, tmp_path: Path) -> None:
    for given in ("mit", "apache-2.0"):
        export(archive, tmp_path / "nest.safetensors", license=given)
    assert front_matter(tmp_path / "README.md")["license"] == "apache-2.0"


@pytest.mark.parametrize("change", ["# My project\n", None])
def test_a_readme_of_somebody_else_or_changed_by_somebody_stays(
    archive: Path, tmp_path: Path, change: str | None
) -> None:
    card, weights = tmp_path / "README.md", tmp_path / "nest.safetensors"
    if change is None:
        export(archive, weights)
        change = card.read_text(encoding="utf-8") + "\nTrained on whale song.\n"
        weights.unlink()
    card.write_text(change, encoding="utf-8")
    with pytest.raises(NestError, match=r"README\.md: was written or changed by somebody else; --force replaces it"):
        export(archive, weights)
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]
    assert card.read_text(encoding="utf-8") == change
    export(archive, weights, replace_card=True)
    assert "library_name: nest_ssl" in card.read_text(encoding="utf-8")
