"""Tests of nest_ssl: folders mirror the package, `parity` also trains NeMo, `integration` runs the commands."""
