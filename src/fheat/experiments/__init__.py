"""Experiments: whole comparisons of methods on data, by command."""
