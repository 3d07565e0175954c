"""Make one HTML page from the folder of a run: how far it is, whether it is healthy, and how it compares."""
