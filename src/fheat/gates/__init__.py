"""What one does with the gates of a network: read them, retire them, merge them, cost them, probe them, put them in."""
