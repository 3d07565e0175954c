"""Did it learn? A linear probe on frozen features, against random weights and log-mel means."""

from nest_ssl.apps.probing.probe import ProbeRequest, probe
from nest_ssl.apps.probing.report import Report

__all__ = ["ProbeRequest", "Report", "probe"]
