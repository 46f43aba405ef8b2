"""The one training loop: optimiser, schedule, step, checkpoints, validation. It knows methods, not what they do."""
