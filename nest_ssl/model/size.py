"""The size of a model, computed from its configuration before it is built, so that an absurd one is refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from nest_ssl.errors import ConfigError
from nest_ssl.model.agreement import Node, all_options

# NEST's sizes: of an absurd part, the key to blame is the one whose value from here makes it smallest.
_ORDINARY = {
    "d_model": 512,
    "n_layers": 17,
    "feat_in": 80,
    "feat_out": -1,
    "subsampling_conv_channels": 256,
    "num_classes": 8192,
    "num_books": 1,
    "num_decoders": 1,
    "code_dim": 16,
    "combine_time_steps": 8,
    "n_fft": 512,
    "features": 80,
    "sample_rate": 16000,
    "n_window_size": None,
    "window_size": 0.025,
    "subsampling_factor": 8,
    "ff_expansion_factor": 4,
    "conv_kernel_size": 9,
    "pos_emb_max_len": 5000,
    "reduction_factor": 2,
}
# Limits of options that cost time or memory by themselves: loops at construction, and padding of every batch.
_MOST = {
    "encoder.n_layers": 1000,
    "preprocessor.pad_to": 2**16,
    "preprocessor.frame_splicing": 2**8,
    "masking.block_size": 2**20,
    "train_ds.num_workers": 2**10,
    "validation_ds.num_workers": 2**10,
}
_HUGE = 10**15  # larger values count as this one, so that products fit a float
_FLOAT, _DOUBLE = 4, 8  # bytes


def check_size(settings: Node, most_bytes: int, whose: str) -> None:
    """Refuse a `model` node whose tensors take more than `most_bytes`; `whose` names this limit in the error."""
    nodes = {name: node for name, node in settings.items() if isinstance(node, Mapping)}
    for dotted, most in _MOST.items():
        part, _, name = dotted.partition(".")
        if _whole(nodes.get(part, {}).get(name)) > most:
            raise ConfigError(f"model.{dotted}: {_shown(nodes[part][name])}; expected at most {most}")
    sizes = {name: part_bytes(name, nodes[name]) for name in _BYTES if name in nodes}
    total = sum(sizes.values())
    if total > most_bytes:
        part = max(sizes, key=lambda name: sizes[name])
        name = _to_blame(part, nodes[part])
        raise ConfigError(
            f"model.{part}.{name}: {_shown(nodes[part].get(name))} asks for a model of {_readable(total)} "
            f"({total // _FLOAT:.3g} numbers); {whose} {_readable(most_bytes)}"
        )


def part_bytes(part: str, node: Node) -> int:
    """Return the bytes of a part's tensors while it is built; the part itself refuses values that are no numbers."""
    return _BYTES[part](all_options(part, node))


def _encoder_bytes(node: Node) -> int:
    width, layers, features = (_whole(node[name]) for name in ("d_model", "n_layers", "feat_in"))
    expansion, kernel = _whole(node["ff_expansion_factor"]), _whole(node["conv_kernel_size"])
    factor = max(1, _whole(node["subsampling_factor"]))
    channels = width if node["subsampling_conv_channels"] == -1 else _whole(node["subsampling_conv_channels"])
    layer = width * width * (4 * expansion + 8) + width * kernel
    numbers = layers * layer + width * _whole(node["feat_out"]) + 2 * _whole(node["pos_emb_max_len"]) * width
    if str(node["subsampling"]).startswith("stacking"):
        numbers += factor * features * width
    elif node["subsampling"]:
        numbers += _convolution_numbers(str(node["subsampling"]), factor, features, channels, width)
    if node["reduction"] == "striding":
        numbers += _convolution_numbers("striding", max(1, _whole(node["reduction_factor"])), width, width, width)
    return _FLOAT * numbers


def _convolution_numbers(kind: str, factor: int, features: int, channels: int, width: int) -> int:
    """Return the weights of a sub-sampling: its convolutions, and the projection after them."""
    stages = factor.bit_length() - 1
    weights = {"dw_striding": stages - 1, "striding": 9 * (stages - 1), "vggnet": 9 * (2 * stages - 1)}.get(kind, 0)
    return max(0, weights) * channels * channels + channels * -(-features // factor) * width


def _quantizer_bytes(node: Node) -> int:
    codes = _product(node, "num_books", "num_classes", "code_dim")
    projection = _product(node, "feat_in", "combine_time_steps", "num_books", "code_dim")
    return (_FLOAT + 2 * _DOUBLE) * codes + _FLOAT * projection  # float32 codes, and two float64 copies


def _preprocessor_bytes(node: Node) -> int:
    seconds = node["window_size"]
    window = _whole(node["n_window_size"])
    if isinstance(seconds, int | float) and 0 < seconds < math.inf:
        window = max(window, int(min(seconds * _whole(node["sample_rate"]), _HUGE)))
    bins = (_whole(node["n_fft"]) or 2 ** window.bit_length()) // 2 + 1
    tables = 5 * bins * (_whole(node["features"]) + 2)  # on the way to the mel filters
    return _FLOAT * window + _DOUBLE * tables


_BYTES: dict[str, Callable[[Node], int]] = {
    "encoder": _encoder_bytes,
    "decoder": lambda node: _FLOAT * _product(node, "feat_in", "num_classes", "num_decoders"),
    "quantizer": _quantizer_bytes,
    "masking": lambda node: _FLOAT * _whole(node["feat_in"]),
    "preprocessor": _preprocessor_bytes,
}


def _to_blame(part: str, node: Node) -> str:
    known = [name for name in _ORDINARY if name in node]
    return min(known, key=lambda name: part_bytes(part, {**node, name: _ORDINARY[name]}), default="_target_")


def _product(node: Node, *names: str) -> int:
    return math.prod(_whole(node[name]) for name in names)


def _whole(value: Any) -> int:
    """Return a size, 0 if the value is none."""
    return min(value, _HUGE) if type(value) is int and value > 0 else 0


def _shown(value: Any) -> str:
    return f"more than {_HUGE:.0e}" if type(value) is int and value > _HUGE else f"{value!r}"


def _readable(size: int) -> str:
    return f"{size / 1e9:.3g} GB"
