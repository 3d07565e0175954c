"""The program `nest-ssl`. Its commands import heavy libraries only when they run."""

from nest_ssl.cli.app import main

__all__ = ["main"]
