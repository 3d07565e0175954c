"""Where the curves of a run are written."""
