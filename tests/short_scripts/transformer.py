"""A character transformer, in PyTorch."""

from pydoc_data.topics import topics

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

torch.manual_seed(0)
text = torch.frombuffer(bytearray("".join(topics.values()).encode("ascii", "ignore")), dtype=torch.uint8).long()
angles = torch.outer(torch.arange(64), 100.0 ** -torch.linspace(0, 1, 8))[:, None]


def rotary_embedding(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), dim=-1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(64, 192, bias=False)
        self.out = nn.Linear(64, 64, bias=False)
        self.up = nn.Linear(64, 256, bias=False)
        self.down = nn.Linear(256, 64, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(F.rms_norm(x, (64,))).unflatten(-1, (3, 4, 16)).unbind(2)
        q, k, v = (y.transpose(1, 2) for y in (rotary_embedding(q), rotary_embedding(k), v))
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(heads.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(F.rms_norm(x, (64,)))))


embed = nn.Embedding(128, 64, _weight=torch.randn(128, 64) / 8)
blocks = nn.Sequential(Block(), Block())
optimizer = torch.optim.AdamW([*embed.parameters(), *blocks.parameters()], lr=5e-3)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, 300, pct_start=0.1)
for _ in range(300):
    tokens = text[torch.randint(len(text) - 65, (8, 1)) + torch.arange(65)]
    optimizer.zero_grad()
    logits = F.linear(F.rms_norm(blocks(embed(tokens[:, :-1])), (64,)), embed.weight)
    loss = F.cross_entropy(logits.transpose(1, 2), tokens[:, 1:])
    loss.backward()
    optimizer.step()
    schedule.step()
print(f"the loss is {loss:.2f} nats a character")
