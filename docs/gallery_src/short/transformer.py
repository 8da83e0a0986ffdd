"""A character transformer
=======================
"""

from pydoc_data.topics import topics

import numpy as np

import dnnarray as dnn

rng = np.random.default_rng(0)
text = np.frombuffer("".join(topics.values()).encode("ascii", "ignore"), np.uint8).astype(np.int64)
shapes = {"qkv": (192, 64), "out": (64, 64), "up": (256, 64), "down": (64, 256)}
shapes = {f"{n}{i}": s for i in range(2) for n, s in shapes.items()} | {"embed": (128, 64)}
params = {n: (rng.standard_normal(s) / (3 * s[-1]) ** 0.5).astype(np.float32) for n, s in shapes.items()}
angles = np.outer(np.arange(64), 100.0 ** -np.linspace(0, 1, 8)).astype(np.float32)


def network(p, tokens):
    x = dnn.embedding(tokens, p["embed"])
    for i in range(2):
        qkv = dnn.linear(dnn.rms_norm(x), p[f"qkv{i}"]).reshape(*tokens.shape, 3, 4, 16)
        q, k = (dnn.rotary_embedding(qkv[:, :, j], np.cos(angles), np.sin(angles), layout="BSHD") for j in (0, 1))
        heads = dnn.attention(q, k, qkv[:, :, 2], causal=True, layout="BSHD")
        x = x + dnn.linear(heads.reshape(x.shape), p[f"out{i}"])
        x = x + dnn.linear(dnn.linear(dnn.rms_norm(x), p[f"up{i}"], activation="gelu"), p[f"down{i}"])
    return dnn.linear(dnn.rms_norm(x), p["embed"])


step, state = dnn.value_and_grad(lambda p, t: dnn.cross_entropy(network(p, t[:, :-1]), t[:, 1:], axis=2)), None
rate = dnn.cosine_schedule(5e-3, 300, warmup_steps=30)
for i, start in enumerate(rng.integers(0, len(text) - 65, (300, 8, 1))):
    loss, grads = step(params, text[start + np.arange(65)])
    params, state = dnn.adamw(params, grads, state, lr=rate(i))
print(f"the loss is {loss:.2f} nats a character")
