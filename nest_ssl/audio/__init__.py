"""Audio files in, float32 waveforms at the wanted rate out: one `AudioSegment`."""

from nest_ssl.audio.segment import AudioSegment, ChannelSelector

__all__ = ["AudioSegment", "ChannelSelector"]
