"""Importing a folder: which of its files are scans, channels and labels, told from their names, becomes a datalist."""
