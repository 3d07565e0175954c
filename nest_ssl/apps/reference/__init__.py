"""The configuration reference (docs/configuration*.md): what the code declares, joined with what `keys/*.yaml` says.

Keys, types and defaults are read from the code; only the meaning of a key is written by hand, in both languages.
"""
