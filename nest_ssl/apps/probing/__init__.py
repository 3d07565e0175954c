"""Measure what an encoder learned: a linear probe on its frozen features, against random weights and log-mel."""

from nest_ssl.apps.probing.probe import ProbeRequest, probe
from nest_ssl.apps.probing.report import Report

__all__ = ["ProbeRequest", "Report", "probe"]
