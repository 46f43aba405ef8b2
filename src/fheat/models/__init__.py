"""One network per file, the registry that names them, and the model folder that stores them."""
