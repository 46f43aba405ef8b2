"""From a network to a mask in the place of the scan: sliding window, post-processing, predictor."""
