"""The file formats, by suffix: how to write each, how to read it again for the check, and code that uses it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from jinja2 import StrictUndefined, Template
from torch import Tensor
from torch.export import ExportedProgram

from nest_ssl.apps.export.interface import OUTPUTS, Interface, encode_eagerly
from nest_ssl.apps.export.network import exportable
from nest_ssl.apps.quiet import quiet_libraries
from nest_ssl.checkpoint import convert, restore_for_use
from nest_ssl.errors import NestError
from nest_ssl.model.nest import Nest

METADATA_FILE = "nest_ssl.json"  # in a .pt2 file
# A protobuf message has at most 2 GiB: larger weights go into a file beside the graph.
LARGEST_ONNX = 1_900_000_000  # bytes
Encode = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Job:
    """A model to write, and the file it was read from."""

    source: Path
    model: Nest
    interface: Interface
    facts: dict[str, str]


@dataclass(frozen=True)
class Format:
    """How to write a model, and how to open the written file."""

    write: Callable[[Job, Path], None]
    open: Callable[[Path, Interface], Encode]
    tolerance: float  # largest difference, relative to the encoding's root mean square
    needs: tuple[str, ...] = ()

    def refuse_missing_packages(self, output: Path) -> None:
        """Raise an error that says how to install missing packages, before any work is done."""
        missing = [name for name in self.needs if find_spec(name) is None]
        if missing:
            raise NestError(f"{output}: needs {', '.join(missing)}; install with: pip install 'nest_ssl[export]'")


def traced(job: Job) -> ExportedProgram:
    """Return the encoder as a graph, for any batch size and any length that is not below the shortest."""
    with torch.no_grad(), quiet_libraries():
        return torch.export.export(
            exportable(job.model, job.interface.kind),
            job.interface.example(),
            dynamic_shapes=job.interface.dynamic_shapes(),
            # Otherwise sizes that the solver cannot prove to be valid are errors.
            prefer_deferred_runtime_asserts_over_guards=True,
        )


def _write_onnx(job: Job, path: Path) -> None:
    program = traced(job)
    with quiet_libraries():
        written = torch.onnx.export(
            program,
            job.interface.example(),
            input_names=list(job.interface.names),
            output_names=list(OUTPUTS),
            dynamic_shapes=job.interface.dynamic_shapes(),
            dynamo=True,
            verbose=False,
        )
    assert written is not None
    written.model.metadata_props.update(job.facts)
    written.save(path, external_data=_bytes(program) > LARGEST_ONNX)


def _bytes(program: ExportedProgram) -> int:
    tensors: list[Any] = [*program.state_dict.values(), *program.constants.values()]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors if isinstance(tensor, Tensor))


def _open_onnx(path: Path, interface: Interface) -> Encode:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def encode(x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        inputs = dict(zip(interface.names, (x.numpy(), lengths.numpy()), strict=True))
        encoded, encoded_lengths = session.run(list(OUTPUTS), inputs)
        return torch.from_numpy(encoded), torch.from_numpy(encoded_lengths)

    return encode


def _write_program(job: Job, path: Path) -> None:
    program = traced(job)
    with quiet_libraries():
        torch.export.save(program, path, extra_files={METADATA_FILE: json.dumps(job.facts, indent=2)})


def _open_program(path: Path, interface: Interface) -> Encode:
    with quiet_libraries():
        return torch.export.load(path).module()


def _write_weights(job: Job, path: Path) -> None:
    convert(job.source, path)


def _open_weights(path: Path, interface: Interface) -> Encode:
    model = restore_for_use(path, "cpu")
    return lambda x, lengths: encode_eagerly(model, interface, x, lengths)


# Other libraries' kernels sum in another order than torch's; weights alone must give the same bits.
FORMATS = {
    ".onnx": Format(_write_onnx, _open_onnx, tolerance=1e-3, needs=("onnx", "onnxscript", "onnxruntime")),
    ".pt2": Format(_write_program, _open_program, tolerance=1e-3),
    ".safetensors": Format(_write_weights, _open_weights, tolerance=0.0),
}


def template(name: str) -> Template:
    """Return a text of this folder, into which the facts about a file are filled."""
    text = Path(__file__).with_name(f"{name}.jinja").read_text(encoding="utf-8")
    return Template(text, undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True)


def usage(name: str, interface: Interface) -> str:
    """Return code that encodes `speech.wav` with the file of this name."""
    signal, length = interface.names
    code = template("usage.py").render(
        suffix=Path(name).suffix.lower(),
        name=json.dumps(name, ensure_ascii=False),
        interface=interface,
        signal=signal,
        length=length,
        outputs=json.dumps(OUTPUTS),
    )
    return code.rstrip()
