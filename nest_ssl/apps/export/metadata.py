"""The metadata of an exported file: what its user has to know."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from typing import Any

import nest_ssl
from nest_ssl.apps.export.interface import OUTPUTS, Interface
from nest_ssl.model import AudioToMelSpectrogramPreprocessor, ConformerEncoder
from nest_ssl.model.nest import Nest


def facts(model: Nest, interface: Interface, tolerance: float) -> dict[str, str]:
    """Return names and values as text, because ONNX stores text only; tables are JSON."""
    signal, length = interface.names
    shape = "batch, samples" if interface.kind == "audio" else f"batch, {interface.features}, frames"
    width = model.encoder.out_proj.out_features if model.encoder.out_proj else model.encoder.pos_enc.d_model
    return {
        "model_class": type(model).__name__,
        "nest_ssl_version": nest_ssl.__version__,
        "input": interface.kind,
        "inputs": f"{signal} ({shape}) float32, {length} (batch) int64",
        "outputs": f"{OUTPUTS[0]} (batch, {width}, encoded frames) float32, {OUTPUTS[1]} (batch) int64",
        "sample_rate": str(interface.sample_rate),
        "subsampling_factor": str(interface.frame_ratio),
        "seconds_per_encoded_frame": f"{interface.seconds_per_frame:g}",
        "shortest_input": str(interface.shortest),
        "tolerance": f"{tolerance:g}",
        "preprocessor": json.dumps(_complete(model.settings["preprocessor"], AudioToMelSpectrogramPreprocessor)),
        "encoder": json.dumps(_complete(model.settings["encoder"], ConformerEncoder)),
    }


def _complete(node: Mapping[str, Any], part: type) -> dict[str, Any]:
    """Return a part's settings, with the defaults of those that are not configured."""
    parameters = inspect.signature(part).parameters.values()
    defaults = {
        parameter.name: parameter.default for parameter in parameters if parameter.default is not parameter.empty
    }
    return {name: value for name, value in {**defaults, **node}.items() if name != "_target_"}
