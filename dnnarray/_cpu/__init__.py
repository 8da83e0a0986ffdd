"""The CPU engine: NumPy algorithms, one module per family with its ALGORITHMS table; `engine` runs them."""
