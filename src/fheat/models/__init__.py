"""Trained networks as things: card, folder, zoo."""
