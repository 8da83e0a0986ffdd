"""Gradients of the networks of torchvision and timm under `dnnarray.interop.torch.accelerate`, held to float64.

    python -m tests.interop.zoo [--device cuda] [--size 64] [--batch 4] [--seeds 2] [NAME ...]

For each network the script prints the error of PyTorch's float32 gradients against those of float64, the error under
`accelerate`, and their ratio, which must not be above 1.5. It ends with status 1 where one is, or where one fails.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import sys

import torch

from dnnarray.interop.torch import accelerate, report
from tests.interop.precision import errors, mean

LIMIT = 1.5
CLASSES = 10
NAMES = """
    torchvision/alexnet torchvision/vgg11_bn torchvision/resnet18 torchvision/resnet50 torchvision/resnext50_32x4d
    torchvision/wide_resnet50_2 torchvision/densenet121 torchvision/googlenet torchvision/inception_v3
    torchvision/squeezenet1_1 torchvision/shufflenet_v2_x1_0 torchvision/mobilenet_v2 torchvision/mobilenet_v3_large
    torchvision/mnasnet0_5 torchvision/efficientnet_b0 torchvision/efficientnet_v2_s torchvision/regnet_y_400mf
    torchvision/convnext_tiny torchvision/vit_b_32 torchvision/swin_t torchvision/swin_v2_t torchvision/maxvit_t
    torchvision/fcn_resnet50 torchvision/deeplabv3_resnet50 torchvision/lraspp_mobilenet_v3_large
    torchvision/retinanet_resnet50_fpn torchvision/fcos_resnet50_fpn torchvision/ssdlite320_mobilenet_v3_large
    torchvision/r3d_18 torchvision/r2plus1d_18 torchvision/mc3_18 torchvision/s3d
    timm/resnetv2_50 timm/cspresnet50 timm/mixer_s32_224 timm/deit_tiny_patch16_224 timm/poolformer_s12
    timm/ghostnet_100 timm/repvgg_a0 timm/mobilevit_xs timm/edgenext_xx_small timm/hrnet_w18_small
""".split()
_SEGMENTATION, _DETECTION = ("fcn", "deeplab", "lraspp"), ("retinanet", "fcos", "ssdlite")
_VIDEO = ("r3d", "r2plus1d", "mc3", "s3d")
_SIZES = {"inception_v3": 96, "vit_b_32": 224, "swin_v2_t": 64, "maxvit_t": 224, "mixer_s32_224": 224}
_SIZES |= {"deit_tiny_patch16_224": 224, "s3d": 224, "hrnet_w18_small": 128}


def build(name, size, batch):
    """A network in float64 in training mode, a function of the dtype and the device that gives its input, and its
    loss.
    """
    library, _, model = name.partition("/")
    size = _SIZES.get(model, size)
    if library == "timm":
        net = importlib.import_module("timm").create_model(model, num_classes=CLASSES)
    else:
        net = importlib.import_module("torchvision.models").get_model(model, **_options(model, size))
    if model.startswith(_DETECTION):
        return net, lambda dtype, device: _detection(size, batch, device, dtype), lambda losses: sum(losses.values())
    shape = (batch, 3, 16, size, size) if model.startswith(_VIDEO) else (batch, 3, size, size)
    return net, lambda dtype, device: (torch.randn(shape, dtype=torch.float64).to(device, dtype),), _loss


def _options(model, size):
    options = {"weights": None, "num_classes": CLASSES}
    if model.startswith((*_SEGMENTATION, *_DETECTION)):
        options["weights_backbone"] = None
    if model.startswith(("retinanet", "fcos")):
        options |= {"min_size": size, "max_size": size}
    return options | ({"init_weights": True} if model in ("googlenet", "inception_v3") else {})


def _detection(size, batch, *kind):
    images = [torch.rand(3, size, size, dtype=torch.float64).to(*kind) for _ in range(batch)]
    boxes = torch.tensor([[0.1, 0.1, 0.6, 0.7], [0.3, 0.2, 0.9, 0.9]], dtype=torch.float64) * size
    target = {"boxes": boxes.to(*kind), "labels": torch.tensor([1, 2], device=images[0].device)}
    return images, [target] * batch


def _loss(output):
    """Cross entropy of all scores that a network gives, whatever it gives them in."""
    scores = [t for t in torch.utils._pytree.tree_leaves(_plain(output)) if t.is_floating_point()]
    labels = [torch.arange(s[:, 0].numel(), device=s.device).view_as(s[:, 0]) % s.shape[1] for s in scores]
    return sum(torch.nn.functional.cross_entropy(s, t) for s, t in zip(scores, labels, strict=True))


def _plain(output):
    return dict(output) if hasattr(output, "items") else tuple(output) if isinstance(output, tuple) else output


def without_randomness(net):
    """Switch off what drops anything: float32 and float64 would draw different numbers."""
    for part in net.modules():
        for attribute in ("p", "drop_prob"):
            if isinstance(getattr(part, attribute, None), float):
                setattr(part, attribute, 0.0)
    return net


def measure(build_network, device="cpu", seeds=2):
    """The errors of PyTorch's gradients and of those under `accelerate`, as root mean squares over all tensors."""
    theirs, ours = [], []
    for seed in range(seeds):
        torch.manual_seed(seed)
        net, draw, loss = build_network()
        net = without_randomness(net.double().to(device)).train()
        exact = _gradients(net, draw, loss, torch.float64, device, seed)
        theirs += errors(_gradients(net, draw, loss, torch.float32, device, seed), exact)
        with accelerate(devices=(device,)):
            ours += errors(_gradients(net, draw, loss, torch.float32, device, seed), exact)
    return mean(theirs), mean(ours)


def _gradients(net, draw, loss, dtype, device, seed):
    torch.manual_seed(seed + 1000)
    given, net = draw(dtype, device), copy.deepcopy(net).to(dtype)
    loss(net(*given) if isinstance(given, tuple) else net(given)).backward()
    return [p.grad for p in net.parameters() if p.grad is not None]


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m tests.interop.zoo", description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", default=NAMES, help="library/model; all by default")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--size", type=int, default=64, help="rows and columns of the images")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=2)
    chosen = parser.parse_args(arguments)
    bad = 0
    print(f"{'network':40}  {'PyTorch':>9}  {'dnnarray':>9}  {'ratio':>6}  {'taken':>6}  {'declined':>8}")
    for name in chosen.names:
        report(reset=True)
        try:
            theirs, ours = measure(lambda n=name: build(n, chosen.size, chosen.batch), chosen.device, chosen.seeds)
        except Exception as error:  # the others are measured nevertheless
            bad += 1
            print(f"{name:40}  {type(error).__name__}: {str(error).partition(chr(10))[0]}", flush=True)
            continue
        calls = report()
        bad += ours > LIMIT * theirs
        counts = f"{calls.taken:6}  {calls.declined:8}"
        print(f"{name:40}  {theirs:9.2e}  {ours:9.2e}  {ours / theirs:6.2f}  {counts}", flush=True)
    print(f"{len(chosen.names)} networks, {bad} beyond {LIMIT} times PyTorch's error or failed")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
