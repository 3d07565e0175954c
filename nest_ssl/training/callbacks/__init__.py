"""Callbacks: objects that Lightning calls before and after the steps of a run."""
