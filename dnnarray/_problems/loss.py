"""Losses: the problems."""
