"""The CUDA engine: our own kernels on CuPy arrays. Imported only when a CUDA array arrives."""
