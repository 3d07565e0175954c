"""NeMo's tarred data sets."""
