"""lhotse as the data engine."""
