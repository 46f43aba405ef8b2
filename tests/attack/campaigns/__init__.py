"""Campaigns against training: kills, races, flipped bits, long runs; `python -m tests.attack.campaigns.NAME`."""
