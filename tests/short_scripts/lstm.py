"""An LSTM that forecasts a chaotic series, in PyTorch."""

import torch
from torch import nn

torch.manual_seed(0)
series = torch.full((2500,), 1.2)
for t in range(18, len(series)):  # the equation of Mackey and Glass, by Euler's method
    series[t] = 0.9 * series[t - 1] + 0.2 * series[t - 18] / (1 + series[t - 18] ** 10)
windows = (series[500:] - 0.9).unfold(0, 33, 1)[..., None]
train, test = windows[:1500], windows[1600:]


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(1, 32, batch_first=True)
        self.out = nn.Linear(32, 1)

    def forward(self, x):
        return ((self.out(self.lstm(x[:, :-1])[0]) - x[:, 1:])[:, 16:] ** 2).mean()


network = Forecaster()
optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
for batch in torch.randint(len(train), (400, 32)):
    optimizer.zero_grad()
    loss = network(train[batch])
    loss.backward()
    optimizer.step()
error = network(test).item() ** 0.5 / test.std().item()
print(f"the next value is forecast to {error:.3f} standard deviations")
