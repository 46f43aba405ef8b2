"""How a trained network works inside: what its bottom blocks add by frequency, and where it attends."""
