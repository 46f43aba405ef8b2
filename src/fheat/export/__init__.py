"""Models leave as standard files: ONNX, OpenVINO, torch's pt2 and MONAI bundles, each with its recipe inside."""
