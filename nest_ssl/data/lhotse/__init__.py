"""Data loading by lhotse (`use_lhotse: true`)."""
