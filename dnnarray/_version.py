"""The version, read by the build and by cache keys."""

__version__ = "0.1.0"
