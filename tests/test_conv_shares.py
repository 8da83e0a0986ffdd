"""How a convolution is cut into parts for the engine's threads."""

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._cpu import conv as conv_engine
from dnnarray._cpu import threads
from dnnarray._cpu.conv import shares as conv_shares
from dnnarray._problems.conv_geometry import Geometry
from tests.oracles.conv import ORACLES


@pytest.mark.parametrize(
    ("window", "groups", "options"),
    [((6, 1, 3, 3), 6, {}), ((12, 1, 2, 5), 6, {"dilation": 2}), ((6, 2, 4, 4), 3, {"stride": 2})],
    ids=str,
)
@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_groups_spread_over_threads(window, groups, options, layout, monkeypatch):
    monkeypatch.setattr(threads, "GRAIN", 1000)
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((3, 6, 61, 62)), rng.standard_normal(window)
    if layout == "channels_last":
        x, w = (np.ascontiguousarray(np.moveaxis(a, 1, -1)) for a in (x, w))
    options = {"padding": (1, 3), "groups": groups, "layout": layout, **options}
    y, pullback = dnn.vjp("conv", x, w, **options)
    grad = rng.standard_normal(y.shape)
    expected = (y, *(a for a in pullback(grad) if a is not None))
    for algorithm in ("gemm", "implicit_gemm", "direct", *(["depthwise"] if groups == 6 else [])):
        for count in (1, 4):
            with dnn.options(threads=count):
                found = [dnn.conv(x, w, algorithm=algorithm, **options)]
                if (
                    algorithm != "depthwise" or len(w) == groups
                ):  # with more outputs a group, the input's gradient sums over them
                    found.append(dnn.conv_backward_input(grad, w, input_shape=x.shape, algorithm=algorithm, **options))
                    found.append(
                        dnn.conv_backward_weight(grad, x, weight_shape=w.shape, algorithm=algorithm, **options)
                    )
            for got, right in zip(found, expected, strict=False):
                np.testing.assert_allclose(got, right, rtol=1e-10, atol=1e-10)


def test_scratch_of_another_number_of_threads_will_do(monkeypatch):
    monkeypatch.setattr(threads, "GRAIN", 1000)
    geometry = Geometry(2, 8, 1, 1, (1, 90, 90), (1, 3, 3), (1, 88, 88), (1, 1, 1), (1, 1, 1), (0, 0, 0))
    x, w = np.ones((2, 8, 1, 1, 90, 90)), np.ones((8, 1, 1, 1, 3, 3))
    y, seen = np.ones((2, 8, 1, 1, 88, 88)), []

    def run(g, buffers, x, y, w):
        seen.append((g.groups, len(buffers[0]), x.shape[1], y.shape[1], len(w)))

    def shapes(g):
        return [(1000,)]  # however few the groups are: together the shares need more than the whole

    with dnn.options(threads=4):
        conv_shares.spread(conv_engine.WAYS[0], run, geometry, shapes, np.empty(8000, np.uint8), x, y, w)
        assert seen == [(8, 1000, 8, 8, 8)]
        conv_shares.spread(conv_engine.WAYS[0], run, geometry, shapes, np.empty(40000, np.uint8), x, y, w)
        assert seen[1:] == [(2, 1000, 2, 2, 2)] * 4
        conv_shares.spread(conv_engine.DIRECT, run, geometry, shapes, np.empty(40000, np.uint8), x, y, w)
    assert seen[5:] == [(8, 1000, 8, 8, 8)]  # a way that does not say so stays in one piece


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize(
    ("x_shape", "w_shape", "options"),
    [
        ((5, 3, 33, 34), (40, 3, 3, 3), {"padding": 1}),  # the weight's gradient by images, which are added up
        ((1, 70, 23, 24), (67, 70, 3, 3), {"padding": (0, 2)}),  # one image: by channels
        ((3, 64, 17, 18), (33, 64, 3, 3), {"stride": 2, "padding": 1}),
        ((6, 40, 900), (36, 40, 4), {"dilation": 3}),
        ((2, 48, 40, 41), (80, 48, 1, 1), {}),
        ((4, 34, 31, 30), (70, 17, 3, 3), {"groups": 2, "padding": 2}),
    ],
    ids=str,
)
def test_images_and_channels_spread_over_threads(x_shape, w_shape, options, layout, monkeypatch):
    monkeypatch.setattr(threads, "GRAIN", 1000)
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal(x_shape), rng.standard_normal(w_shape)
    if layout == "channels_last":
        x, w = (np.ascontiguousarray(np.moveaxis(a, 1, -1)) for a in (x, w))
    options = {"layout": layout, **options}
    y = dnn.conv(x, w, algorithm="direct", **options)
    grad = rng.standard_normal(y.shape)
    calls = {
        "conv": ((x, w), {}),
        "conv_backward_input": ((grad, w), {"input_shape": x.shape}),
        "conv_backward_weight": ((grad, x), {"weight_shape": w.shape}),
    }
    for name, (arrays, more) in calls.items():
        call = getattr(dnn, name)
        expected = ORACLES[name](*arrays, **options, **more)
        for algorithm in (a.name for a in dnn.algorithms(name, *arrays, **options, **more)):
            if algorithm not in ("gemm", "implicit_gemm", "direct", "winograd"):
                continue
            for count in (1, 2, 4, 7):
                with dnn.options(threads=count):
                    got = call(*arrays, algorithm=algorithm, **options, **more)
                np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-10, err_msg=f"{name} {algorithm} {count}")


@pytest.mark.parametrize(
    ("n", "groups", "c", "k", "parts", "wgrad", "cut"),
    [
        (8, 1, 64, 64, 2, False, (2, 1, 1, 1)),
        (8, 1, 64, 64, 64, False, (8, 1, 1, 4)),  # no thread gets fewer than 16 channels
        (1, 1, 64, 64, 4, False, (1, 1, 1, 4)),
        (3, 1, 64, 64, 2, False, (1, 1, 1, 2)),  # not two images and one
        (1, 1, 64, 8, 4, False, (1, 1, 1, 1)),
        (8, 32, 4, 4, 4, False, (1, 4, 1, 1)),
        (8, 1, 64, 64, 4, True, (4, 1, 1, 1)),
        (8, 1, 4096, 4096, 4, True, (1, 1, 4, 1)),  # gradients of the weight that are longer to add up than images
        (1, 1, 64, 64, 4, True, (1, 1, 4, 1)),
        (8, 1, 3, 64, 4, True, (4, 1, 1, 1)),
        (1, 1, 3, 64, 4, True, (1, 1, 1, 4)),
    ],
)
def test_how_work_is_cut(n, groups, c, k, parts, wgrad, cut):
    g = Geometry(n, groups, c, k, (1, 90, 90), (1, 3, 3), (1, 88, 88), (1, 1, 1), (1, 1, 1), (0, 0, 0))
    assert conv_shares._cut(conv_engine.WAYS[0], g, parts, wgrad) == cut


def test_scratch_of_all_threads_has_a_limit():
    """Where a thread for each part would take too much memory, there are fewer."""
    way, g = (
        conv_engine.WAYS[0],
        Geometry(64, 1, 64, 64, (1, 56, 56), (1, 3, 3), (1, 56, 56), (1, 1, 1), (1, 1, 1), (0, 1, 1)),
    )
    one = conv_shares.scratch_of(way, g, lambda g: [(1 << 22,)], 4)
    with dnn.options(threads=64):
        found = conv_shares.shares(way, g, lambda g: [(1 << 22,)], 4)
    assert one >= 1 << 24
    assert len(found.parts) == 8
    assert found.memory <= conv_shares._MOST_SCRATCH


def test_a_limit_of_workspace_is_for_all_threads_together():
    """Fewer of them work where it is small, and the algorithm stays."""
    x, w = dnn.Spec((16, 64, 56, 56), "float32"), dnn.Spec((64, 64, 3, 3), "float32")
    with dnn.options(threads=1):
        one = next(a for a in dnn.algorithms("conv", x, w, padding=1) if a.name == "gemm").workspace
    for limit in (one, 2 * one, 5 * one):
        with dnn.options(threads=16, workspace_limit=limit):
            found = next(a for a in dnn.algorithms("conv", x, w, padding=1) if a.name == "gemm")
            assert one <= found.workspace <= limit
            y = dnn.conv(np.ones(x.shape, np.float32), np.ones(w.shape, np.float32), padding=1, algorithm="gemm")
        assert (y[:, :, 1:-1, 1:-1] == 576).all()
