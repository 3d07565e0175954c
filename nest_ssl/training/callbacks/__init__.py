"""What Lightning calls around the steps of a run."""
