"""Did it learn? A linear probe on frozen features, against random weights and log-mel means."""

from nest_ssl.probing.probe import Request, probe
from nest_ssl.probing.report import Report

__all__ = ["Report", "Request", "probe"]
