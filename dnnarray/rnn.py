"""Recurrent networks: rnn, gru, lstm and their single steps."""

__all__: list[str] = []
