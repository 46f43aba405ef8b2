"""Training methods, one per file: a step object that turns a batch into losses. The loop around it is the engine's."""
