"""Loggers, which write the curves of a run."""
