"""Recurrent networks: rnn, gru, lstm and their single steps, on NumPy arrays."""

from dnnarray._select import Method

ALGORITHMS: dict[str, tuple[Method, ...]] = {}
