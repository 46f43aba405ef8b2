"""Gates trained on 1D signals instead of scans: which of them close, which survive, and why (Fig. 3 of the paper)."""
