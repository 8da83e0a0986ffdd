"""What pytest must not import where a part of the environment is missing."""

from importlib.util import find_spec

# What launches needs CuPy at import; its doctests are collected only where that is installed. Plans and requirements do not.
_LAUNCHING = ["engine", "launch", "matmul", "warm"]
collect_ignore = [] if find_spec("cupy") else [f"dnnarray/_cuda/{name}.py" for name in _LAUNCHING]
