"""Rows of sampling, resizing and region pooling for the side-by-side benchmark."""

from __future__ import annotations

import itertools

import torch

import dnnarray as dnn
from asv_bench.gpu import borrowed


def _grid_rows():
    sample = torch.nn.functional.grid_sample
    for dtype in (torch.float32, torch.bfloat16):
        for last in (False, True):
            x = torch.randn(32, 64, 128, 128, device="cuda").to(dtype)
            x = x.contiguous(memory_format=torch.channels_last) if last else x
            grid = (torch.rand(32, 128, 128, 2, device="cuda") * 2 - 1).to(dtype)
            out = torch.empty_like(x)
            cx, cg, co = map(borrowed, (x, grid, out))
            label = f"{str(dtype)[6:]}{' channels-last' * last}"
            yield (
                f"grid_sample 32x64x128x128 {label}",
                2 * x.nbytes + grid.nbytes,
                (lambda cx=cx, cg=cg, co=co: dnn.grid_sample(cx, cg, out=co)),
                (lambda x=x, grid=grid: sample(x, grid, align_corners=False)),
                None,
                (),
            )
            leaf, places = x.detach().requires_grad_(), grid.detach().requires_grad_()
            y = sample(leaf, places, align_corners=False)
            g = torch.randn_like(y)
            c_g, dx, dg = borrowed(g), borrowed(torch.empty_like(x)), borrowed(torch.empty_like(grid))
            yield (
                f"grid_sample_backward {label}",
                3 * x.nbytes + 2 * grid.nbytes,
                (lambda c_g=c_g, cx=cx, cg=cg, dx=dx, dg=dg: dnn.grid_sample_backward(c_g, cx, cg, out=(dx, dg))),
                (
                    lambda y=y, leaf=leaf, places=places, g=g: torch.autograd.grad(
                        y, (leaf, places), g, retain_graph=True
                    )
                ),
                None,
                (),
            )


def _resize_rows():
    resize = torch.nn.functional.interpolate
    for mode, theirs, size in (
        ("nearest", "nearest", 256),
        ("linear", "bilinear", 256),
        ("cubic", "bicubic", 256),
        ("linear", "bilinear", 64),
    ):
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.randn(16, 64, 128, 128, device="cuda").to(dtype)
            out = torch.empty(16, 64, size, size, device="cuda", dtype=dtype)
            cx, co = borrowed(x), borrowed(out)
            yield (
                f"interpolate {mode} to {size} {str(dtype)[6:]}",
                x.nbytes + out.nbytes,
                (lambda cx=cx, co=co, mode=mode, size=size: dnn.interpolate(cx, size=size, mode=mode, out=co)),
                (lambda x=x, theirs=theirs, size=size: resize(x, size=size, mode=theirs)),
                None,
                (),
            )
            leaf = x.detach().requires_grad_()
            y = resize(leaf, size=size, mode=theirs)
            g, dx = torch.randn_like(y), borrowed(torch.empty_like(x))
            c_g = borrowed(g)
            yield (
                f"interpolate_backward {mode} to {size} {str(dtype)[6:]}",
                x.nbytes + out.nbytes,
                (
                    lambda c_g=c_g, cx=cx, dx=dx, mode=mode, size=size: dnn.interpolate_backward(
                        c_g, cx, size=size, mode=mode, out=dx
                    )
                ),
                (lambda y=y, leaf=leaf, g=g: torch.autograd.grad(y, leaf, g, retain_graph=True)),
                None,
                (),
            )


def _roi_rows(count=512):
    """Regions of a feature map; the peer is torchvision, where it is installed."""
    try:
        from torchvision.ops import roi_align
    except ImportError:
        return
    options = {"output_size": (7, 7), "spatial_scale": 0.25, "sampling_ratio": 2}
    corners = torch.rand(count, 2, 2, device="cuda") * 600
    images = torch.randint(0, 2, (count, 1), device="cuda").float()
    wide_boxes = torch.cat([images, corners.amin(1), corners.amax(1) + 20], 1)
    for dtype, last in itertools.product((torch.float32, torch.float16), (False, True)):
        boxes = wide_boxes.to(dtype)
        x = torch.randn(2, 256, 200, 200, device="cuda").to(dtype)
        x = x.contiguous(memory_format=torch.channels_last) if last else x
        cx, cb = borrowed(x), borrowed(boxes)
        out = dnn.roi_align(cx, cb, **options)
        half = " float16" * (dtype == torch.float16)
        label, moved = f"{count} boxes{half}{' channels-last' * last}", x.nbytes + out.nbytes
        yield (
            f"roi_align {label}",
            moved,
            (lambda cx=cx, cb=cb, out=out: dnn.roi_align(cx, cb, out=out, **options)),
            (lambda x=x, boxes=boxes: roi_align(x, boxes, **options)),
            None,
            (),
        )
        leaf = x.detach().requires_grad_()
        y = roi_align(leaf, boxes, **options)
        g, dx = torch.randn_like(y), borrowed(torch.empty_like(x))
        g = g.contiguous(memory_format=torch.channels_last) if last else g
        c_g = borrowed(g)
        yield (
            f"roi_align_backward {label}",
            moved,
            (lambda c_g=c_g, cx=cx, cb=cb, dx=dx: dnn.roi_align_backward(c_g, cx, cb, out=dx, **options)),
            (lambda y=y, leaf=leaf, g=g: torch.autograd.grad(y, leaf, g, retain_graph=True)),
            None,
            (),
        )


def _affine_rows(shape=(64, 3, 512, 512)):
    affine = torch.nn.functional.affine_grid
    theta = torch.randn(shape[0], 2, 3, device="cuda", requires_grad=True)
    y = affine(theta, shape, align_corners=False)
    g = torch.randn_like(y)
    plain, c_g, out, d = (
        theta.detach(),
        borrowed(g),
        borrowed(torch.empty_like(g)),
        borrowed(torch.empty_like(theta.detach())),
    )
    c_theta = borrowed(plain)
    yield (
        "affine_grid 64x512x512",
        y.nbytes,
        lambda: dnn.affine_grid(c_theta, shape, out=out),
        lambda: affine(plain, shape, align_corners=False),
        torch.compile(lambda t: affine(t, shape, align_corners=False)),
        (plain,),
    )
    yield (
        "affine_grid_backward 64x512x512",
        y.nbytes,
        lambda: dnn.affine_grid_backward(c_g, c_theta, shape, out=d),
        lambda: torch.autograd.grad(y, theta, g, retain_graph=True),
        None,
        (),
    )


def rows():
    yield from _grid_rows()
    yield from _resize_rows()
    yield from _roi_rows()
    yield from _affine_rows()
