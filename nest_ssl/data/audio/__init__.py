"""Audio files in, float32 waveforms at the wanted rate out: one `AudioSegment`."""

from nest_ssl.data.audio.segment import AudioFile, AudioSegment, ChannelSelector, to_float

__all__ = ["AudioFile", "AudioSegment", "ChannelSelector", "to_float"]
