"""What the rest stands on: errors, files, graph capture, processes that train together, the machine."""
