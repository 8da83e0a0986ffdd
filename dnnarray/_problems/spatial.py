"""Sampling, resizing, region pooling, shuffles, embedding: the problems."""
