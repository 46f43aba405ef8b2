"""How a trained network works inside: the residuals of its bottom blocks by frequency, and where it attends."""
