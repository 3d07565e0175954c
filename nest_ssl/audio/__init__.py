"""Audio files to waveforms: reading, channels, resampling, trimming."""
