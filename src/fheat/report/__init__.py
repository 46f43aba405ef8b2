"""Pages made from stored results."""
