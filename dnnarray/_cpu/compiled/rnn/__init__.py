"""LSTM and GRU layers."""
