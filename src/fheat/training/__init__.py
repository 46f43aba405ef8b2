"""Training: settings, preparation, the trainer, and observers that log, validate, save and probe."""
