"""Showing that our model is NeMo's."""
