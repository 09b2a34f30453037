"""Matrix products as generated code: one driver, register kernels, packing."""
