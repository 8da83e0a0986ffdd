"""Recurrent networks: rnn, gru, lstm and their single steps: the problems."""
