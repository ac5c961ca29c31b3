"""The executor on a GPU: driver, devices, loaded kernels, launches."""
