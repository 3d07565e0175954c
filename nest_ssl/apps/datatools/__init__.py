"""Commands that make, check, describe and pack data sets."""
