"""Second readers, written from the specifications of the formats alone: they decide what a file says, or why it lies.

They use neither fheat nor the libraries that fheat reads with. They are slow, small and strict; the range in which
programs may differ (rounding, padding, rare fields) is answered with `doubtful`.
"""
