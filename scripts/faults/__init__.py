"""Scenarios of faults, each with a verdict and counts, for `scripts/chaos` and `scripts/soak`."""
