"""The kernels themselves, in the Triton language, one file for each host file in the folder above this one."""
