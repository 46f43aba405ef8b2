"""Figures made from results."""
