"""Trained networks: their cards, the folders in which they are stored, and the zoo of published ones."""
