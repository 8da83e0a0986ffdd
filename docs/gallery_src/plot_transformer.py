"""
A character transformer
=======================

This tutorial trains a small language model on the reference documentation that ships with Python
(``pydoc_data.topics``), letter by letter, and samples some text from it. The model is a decoder of two layers with
causal attention, rotary position embedding and RMS norms."""

from pydoc_data.topics import topics

import matplotlib.pyplot as plt
import numpy as np

import dnnarray as dnn

rng = np.random.default_rng(0)
text = "".join(topics.values()).encode("ascii", "ignore")
text = np.frombuffer(text, np.uint8).astype(np.int64)
print(f"{len(text):,} letters, which begin:\n{bytes(text[:160].astype(np.uint8)).decode()}")

# %%
# The model has one dict of weights for each layer. The embedding also gives the scores of the next letter, as in many
# language models.

VOCABULARY, WIDTH, HEADS, LAYERS, LENGTH = 128, 64, 4, 2, 64
SHAPES = {"qkv": (3 * WIDTH, WIDTH), "out": (WIDTH, WIDTH), "up": (4 * WIDTH, WIDTH), "down": (WIDTH, 4 * WIDTH)}


def uniform(*shape):
    bound = shape[-1] ** -0.5
    return rng.uniform(-bound, bound, shape).astype(np.float32)


def layer():
    weights = {name: uniform(*shape) for name, shape in SHAPES.items()}
    return weights | {name: np.ones(WIDTH, np.float32) for name in ("norm1", "norm2")}


params = {
    "embed": uniform(VOCABULARY, WIDTH),
    "layers": [layer() for _ in range(LAYERS)],
    "norm": np.ones(WIDTH, np.float32),
}

# %%
# Rotary embedding turns pairs of features of queries and keys by angles that grow with the position, so that their
# products depend on the distance between two letters. ``layout="BSHD"`` says that the axes are batch, sequence, heads
# and features.

angles = np.outer(np.arange(LENGTH), 100.0 ** -np.linspace(0, 1, WIDTH // HEADS // 2)).astype(np.float32)
COS, SIN = np.cos(angles), np.sin(angles)


def queries_keys_values(p, x):
    qkv = dnn.linear(dnn.rms_norm(x, p["norm1"]), p["qkv"]).reshape(*x.shape[:2], 3, HEADS, WIDTH // HEADS)
    length = x.shape[1]
    q, k = (dnn.rotary_embedding(qkv[:, :, j], COS[:length], SIN[:length], layout="BSHD") for j in (0, 1))
    return q, k, qkv[:, :, 2]


def transform(p, x):
    heads = dnn.attention(*queries_keys_values(p, x), causal=True, layout="BSHD")
    x = x + dnn.linear(heads.reshape(x.shape), p["out"])
    hidden = dnn.linear(dnn.rms_norm(x, p["norm2"]), p["up"], activation="gelu")
    return x + dnn.linear(hidden, p["down"])


def scores(params, tokens):
    x = dnn.embedding(tokens, params["embed"])
    for p in params["layers"]:
        x = transform(p, x)
    return dnn.linear(dnn.rms_norm(x, params["norm"]), params["embed"])


def loss(params, tokens):
    return dnn.cross_entropy(scores(params, tokens[:, :-1]), tokens[:, 1:], axis=2)


# %%
# Training: AdamW with a rate that rises over 30 steps and then falls along a cosine. Gradients longer than 1 are
# shortened.

STEPS, BATCH = 250, 8
step, state, losses = dnn.value_and_grad(loss), None, []
rate = dnn.cosine_schedule(5e-3, STEPS, warmup_steps=30)
for i, starts in enumerate(rng.integers(0, len(text) - LENGTH - 1, (STEPS, BATCH, 1))):
    value, grads = step(params, text[starts + np.arange(LENGTH + 1)])
    grads, norm = dnn.clip_by_global_norm(grads, 1.0)
    params, state = dnn.adamw(params, grads, state, lr=rate(i))
    losses.append(float(value))
final_loss = np.mean(losses[-20:])
print(f"loss of the last 20 steps: {final_loss:.2f} nats a letter ({final_loss / np.log(2):.2f} bits)")

# %%
# The loss beside that of a model that knows the frequency of each letter alone:

frequency = np.bincount(text) / len(text)
entropy = -np.sum(frequency[frequency > 0] * np.log(frequency[frequency > 0]))
figure, axes = plt.subplots(figsize=(7, 3), layout="constrained")
axes.plot(losses, linewidth=0.8)
axes.axhline(entropy, color="gray", linestyle="--", label="frequency of letters")
axes.set(title="training loss", xlabel="step", ylabel="nats a letter")
axes.legend()

# %%
# To sample, the model reads the last letters and one of its guesses is drawn, again and again.


def sample(prompt, letters, temperature=0.6):
    tokens = list(prompt.encode())
    for _ in range(letters):
        logits = scores(params, np.array([tokens[-LENGTH:]]))[0, -1]
        probabilities = dnn.softmax(logits.astype(np.float64) / temperature)
        tokens.append(int(rng.choice(VOCABULARY, p=probabilities)))
    return bytes(tokens).decode()


print(sample("The statement ", 300))

# %%
# :func:`dnnarray.attention` never holds the matrix of attention weights. For one short text they can be computed beside
# it, to see what the heads look at: row by row, the letters that each letter reads.

phrase = "the class of the object"
x = dnn.embedding(np.array([list(phrase.encode())]), params["embed"])
q, k, _ = queries_keys_values(params["layers"][0], x)
products = np.einsum("shd,thd->hst", q[0], k[0]) / np.sqrt(WIDTH // HEADS)
weights = dnn.softmax(np.where(np.tri(len(phrase), dtype=bool), products, -np.inf).astype(np.float32))
figure, axes = plt.subplots(1, HEADS, figsize=(12, 3.4), layout="constrained")
for head, axis in enumerate(axes):
    axis.imshow(weights[head], cmap="viridis", vmin=0, vmax=1)
    axis.set_title(f"layer 1, head {head + 1}", fontsize=9)
    axis.set_xticks(range(len(phrase)), phrase, fontsize=7)
    axis.set_yticks(range(len(phrase)), phrase, fontsize=7)
