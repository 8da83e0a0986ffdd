"""Linear (fully connected) layers."""

__all__: list[str] = []
