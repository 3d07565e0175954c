"""Applications around the core: each does one job for one kind of user, and none is imported by the core."""
