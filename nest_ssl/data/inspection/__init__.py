"""Checks of data sets at the start of a run: overlap, bandwidth, and changes since a checkpoint."""
