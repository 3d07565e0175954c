"""Example comparisons to render: two runs that are identical, and two that diverge at a layer."""

from __future__ import annotations

from dataclasses import replace

from nest_ssl.apps.alignment.compare import Comparison, CurvePoint, StepComparison
from nest_ssl.apps.alignment.sections import Compared, Section, Tolerance

NUMBERS = 640


def identical(layers: int = 2, steps: int = 2, logged: int = 3) -> Comparison:
    """Return the comparison of two runs that are the same to the last bit."""
    names = _layer_names(layers)
    weights = [f"{name}.weight" for name in names]
    compared = [
        StepComparison(
            step=step,
            losses=(4.5, 4.5),
            batch=_section("batch", ["audio", "audio_len"]),
            forward=_section("forward", ["log_probs"]),
            loss=_section("loss", ["loss"]),
            gradients=_section("gradients", weights),
            weights=_section("weights", weights),
            layers=_section("layers", names),
        )
        for step in range(steps)
    ]
    return Comparison(
        nemo=_metadata("nemo", "3.0.0"),
        ours=_metadata("nest_ssl", "0.1.0"),
        tolerance=Tolerance(),
        structure=_section("structure", weights),
        initial_weights=_section("initial weights", weights),
        parameters=(113_106_000, 113_106_000),
        steps=compared,
        curves=[CurvePoint(step, (5 - step / 100,) * 2, (2.0, 2.0), (1e-4, 1e-4)) for step in range(logged)],
    )


def diverging(at: int = 10, by: float = 1e-3, layers: int = 2) -> Comparison:
    """Return a comparison that differs from layer `at` (from 0) on, and within tolerance at the layer before."""
    comparison = identical(layers)
    items = comparison.steps[0].layers.items
    items[at - 1] = differing(items[at - 1], 1e-9)
    items[at:] = [differing(item, by * (1 + place)) for place, item in enumerate(items[at:])]
    return comparison


def differing(item: Compared, by: float, tolerance: float = 1e-5) -> Compared:
    return replace(
        item, identical=False, within=by <= tolerance, max_abs=by, max_rel=by / 2, mean_abs=by / 4, std=by / 8
    )


def _layer_names(layers: int) -> list[str]:
    parts = ("norm_conv", "conv.pointwise_conv1", "conv.activation", "self_attn.linear_q", "self_attn", "norm_out")
    inside = [f"encoder.layers.{layer}.{part}" for layer in range(layers) for part in parts]
    return ["preprocessor", "quantizer", "encoder.pre_encode.out", *inside, "encoder", "decoder"]


def _section(name: str, values: list[str]) -> Section:
    numbers = 0 if name == "structure" else NUMBERS
    dtype = "" if name == "structure" else "float32"
    return Section(
        name, [Compared(value, True, True, numbers=numbers, shape=(2, 320), dtype=dtype) for value in values]
    )


def _metadata(side: str, version: str) -> dict[str, object]:
    return {
        "versions": {side: version, "torch": "2.9.0", "system": "Linux x86_64", "threads": "2"},
        "precision": "32-true",
        "device": "cpu",
        "seed": "42",
        "config": {
            "encoder": {"d_model": 512, "n_layers": 17},
            "train_ds": {"manifest_filepath": f"/{side}/train.json"},
        },
    }
