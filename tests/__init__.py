"""Tests of nest_ssl: folders mirror the package, `parity` trains NeMo beside it, `integration` runs the commands."""
