"""Benchmarks anybody can run: operator, training step, window and whole scan, networks side by side in one run."""
