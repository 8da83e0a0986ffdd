"""Normalization: batch, layer, RMS, group, instance, local response: the problems."""
