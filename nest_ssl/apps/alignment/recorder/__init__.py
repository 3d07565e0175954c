"""Record what training steps do, batch by batch and layer by layer: one recorder for NeMo and for nest_ssl.

It also runs in NeMo's environment, where no other part of nest_ssl exists: its modules import only each other, by
relative names. A recording is a folder:

    model_structure.pkl  metadata.pkl  initial_weights.pt
    step_N/  batch.pt  forward_output.pt  loss.pt  parameter_gradients.pt  parameter_weights.pt  layer_outputs.pkl
             metadata.pkl

`metadata.pkl` and `model_structure.pkl` are pickles of plain values; all others are written by `torch.save` and
read by `torch.load(..., weights_only=True)`.
"""

from .batch_listener import BatchListener, TrainedBatch, gradients_of, listen_to_forward, total_norm
from .callback import Recorder, show_messages
from .description import KEEP_WHOLE, TensorDigest, dtype_name, keep, machine_versions, structure_of
from .folder import FORMAT, empty_recording, write_plain, write_step
from .layer_listener import LayerListener
from .recording_options import RecorderOptions, RecordingError, parse_steps, require_exact

__all__ = [
    "FORMAT",
    "KEEP_WHOLE",
    "BatchListener",
    "LayerListener",
    "Recorder",
    "RecorderOptions",
    "RecordingError",
    "TensorDigest",
    "TrainedBatch",
    "dtype_name",
    "empty_recording",
    "gradients_of",
    "keep",
    "listen_to_forward",
    "machine_versions",
    "parse_steps",
    "require_exact",
    "show_messages",
    "structure_of",
    "total_norm",
    "write_plain",
    "write_step",
]
