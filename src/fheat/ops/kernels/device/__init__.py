"""Kernels in Triton, one file for each host file beside this folder. They are not Python: see the Triton language."""
