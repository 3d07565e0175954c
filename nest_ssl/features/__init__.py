"""Waveforms to log-mel features."""

from nest_ssl.features.mel import AudioToMelSpectrogramPreprocessor

__all__ = ["AudioToMelSpectrogramPreprocessor"]
