"""Every kernel in every configuration compiles for every architecture; needs NVRTC, no GPU."""

import re
from dataclasses import replace
from functools import lru_cache
from importlib import import_module

import pytest

import dnnarray as dnn
from dnnarray._cuda import module
from dnnarray._cuda.plan import Array, Plan, TensorMap
from dnnarray._names import FAMILIES
from dnnarray._operation import find
from dnnarray._problems.base import leaves, tree_map
from dnnarray._select import Device
from dnnarray._spec import FLOAT16, FLOAT32, FLOAT64, INT32, INT64, Spec
from tests.registry import CASES

pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed")
_DEVICES = {
    "sm_80": Device("made-up A100", "cuda", 108, {"float32": 19e12}, 1.5e12, 4e-6, (8, 0), 166_912),
    "sm_90a": Device("made-up H200", "cuda", 132, {"float32": 50e12}, 4.2e12, 4e-6, (9, 0), 232_448),
    "sm_100": Device("made-up B200", "cuda", 148, {"float32": 70e12}, 7e12, 4e-6, (10, 0), 232_448),
}


_TABLE = {op: table for family in FAMILIES for op, table in import_module(f"dnnarray._cuda.{family}").ALGORITHMS.items()}


def _kernels(device):
    """Every kernel that any case or large problem plans, in every dtype, aligned and not."""
    return sorted({k for _, _, program in _programs(device) for k in program.kernels}, key=lambda k: k.symbol)


def _programs(device):
    """(problem, method, program) of all that any case or large problem plans, in every dtype, aligned and not."""
    for name, problem in _problems():
        for method in _TABLE.get(name, ()):
            if method.rejects(problem, device) is None:
                yield from ((problem, method, method.run(problem, device, aligned)) for aligned in (True, False))


def _problems():
    yield from _large()
    for case in CASES:
        operation = find(case.op)
        for dtype in case.dtypes:
            arrays = case.draw(dtype)
            specs = tuple(tree_map(lambda a: Spec(a.shape, a.dtype), a) for a in arrays)
            bound, chosen = operation.bind(specs, case.options)
            static = {n: v for n, v in chosen.items() if n in operation.static}
            problems = [(operation.base, operation.problem(bound, static))]
            backward = f"{operation.base}_backward"
            if backward in _TABLE and case.gradient:
                grad = next(s for s in leaves(problems[0][1].outputs))
                problems.append((backward, _backward_problem(find(backward), operation, grad, bound, static)))
            yield from problems


def _large():
    """Problems, without data, of kernels that no case reaches: extents that are too large for cases, a gradient of the sum alone."""
    for dtype in (FLOAT16, FLOAT32, FLOAT64):
        x, last, few, row = (Spec(shape, dtype) for shape in ((2, 3, 64, 64), (2, 64, 64, 8), (2, 3, 4, 4), (11,)))
        places, rows, long = Spec(few.shape, INT64), Spec((3, 11), dtype), Spec((2, 262_145), dtype)
        for op in ("max_pool", "avg_pool", "lp_pool"):
            yield _planned(op, x, kernel_size=64)
            yield _planned(op, last, kernel_size=64, layout="channels_last")
        wide = Spec((2, 60, 60, 64), dtype)
        for size in (4, 7, 12):
            yield _planned("avg_pool", wide, kernel_size=size, stride=2, layout="channels_last")
        for options in ({"kernel_size": 5, "stride": 2, "padding": 2}, {"kernel_size": 4, "stride": 2}, {"kernel_size": 5, "stride": 1}):
            for op in ("max_pool", "max_pool_with_indices"):
                yield _planned(op, Spec((32, 60, 60, 64), dtype), layout="channels_last", **options)
        for side, stride in ((55, 2), (110, 1)):
            yield _planned(
                "lp_pool_backward", Spec((64, 64, side, side), dtype), Spec((64, 64, 112, 112), dtype), p=2.0, kernel_size=3, stride=stride
            )
        for size in (13, 7):
            yield _planned("adaptive_avg_pool", wide, output_size=size, layout="channels_last")
        yield _planned("max_unpool", few, places, output_size=(512, 512))
        yield _planned("max_unpool", Spec((2, 4, 4, 16), dtype), Spec((2, 4, 4, 16), INT64), output_size=(96, 96), layout="channels_last")
        pooled = {"kernel_size": 3, "stride": 2, "padding": 1, "layout": "channels_last"}
        yield _planned("max_pool_backward", Spec((2, 8, 8, 8), dtype), Spec((2, 16, 16, 8), dtype), **pooled)
        for factor in (2, 4):
            yield _planned(
                "interpolate_backward",
                Spec((2, 3, 8 * factor, 128 * factor), dtype),
                Spec((2, 3, 8, 128), dtype),
                scale=factor,
                mode="cubic",
            )
        yield _planned("pixel_unshuffle", Spec((4, 32, 128, 256), dtype), factor=2)
        seen = Spec((64, 64, 64, 64), dtype)
        for layout in ("channels_first", "channels_last"):
            sliding = {"kernel_size": 3, "stride": 1, "padding": 1, "layout": layout}
            yield _planned("avg_pool", seen, **sliding)
            yield _planned("avg_pool_backward", seen, seen, **sliding)
        yield _planned("adaptive_avg_pool", Spec((64, 2048, 7, 7), dtype), output_size=1)
        yield _planned("max_pool_backward", seen, seen, Spec(seen.shape, INT64), kernel_size=3, stride=1, padding=1, layout="channels_last")
        for size, stride in ((2, 1), (3, 1), (5, 1), (3, 2), (4, 2), (5, 2)):
            padding = (size - stride) // 2
            side = (64 + 2 * padding - size) // stride + 1
            options = {"kernel_size": size, "stride": stride, "padding": padding, "layout": "channels_last"}
            yield _planned("max_pool_backward", Spec((64, side, side, 64), dtype), seen, **options)
            planes, options = Spec((64, 64, 112, 112), dtype), options | {"padding": (size - stride + 1) // 2, "layout": "channels_first"}
            side = (112 + 2 * options["padding"] - size) // stride + 1
            for places in ((), (INT64,), (INT32,)):
                grad = Spec((64, 64, side, side), dtype)
                yield _planned("max_pool_backward", grad, planes, *(Spec(grad.shape, saved) for saved in places), **options)
        many = Spec((2, 8, 64, 64), dtype)  # windows over an element
        for size in (5, (2, 3)):
            yield _planned("max_pool_backward", many, many, kernel_size=size, stride=1, padding="same")
        yield _planned("softmax", long)
        yield _planned("log_softmax_backward", long, long)
        yield _planned("cross_entropy_backward", Spec((), dtype), long, Spec((2,), INT64))
        for count, classes in ((9, 21), (9, 128_257), (300_000, 2048)):
            scored = Spec((count, 8), dtype), Spec((classes, 8), dtype), Spec((count,), INT64)
            yield _planned("linear_cross_entropy", *scored, return_tape=True)
        tape = Spec((sum(s.size for s in scored[:2]),), dtype if dtype == FLOAT64 else FLOAT32)
        yield _planned("linear_cross_entropy_backward", Spec((), dtype), *scored, tape=tape)
        yield _planned("add_layer_norm_backward", (None, rows), rows, rows, row, row)
        for columns in (40, 4096, 16_384, 65_536):
            rows, row, saved = Spec((64, columns), dtype), Spec((columns,), dtype), Spec((64, 1), dtype if dtype == FLOAT64 else FLOAT32)
            yield _planned("layer_norm_backward", rows, rows, row, row, mean=saved, rstd=saved)
            yield _planned("rms_norm_backward", rows, rows, row, rstd=saved)
        stays, row = Spec((512, 131_072 if dtype != FLOAT32 else 65_536), dtype), Spec((131_072 if dtype != FLOAT32 else 65_536,), dtype)
        yield _planned("layer_norm", stays, row, row)
        yield _planned("add_rms_norm", stays, stays, row)
        small, each = Spec((64, 2048, 7, 7), dtype), Spec((2048,), dtype if dtype == FLOAT64 else FLOAT32)
        yield _planned("batch_norm_train", small, residual=small)
        yield _planned("batch_norm_train_backward", small, small, each, each, mean=each, rstd=each)
        image = Spec((64, 56, 56, 64), dtype)
        yield _planned("conv_backward_weight", image, image, weight_shape=(64, 3, 3, 64), padding=1, layout="channels_last")
        options = {"groups": 4, "padding": 1, "layout": "channels_last"}
        yield _planned("conv", image, Spec((64, 3, 3, 16), dtype), **options)
        yield _planned("conv", image, Spec((64, 3, 3, 4), dtype), residual=image, **options | {"groups": 16})
        yield _planned("conv_backward_input", image, Spec((64, 3, 3, 16), dtype), input_shape=image.shape, **options)
        yield _planned("conv_backward_weight", image, image, weight_shape=(64, 3, 3, 16), **options)
        square = Spec((64, 3, 3, 64), dtype)
        yield _planned("conv", image, square, residual=image, padding=1, layout="channels_last")
        yield _planned("conv_backward_input", image, square, input_shape=image.shape, padding=1, layout="channels_last")
        yield _planned("conv_backward", image, image, square, activation="gelu", padding=1, layout="channels_last")
        yield _planned("conv", Spec((64, 64, 56, 56), dtype), Spec((64, 64, 3, 3), dtype), padding=1)
        yield _planned("conv", image, Spec((256, 1, 1, 64), dtype), layout="channels_last")
        first, weight, result = Spec((2, 64, 64, 3), dtype), Spec((64, 7, 7, 3), dtype), Spec((2, 32, 32, 64), dtype)
        options = {"stride": 2, "padding": 3, "layout": "channels_last"}
        yield _planned("conv", first, weight, **options)
        yield _planned("conv_backward_input", result, weight, input_shape=first.shape, **options)
        yield _planned("conv_backward_weight", result, first, weight_shape=weight.shape, **options)
        for space, window in (((4096,), (5,)), ((112, 112), (3, 3)), ((56, 56), (5, 5))):
            image, weight = Spec((8, 64, *space), dtype), Spec((64, 1, *window), dtype)
            options = {"groups": 64, "padding": window[0] // 2}
            yield _planned("conv", image, weight, **options)
            yield _planned("conv_backward_input", image, weight, input_shape=image.shape, **options)


def _planned(op, *specs, **options):
    operation = find(op)
    bound, chosen = operation.bind(specs, options)
    return operation.base, operation.problem(bound, {n: v for n, v in chosen.items() if n in operation.static})


def _backward_problem(backward, operation, grad, bound, static):
    given = dict(zip(operation.arrays, bound, strict=True)) | static
    kept = {n: v for n, v in given.items() if n in backward.arrays or n in backward.static}
    arrays, chosen = backward.bind((grad,), kept)
    return backward.problem(arrays, {n: v for n, v in chosen.items() if n in backward.static})


_FEW = 2  # configurations of each source, spread over all; "make kernels" takes every one
_SOURCES = sorted(str(p.relative_to(module.kernels_folder())) for p in module.kernels_folder().rglob("*.cu"))


@lru_cache(maxsize=3)
def _by_source(architecture):
    found = {}
    for kernel in _kernels(_DEVICES[architecture]):
        found.setdefault(kernel.source, []).append(kernel)
    return found


@pytest.mark.parametrize("architecture", _DEVICES)
@pytest.mark.parametrize("source", _SOURCES)
def test_every_kernel_compiles_without_a_spill(source, architecture, request):
    kernels = _by_source(architecture).get(source, [])
    if not request.config.getoption("--all-kernels"):
        kernels = kernels[:: max(1, len(kernels) // _FEW)]
    for kernel in kernels:
        code, log = module.compile_with_log(kernel, architecture, "--ptxas-options=-v")
        assert code.startswith(b"\x7fELF")
        assert not re.search(r"[1-9]\d* bytes spill", log), f"{kernel.symbol}: {log}"


def test_every_source_is_planned_by_some_problem():
    assert set(_SOURCES) <= set().union(*map(_by_source, _DEVICES))


def test_no_launch_takes_more_scratch_than_its_method_asks_for():
    for problem, method, program in _programs(_DEVICES["sm_90a"]):
        scratch = sum(spec is not None for spec in (*leaves(problem.inputs), *problem.outputs))
        workspace = method.workspace(problem)  # once for all plans: a recurrent network has thousands
        for plan in program.plans:
            arguments = plan.arguments if isinstance(plan, Plan) else plan.arrays
            arguments = [a.array if isinstance(a, TensorMap) else a for a in arguments]
            places = [a for a in arguments if isinstance(a, Array)]
            assert all(a.index <= scratch for a in places), (problem.op, method.name)
            assert all(a.offset <= workspace for a in places if a.index == scratch), (problem.op, method.name)


def test_symbols_name_their_settings_uniquely():
    kernels = [k for found in _by_source("sm_90a").values() for k in found]
    assert len({k.symbol for k in kernels}) == len(kernels)
    assert all(re.fullmatch(r"[a-z0-9_]+", k.symbol) for k in kernels)


def test_an_edited_header_changes_the_digest(monkeypatch):
    kernel = _by_source("sm_90a")["common/zero.cu"][0]
    before = module.digest(kernel, "sm_90a")
    assert before != module.digest(kernel, "sm_80")
    original = module._source
    monkeypatch.setattr(module, "_source", lambda name: original(name) + (b" " if name.endswith("dtype.cuh") else b""))
    module._files_digest.cache_clear()
    after = module.digest(kernel, "sm_90a")
    module._files_digest.cache_clear()
    assert after != before


@pytest.mark.parametrize("damage", [lambda b: b"garbage", lambda b: b"", lambda b: b[:-1], lambda b: b[:-9] + b"X" + b[-8:]])
def test_the_cubin_cache_replaces_what_is_damaged(damage, tmp_path, monkeypatch):
    monkeypatch.setenv("DNNARRAY_CACHE_DIR", str(tmp_path))
    kernel = _by_source("sm_90a")["common/zero.cu"][0]
    first = module.cubin(kernel, "sm_90a")
    (file,) = (tmp_path / "cubin").iterdir()
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    assert module.cubin(kernel, "sm_90a") == first
    assert file.read_bytes() == whole
    monkeypatch.setattr(module, "compile_kernel", lambda *a: pytest.fail("the cache was not used"))
    assert module.cubin(kernel, "sm_90a") == first


def test_the_compiler_writes_only_to_memory_of_ours():
    module.compile_kernel(_by_source("sm_90a")["common/zero.cu"][0], "sm_90a")
    assert [bytes([i])[0] for i in range(256)] == list(range(256))  # Python shares bytes objects of length 1


def test_a_kernel_that_does_not_compile_leaves_nothing_behind(monkeypatch):
    from cuda.bindings import nvrtc

    destroyed, destroy = [], nvrtc.nvrtcDestroyProgram
    monkeypatch.setattr(nvrtc, "nvrtcDestroyProgram", lambda program: destroyed.append(program) or destroy(program))
    kernel = _by_source("sm_90a")["common/zero.cu"][0]
    with pytest.raises(dnn.DeviceError, match="does not compile for sm_90a"):
        module.compile_kernel(replace(kernel, includes=("nothing",)), "sm_90a")
    assert len(destroyed) == 1


def test_a_cache_that_cannot_be_written_costs_nothing_else(tmp_path, monkeypatch):
    (tmp_path / "cubin").write_text("a file where the folder should be")
    monkeypatch.setenv("DNNARRAY_CACHE_DIR", str(tmp_path))
    assert module.cubin(_by_source("sm_90a")["common/zero.cu"][0], "sm_90a").startswith(b"\x7fELF")
