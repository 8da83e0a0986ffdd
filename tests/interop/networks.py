"""Small networks of the kinds that torchvision and timm have, each with its input, target and loss, in plain
``torch.nn``.
"""

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - PyTorch's own name for it


class Residual(nn.Module):
    """ResNet's basic block with a projection."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(8, 16, 3, 2, 1, bias=False), nn.Conv2d(16, 16, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(16) for _ in range(3)])
        self.project = nn.Conv2d(8, 16, 1, 2, bias=False)

    def forward(self, x):
        y = F.relu(self.norms[0](self.first(x)), inplace=True)
        return F.relu_(self.norms[1](self.second(y)) + self.norms[2](self.project(x)))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        )
        self.block, self.head = Residual(), nn.Linear(16, 5)

    def forward(self, x):
        return self.head(torch.flatten(F.adaptive_avg_pool2d(self.block(self.stem(x)), 1), 1))


class LayerNorm2d(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    """A stem and a block with a depthwise window of 7, layer norm over channels, and a scale for each channel."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 4, 4), LayerNorm2d(8, eps=1e-6))
        self.depthwise, self.norm = nn.Conv2d(8, 8, 7, padding=3, groups=8), nn.LayerNorm(8, eps=1e-6)
        self.wide, self.narrow = nn.Linear(8, 32), nn.Linear(32, 8)
        self.scale, self.head = nn.Parameter(torch.full((8,), 0.5)), nn.Linear(8, 5)

    def forward(self, x):
        x = self.stem(x)
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.narrow(F.gelu(self.wide(y)))
        return self.head((x + y.permute(0, 3, 1, 2)).mean((2, 3)))


class SqueezeExcitation(nn.Module):
    def __init__(self, channels, inner, activation, gate):
        super().__init__()
        self.squeeze, self.excite = nn.Conv2d(channels, inner, 1), nn.Conv2d(inner, channels, 1)
        self.activation, self.gate = activation, gate

    def forward(self, x):
        return x * self.gate(self.excite(self.activation(self.squeeze(F.adaptive_avg_pool2d(x, 1)))))


class Inverted(nn.Module):
    """The inverted bottleneck with squeeze and excitation of MobileNetV3 (hard swish) and of EfficientNet (SiLU)."""

    def __init__(self, activation, gate, inner_activation):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8, eps=1e-3), activation())
        self.block = nn.Sequential(
            nn.Conv2d(8, 24, 1, bias=False), nn.BatchNorm2d(24, eps=1e-3, momentum=0.01), activation(),
            nn.Conv2d(24, 24, 5, padding=2, groups=24, bias=False), nn.BatchNorm2d(24), activation(),
            SqueezeExcitation(24, 6, inner_activation(), gate()), nn.Conv2d(24, 8, 1, bias=False), nn.BatchNorm2d(8),
        )  # fmt: skip
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        x = self.stem(x)
        return self.head(F.adaptive_avg_pool2d(x + self.block(x), 1).flatten(1))


class DenseNet(nn.Module):
    """Two dense layers and a transition with average pooling."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.layers = nn.ModuleList(
            [
                nn.Sequential(
                    nn.BatchNorm2d(n),
                    nn.ReLU(),
                    nn.Conv2d(n, 16, 1),
                    nn.BatchNorm2d(16),
                    nn.ReLU(),
                    nn.Conv2d(16, 4, 3, padding=1),
                )
                for n in (8, 12)
            ]
        )
        self.transition = nn.Sequential(nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 1), nn.AvgPool2d(2, 2))
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        x = self.stem(x)
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return self.head(F.adaptive_avg_pool2d(F.relu(self.transition(x)), (1, 1)).flatten(1))


class ViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, 4)
        self.position = nn.Parameter(torch.randn(1, 16, 16) / 4)
        self.encoder = nn.TransformerEncoderLayer(
            16, 2, 32, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2) + self.position
        return self.head(self.encoder(x).mean(1))


class Swin(nn.Module):
    """Attention in windows of 2 x 2 patches with a learned bias for relative positions, then patches merged."""

    def __init__(self):
        super().__init__()
        self.patches, self.norm = nn.Conv2d(3, 8, 4, 4), nn.LayerNorm(8)
        self.qkv, self.out, self.bias = nn.Linear(8, 24), nn.Linear(8, 8), nn.Parameter(torch.randn(1, 2, 4, 4) / 4)
        self.merge, self.head = nn.Linear(32, 16, bias=False), nn.Linear(16, 5)

    def forward(self, x):
        x = self.patches(x).permute(0, 2, 3, 1)
        n, h, w, c = x.shape
        windows = self.norm(x).view(n, h // 2, 2, w // 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, c)
        q, k, v = self.qkv(windows).view(-1, 4, 3, 2, c // 2).permute(2, 0, 3, 1, 4)
        scores = torch.softmax(q @ k.transpose(-1, -2) / (c // 2) ** 0.5 + self.bias, -1)
        windows = windows + self.out((scores @ v).transpose(1, 2).reshape(-1, 4, c))
        return self.head(F.gelu(self.merge(windows.reshape(n, -1, 4 * c))).mean(1))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.bottom = self._double(3, 8), self._double(8, 16)
        self.up, self.last = nn.ConvTranspose2d(16, 8, 2, 2), self._double(16, 8)
        self.head = nn.Conv2d(8, 4, 1)

    @staticmethod
    def _double(c, k):
        return nn.Sequential(
            nn.Conv2d(c, k, 3, padding=1),
            nn.GroupNorm(2, k),
            nn.LeakyReLU(0.1),
            nn.Conv2d(k, k, 3, padding=1),
            nn.InstanceNorm2d(k, affine=True),
            nn.ELU(),
        )

    def forward(self, x):
        skip = self.down(x)
        return self.head(self.last(torch.cat([skip, self.up(self.bottom(F.max_pool2d(skip, 2)))], 1)))


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.embedding = nn.Embedding(20, 8, padding_idx=0)
        self.recurrent = kind(8, 6, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(12, 5)

    def forward(self, tokens):
        return self.head(self.recurrent(self.embedding(tokens))[0].mean(1))


class Speech(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv1d(4, 12, 3, 2, 1), nn.BatchNorm1d(12), nn.SiLU(), nn.Conv1d(12, 6, 3, padding=1)
        )

    def forward(self, x):
        return F.log_softmax(self.features(x).permute(2, 0, 1), -1)


class Detection(nn.Module):
    """Two levels of a feature pyramid, one brought to the size of the other, and heads for classes and boxes."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 2, 1)
        self.lateral, self.smooth = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 3, padding=1)
        self.classes, self.boxes, self.slope = nn.Conv2d(8, 4, 3, padding=1), nn.Conv2d(8, 4, 3, padding=1), nn.PReLU(8)

    def forward(self, x):
        low = F.mish(self.first(x))
        high = F.hardswish(self.second(low))
        y = self.slope(self.smooth(self.lateral(low) + F.interpolate(high, size=low.shape[2:], mode="nearest")))
        y = F.interpolate(y, scale_factor=2, mode="bilinear", align_corners=False)
        return torch.cat([self.classes(y), F.softplus(self.boxes(y)), torch.tanh(y)], 1)


class Warp(nn.Module):
    """A spatial transformer."""

    def __init__(self):
        super().__init__()
        self.where, self.head = nn.Linear(3 * 16 * 16, 6), nn.Conv2d(3, 4, 3)

    def forward(self, x):
        theta = torch.eye(2, 3, dtype=x.dtype) + 0.1 * torch.tanh(self.where(x.flatten(1))).view(-1, 2, 3)
        return self.head(F.grid_sample(x, F.affine_grid(theta, x.shape, align_corners=False), align_corners=False))


def _images(dtype):
    return torch.randn(4, 3, 16, 16, dtype=torch.float64).to(dtype)


def _classes(output):
    return F.cross_entropy(output, torch.arange(output.shape[0]) % output.shape[1], label_smoothing=0.1)


def _pixels(output):
    return F.cross_entropy(output, torch.arange(output[:, 0].numel()).view_as(output[:, 0]) % output.shape[1])


def _words(output):
    return F.ctc_loss(output, torch.tensor([[1, 2, 3], [2, 2, 1], [4, 5, 1]]), (10, 10, 8), (3, 3, 2))


def _norm(output):
    return output.square().mean()


def _sounds(dtype):
    return torch.randn(3, 4, 20, dtype=torch.float64).to(dtype)


def _tokens(dtype):
    return torch.arange(3 * 7).view(3, 7) * 5 % 20


_FLASH = "_scaled_dot_product_flash_attention_for_cpu"
# By name: what makes the network, what makes its input, its loss, and the operators that dnnarray must have taken
NETWORKS = {
    "resnet": (
        ResNet, _images, _classes,
        "convolution convolution_backward native_batch_norm native_batch_norm_backward relu_ max_pool2d_with_indices",
    ),
    "convnext": (
        ConvNeXt, _images, _classes,
        "convolution_backward native_layer_norm native_layer_norm_backward gelu_backward",
    ),
    "mobilenet_v3": (
        lambda: Inverted(nn.Hardswish, nn.Hardsigmoid, nn.ReLU), _images, _classes,
        "hardswish hardswish_backward hardsigmoid_backward",
    ),
    "efficientnet": (
        lambda: Inverted(nn.SiLU, nn.Sigmoid, nn.SiLU), _images, _classes,
        "silu silu_backward sigmoid sigmoid_backward",
    ),
    "densenet": (
        DenseNet, _images, _classes,
        "avg_pool2d avg_pool2d_backward nll_loss_forward nll_loss_backward _log_softmax",
    ),
    "vit": (ViT, _images, _classes, f"{_FLASH} {_FLASH}_backward"),
    "swin": (Swin, _images, _classes, "_softmax _softmax_backward_data native_layer_norm"),
    "unet": (
        UNet, _images, _pixels,
        "native_group_norm native_group_norm_backward leaky_relu_backward elu_backward nll_loss2d_backward",
    ),
    "lstm": (lambda: Recurrent(nn.LSTM), _tokens, _classes, "embedding embedding_dense_backward"),
    "gru": (lambda: Recurrent(nn.GRU), _tokens, _classes, "embedding embedding_dense_backward"),
    "speech": (Speech, _sounds, _words, "ctc_loss.IntList convolution"),
    "detection": (
        Detection, _images, _norm,
        "upsample_nearest2d upsample_bilinear2d_backward mish_backward softplus_backward tanh_backward",
    ),
    "warp": (Warp, _images, _norm, "grid_sampler_2d grid_sampler_2d_backward"),
}  # fmt: skip
