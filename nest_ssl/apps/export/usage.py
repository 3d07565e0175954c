"""Example code for an exported file, printed after the export; tests run it."""

from __future__ import annotations

import json
from pathlib import Path

from nest_ssl.apps.export.interface import OUTPUTS, Interface

_READ = """audio, sample_rate = soundfile.read("speech.wav", dtype="float32")  # one channel, {sample_rate} Hz"""
_SHAPE = "print(encoded.shape, lengths)  # (utterances, features, frames of {seconds:g} s), padded to the longest"
_ONNX_AUDIO = """import numpy, onnxruntime, soundfile

session = onnxruntime.InferenceSession({name})
{read}
inputs = {{"{signal}": audio[None], "{length}": numpy.array([len(audio)])}}
encoded, lengths = session.run(["{encoded}", "{lengths}"], inputs)
{shape}"""
_ONNX_FEATURES = """import json, onnxruntime, soundfile, torch
from nest_ssl.model import AudioToMelSpectrogramPreprocessor

session = onnxruntime.InferenceSession({name})
settings = json.loads(session.get_modelmeta().custom_metadata_map["preprocessor"])
log_mel = AudioToMelSpectrogramPreprocessor(**settings).eval()
{read}
features, frames = log_mel(torch.from_numpy(audio)[None], torch.tensor([len(audio)]))
inputs = {{"{signal}": features.numpy(), "{length}": frames.numpy()}}
encoded, lengths = session.run(["{encoded}", "{lengths}"], inputs)
{shape}"""
_PROGRAM_AUDIO = """import soundfile, torch

encode = torch.export.load({name}).module()
{read}
encoded, lengths = encode(torch.from_numpy(audio)[None], torch.tensor([len(audio)]))
{shape}"""
_PROGRAM_FEATURES = """import json, soundfile, torch
from nest_ssl.model import AudioToMelSpectrogramPreprocessor

about = {{"nest_ssl.json": ""}}
encode = torch.export.load({name}, extra_files=about).module()
settings = json.loads(json.loads(about["nest_ssl.json"])["preprocessor"])
log_mel = AudioToMelSpectrogramPreprocessor(**settings).eval()
{read}
features, frames = log_mel(torch.from_numpy(audio)[None], torch.tensor([len(audio)]))
encoded, lengths = encode(features, frames)
{shape}"""
_WEIGHTS = """import soundfile, torch
from nest_ssl.models import EncDecDenoiseMaskedTokenPredModel

model = EncDecDenoiseMaskedTokenPredModel.restore_from({name}, map_location="cpu").eval()
{read}
with torch.no_grad():
    features, frames = model.preprocessor(torch.from_numpy(audio)[None], torch.tensor([len(audio)]))
    encoded, lengths = model.encoder(features, frames)
{shape}"""
_TEXTS = {
    (".onnx", "audio"): _ONNX_AUDIO,
    (".onnx", "features"): _ONNX_FEATURES,
    (".pt2", "audio"): _PROGRAM_AUDIO,
    (".pt2", "features"): _PROGRAM_FEATURES,
    (".safetensors", "audio"): _WEIGHTS,
}


def usage(name: str, interface: Interface) -> str:
    """Return code that encodes `speech.wav` with the file of this name."""
    signal, length = interface.names
    return _TEXTS[Path(name).suffix.lower(), interface.kind].format(
        name=json.dumps(name, ensure_ascii=False),
        read=_READ.format(sample_rate=interface.sample_rate),
        shape=_SHAPE.format(seconds=interface.seconds_per_frame),
        signal=signal,
        length=length,
        encoded=OUTPUTS[0],
        lengths=OUTPUTS[1],
    )
