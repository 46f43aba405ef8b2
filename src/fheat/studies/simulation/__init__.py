"""Gates trained on plain signals: which close, which survive, and why (Fig. 3 of the paper)."""
