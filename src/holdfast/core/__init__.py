"""Decisions only: no I/O, no clock, no randomness. `decide` in `core.job` is the way in."""
