"""What a run wants to know of its data before and between starts: overlap, bandwidth, fingerprints, changes."""
