"""Write down what a training step does, layer by layer: the one recorder that NeMo and nest_ssl are watched with.

It runs in NeMo's environment too, where this folder is all there is of nest_ssl: its modules import each other by
relative names, and nothing else of nest_ssl. A recording is a folder:

    model_structure.pkl  metadata.pkl  initial_weights.pt
    step_N/  batch.pt  forward_output.pt  loss.pt  parameter_gradients.pt  parameter_weights.pt  layer_outputs.pkl
             metadata.pkl

`metadata.pkl` and `model_structure.pkl` are pickles of plain values; all others are what `torch.save` writes, and
`torch.load(..., weights_only=True)` reads.
"""

from .callback import FORWARD_OUTPUTS, Recorder, show_messages, total_norm
from .environment import dtype_name, machine_versions, structure_of
from .folder import FORMAT, RecordedTensors, empty_recording, write_plain, write_step
from .listener import LayerListener
from .recording_options import RecorderOptions, RecordingError, parse_steps, require_exact

__all__ = [
    "FORMAT",
    "FORWARD_OUTPUTS",
    "LayerListener",
    "RecordedTensors",
    "Recorder",
    "RecorderOptions",
    "RecordingError",
    "dtype_name",
    "empty_recording",
    "machine_versions",
    "parse_steps",
    "require_exact",
    "show_messages",
    "structure_of",
    "total_norm",
    "write_plain",
    "write_step",
]
