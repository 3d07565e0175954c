"""Prove that our model computes what NeMo's computes: record both, compare, report."""
