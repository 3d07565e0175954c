"""Read audio files as float32 waveforms at a given rate: `AudioSegment`."""

from nest_ssl.data.audio.segment import AudioFile, AudioSegment, ChannelSelector, to_float

__all__ = ["AudioFile", "AudioSegment", "ChannelSelector", "to_float"]
