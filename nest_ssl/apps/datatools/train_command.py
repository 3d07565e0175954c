"""Complete commands that are printed for the user to copy and run."""

from __future__ import annotations

from collections.abc import Sequence

from nest_ssl.shell import hydra_value

SHARE = "5%"  # to hold out by default


def train_words(
    train: Sequence[str],
    val: Sequence[str],
    noise: Sequence[str] = (),
    overrides: Sequence[str] = (),
    channel_selector: str | int | None = None,
) -> list[str]:
    """Return the words of `nest-ssl train` with these manifests; both sets use the noise, or none."""
    noise_value = hydra_value(noise) if noise else "null"
    words = ["nest-ssl train"]
    for node, manifests in (("train_ds", train), ("validation_ds", val)):
        words.append(f"model.{node}.manifest_filepath={hydra_value(manifests)}")
        words.append(f"model.{node}.noise_manifest={noise_value}")
        if channel_selector is not None:
            words.append(f"model.{node}.channel_selector={channel_selector}")
    return [*words, *overrides]


def split_words(manifests: Sequence[str], group_by: str | None = None) -> list[str]:
    """Return the words of the command that holds out a share of these manifests for validation."""
    return ["nest-ssl data split", *manifests, "--val", SHARE, *([] if group_by is None else ["--group-by", group_by])]
