"""What training minimises."""

from nest_ssl.losses.mlm import MultiMLMLoss

__all__ = ["MultiMLMLoss"]
