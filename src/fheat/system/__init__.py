"""Foundations of the package: errors, files, graph capture, processes that train together, the machine."""
