"""Resizing, sampling and embedding."""
