"""Did it learn? A linear probe on frozen features, against random weights and log-mel means."""

from nest_ssl.apps.probing.probe import Request, probe
from nest_ssl.apps.probing.report import Report

__all__ = ["Report", "Request", "probe"]
