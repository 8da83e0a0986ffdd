"""Scripts beside the tests are no tests."""

collect_ignore = ["every_kernel.py"]
