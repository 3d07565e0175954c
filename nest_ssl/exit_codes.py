"""How every command ends: 0 done, 1 a result (problems, a difference), 2 failed, 130 or 143 stopped."""

FAILED = 2
INTERRUPTED = 130  # what shells report for Ctrl-C
