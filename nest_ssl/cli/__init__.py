"""`nest-ssl`: everything one does with the project, from one command. Heavy imports wait until a command needs them."""

from nest_ssl.cli.app import main

__all__ = ["main"]
