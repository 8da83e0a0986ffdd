"""A CNN on handwritten digits, in PyTorch."""

import torch
from sklearn.datasets import load_digits
from torch import nn

torch.manual_seed(0)
images, labels = map(torch.as_tensor, load_digits(return_X_y=True))
images = images.reshape(-1, 1, 8, 8).float() / 16
train, test = torch.randperm(len(images)).split([1408, 389])
network = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1, bias=False),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1, bias=False),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(128, 10, bias=False),
)
optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
for _ in range(20):
    for batch in train[torch.randperm(1408)].split(64):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(network(images[batch]), labels[batch])
        loss.backward()
        optimizer.step()
accuracy = (network(images[test]).argmax(dim=1) == labels[test]).double().mean().item()
print(f"{accuracy:.1%} of the {len(test)} digits held out are read correctly")
