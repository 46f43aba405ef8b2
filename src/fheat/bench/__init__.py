"""Benchmarks that anybody can run: operator, training step, window and whole scan, several networks in one run."""
