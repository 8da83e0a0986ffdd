"""What pytest must not import where a part of the environment is missing."""

from importlib.util import find_spec

# The engine needs CuPy at import; its doctests are collected only where that is installed.
collect_ignore = [] if find_spec("cupy") else ["dnnarray/_cuda/engine.py"]
