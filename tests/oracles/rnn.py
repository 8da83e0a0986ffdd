"""Recurrent networks: rnn, gru, lstm and their single steps, by definition, in float64.

One sequence, one time step and one layer after the other, straight from the formulas; the random numbers of the dropout
come from a Philox of its own, one number at a time."""

import numpy as np


def sigmoid(v):
    return np.where(v >= 0, 1 / (1 + np.exp(-np.abs(v))), np.exp(-np.abs(v)) / (1 + np.exp(-np.abs(v))))


def complete(weights):
    """The six arrays of an entry, biases 0 where absent."""
    w_ih, w_hh, b_ih, b_hh, w_hr, peephole = (*weights, *(None,) * (6 - len(weights)))
    zero = np.zeros(len(w_ih))
    return w_ih, w_hh, zero if b_ih is None else b_ih, zero if b_hh is None else b_hh, w_hr, peephole


def rnn_step(x, weights, h, activation="tanh"):
    w_ih, w_hh, b_ih, b_hh, _, _ = complete(weights)
    a = w_ih @ x + b_ih + w_hh @ h + b_hh
    return (np.tanh(a) if activation == "tanh" else np.where(a < 0, 0.0, a),)


def gru_step(x, weights, h, linear_before_reset=True):
    w_ih, w_hh, b_ih, b_hh, _, _ = complete(weights)
    i_r, i_z, i_n = np.split(w_ih @ x + b_ih, 3)
    w_r, w_z, w_n = np.split(w_hh, 3)
    b_r, b_z, b_n = np.split(b_hh, 3)
    r = sigmoid(i_r + w_r @ h + b_r)
    z = sigmoid(i_z + w_z @ h + b_z)
    n = np.tanh(i_n + r * (w_n @ h + b_n)) if linear_before_reset else np.tanh(i_n + w_n @ (r * h) + b_n)
    return ((1 - z) * n + z * h,)


def lstm_step(x, weights, h, c, cell_clip=None):
    w_ih, w_hh, b_ih, b_hh, w_hr, peephole = complete(weights)
    i, f, g, o = np.split(w_ih @ x + b_ih + w_hh @ h + b_hh, 4)
    p_i, p_f, p_o = np.zeros((3, len(c))) if peephole is None else peephole
    c_new = sigmoid(f + p_f * c) * c + sigmoid(i + p_i * c) * np.tanh(g)
    if cell_clip is not None:
        c_new = np.minimum(np.maximum(c_new, -cell_clip), cell_clip)
    h_new = sigmoid(o + p_o * c_new) * np.tanh(c_new)
    return (h_new if w_hr is None else w_hr @ h_new), c_new


def sequence(step, kinds):
    """The oracle of a whole network of this step with `kinds` states."""

    def oracle(
        x, weights, *rest, bidirectional=False, reverse=False, dropout=0.0, seed=None, offset=0, layout="TNC", **options
    ):
        states, lengths = rest[:-1], rest[-1]
        x = x if layout == "TNC" else x.swapaxes(0, 1)
        T, N, _ = x.shape
        lengths = [T] * N if lengths is None else lengths
        D = 2 if bidirectional else 1
        finals = [[] for _ in range(kinds)]
        for k, entry in enumerate(weights):
            first = initial(entry, states, k, N, kinds)
            y, last = direction(step, x, entry, first, lengths, reverse or k % D == 1, options)
            outputs = [y] if k % D == 0 else [*outputs, y]  # noqa: F821 - the first entry of a layer begins the list
            for final, state in zip(finals, last, strict=True):
                final.append(state)
            if k % D == D - 1:
                x = np.concatenate(outputs, axis=-1)
                if dropout and k < len(weights) - 1:
                    start = offset + k // D * x.size
                    kept = [philox(seed, start + e) >= int(dropout * 2**32) for e in range(x.size)]
                    x = x * np.reshape(kept, x.shape) / (1 - dropout)
        return (x if layout == "TNC" else x.swapaxes(0, 1), *(np.array(final) for final in finals))

    return oracle


def initial(entry, states, k, N, kinds):
    """h (and c) of all sequences before the first step."""
    w_hr = complete(entry)[4]
    extents = [entry[1].shape[1], entry[1].shape[1] if w_hr is None else w_hr.shape[1]][:kinds]
    return [np.zeros((N, n)) if s is None else s[k].copy() for s, n in zip(states, extents, strict=True)]


def direction(step, x, entry, state, lengths, backwards, options):
    """One entry of the weights over all sequences, each on its own: (y, last states)."""
    y = np.zeros((*x.shape[:2], state[0].shape[1]))
    for n, length in enumerate(lengths):
        times = range(int(length))
        for t in reversed(times) if backwards else times:
            new = step(x[t, n], entry, *(s[n] for s in state), **options)
            for s, v in zip(state, new, strict=True):
                s[n] = v
            y[t, n] = new[0]
    return y, state


def cell(step):
    """The oracle of a single step, one sequence at a time."""

    def oracle(x, weights, *states, **options):
        new = [step(x[n], weights, *(s[n] for s in states), **options) for n in range(len(x))]
        return tuple(np.array([v[i] for v in new]).reshape(s.shape) for i, s in enumerate(states))

    return oracle


def philox(seed, number):
    """Number `number` of the Philox4x32-10 stream of `seed`: word number % 4 of the block with counter number // 4."""
    mask = 2**32 - 1
    counter = [(number // 4 >> shift) & mask for shift in (0, 32, 64, 96)]
    key = [seed & mask, seed >> 32]
    for _ in range(10):
        first, second = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [
            (second >> 32) ^ counter[1] ^ key[0],
            second & mask,
            (first >> 32) ^ counter[3] ^ key[1],
            first & mask,
        ]
        key = [(key[0] + 0x9E3779B9) & mask, (key[1] + 0xBB67AE85) & mask]
    return counter[number % 4]


ORACLES = {
    "rnn": sequence(rnn_step, 1),
    "gru": sequence(gru_step, 1),
    "lstm": sequence(lstm_step, 2),
    "rnn_cell": cell(rnn_step),
    "gru_cell": cell(gru_step),
    "lstm_cell": cell(lstm_step),
}
