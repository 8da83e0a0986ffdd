"""Linear (fully connected) layers: the problems."""
