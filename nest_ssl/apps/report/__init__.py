"""From a run's folder to one HTML page: how it goes, whether it is healthy, what it learns from."""
