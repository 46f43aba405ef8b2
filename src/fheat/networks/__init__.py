"""Segmentation networks, one per file, and the registry that builds them by name."""
