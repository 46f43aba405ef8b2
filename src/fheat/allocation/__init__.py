"""What training decided about each gate: read it, retire it, merge it, cost it."""
