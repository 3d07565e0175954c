"""Checks of configuration and data before the first step."""
