"""Plans of norms that need no GPU: which algorithm takes small arrays, and blocks that stay are all at work at once."""

from dataclasses import replace
from itertools import product

import pytest

from dnnarray._call.operation import find
from dnnarray._cuda import norm
from dnnarray._cuda.norm import (
    blocks,
    channel_block,
    channel_block_cluster,
    channel_view,
    cluster_rows_backward,
    rows_backward,
)
from dnnarray._options import DEFAULT
from dnnarray._select import Device, choose
from dnnarray._spec import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, Spec

_DEVICE = Device("made-up H200", "cuda", 132, {"float32": 50e12}, 4.2e12, 4e-6, (9, 0), 232_448)


def _problem(op, x, parameters, **options):
    operation = find(op)
    weight = Spec(parameters, x.dtype)
    arrays = {"x": x, "grad": x, "residual": x if op.startswith("add_") else None, "weight": weight, "bias": weight}
    chosen = {n: v for n, v in (operation.defaults | options).items() if n in operation.static}
    return operation.problem(tuple(arrays.get(n) for n in operation.arrays), chosen)


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, BFLOAT16, FLOAT64], ids=str)
@pytest.mark.parametrize("op", ["layer_norm_backward", "rms_norm_backward", "add_layer_norm_backward"])
@pytest.mark.parametrize("columns", [1, 37, 64, 512, 768, 1024, 2048])
def test_a_gradient_in_registers_has_no_more_blocks_than_are_at_work_at_once(op, columns, dtype):
    problem = _problem(op, Spec((1 << 16, columns), dtype), (columns,))
    for aligned in (True, False):
        if rows_backward.rejects(problem, _DEVICE) is None:
            plan = rows_backward.run(problem, _DEVICE, aligned).plans[0]
            config = plan.kernel.config
            assert plan.grid[0] <= _DEVICE.units * config.resident
            assert config.resident * config.threads <= 2048


def _saved(rows, columns, dtype):
    """A gradient whose statistics were saved."""
    operation, x, row = find("layer_norm_backward"), Spec((rows, columns), dtype), Spec((columns,), dtype)
    statistic = Spec((rows, 1), dtype if dtype == FLOAT64 else FLOAT32)
    arrays = {"x": x, "grad": x, "weight": row, "bias": row, "mean": statistic, "rstd": statistic}
    chosen = {n: v for n, v in operation.defaults.items() if n in operation.static}
    return operation.problem(tuple(arrays.get(n) for n in operation.arrays), chosen)


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, BFLOAT16, FLOAT64], ids=str)
@pytest.mark.parametrize(("rows", "columns"), [(1, 8), (128, 512), (128, 37), (512, 20), (33, 1024), (64, 2048)])
def test_small_gradients_whose_statistics_were_saved_take_one_launch(rows, columns, dtype):
    problem = _saved(rows, columns, dtype)
    method = next(m for m in norm.ALGORITHMS[problem.op] if m.rejects(problem, _DEVICE) is None)
    assert method.name == "rows_backward_with_columns"
    for aligned in (True, False):
        (plan,) = method.run(problem, _DEVICE, aligned).plans
        config = plan.kernel.config
        of_columns = -(-columns // (config.side * config.vector))
        assert (plan.grid[0] - of_columns) * (plan.block // config.lanes) >= rows
        assert config.side * config.vector == (16 if plan.block * config.vector // 16 <= rows else 32)
    unsaved = _problem(problem.op, Spec((rows, columns), dtype), (columns,))
    assert "saved" in method.rejects(unsaved, _DEVICE)
    assert "rows" in method.rejects(_saved(5000, columns, dtype), _DEVICE)


@pytest.mark.parametrize(("columns", "vectors"), [(20_000, 3), (32_768, 4), (131_072, 4)])
def test_long_rows_whose_statistics_were_saved_wait_for_nobody(columns, vectors):
    """Three rows and the weight, as it came, in the shared memory of a block of a cluster."""
    (plan, _) = cluster_rows_backward.run(_saved(1000, columns, BFLOAT16), _DEVICE, True).plans
    config = plan.kernel.config
    assert (config.split, config.stages, config.vectors) == (True, 3, vectors)
    assert plan.shared_memory <= _DEVICE.shared_memory - 2048
    assert not cluster_rows_backward.run(_saved(1000, columns, FLOAT32), _DEVICE, True).plans[0].kernel.config.split


def _channel_problems(shape, dtype):
    yield _problem("batch_norm_train", Spec(shape, dtype), (shape[1],), activation="relu")
    yield _problem("batch_norm_train_backward", Spec(shape, dtype), (shape[1],))
    for op in ("group_norm", "group_norm_backward"):
        yield _problem(op, Spec(shape, dtype), (shape[1],), num_groups=4)
    for op in ("instance_norm", "instance_norm_backward"):
        yield _problem(op, Spec(shape, dtype), (shape[1],))


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16], ids=str)
@pytest.mark.parametrize("shape", [(4, 16, 14, 14), (3, 8, 7, 7), (1, 4, 5), (2, 12, 64)], ids=str)
def test_statistics_of_small_arrays_take_one_launch(shape, dtype):
    for problem in _channel_problems(shape, dtype):
        method = next(m for m in norm.ALGORITHMS[problem.op] if m.rejects(problem, _DEVICE) is None)
        assert method.name == "channel_block" + "_backward" * problem.op.endswith("_backward")
        found = channel_view.view(problem)
        (plan,) = method.run(problem, _DEVICE, True).plans
        config = plan.kernel.config
        threads = plan.block // getattr(config, "rows", 1)
        assert config.vector * config.vectors * threads >= found.size // found.statistics
        assert getattr(config, "rows", found.batch) >= (found.batch if found.per_batch else 1)


def test_memory_that_is_not_aligned_goes_to_shared_memory_where_single_elements_are_too_many():
    problem = _problem("group_norm_backward", Spec((4, 64, 14, 14), FLOAT32), (64,), num_groups=8)
    devices = (_DEVICE, replace(_DEVICE, aligned=False))
    names = [choose(problem, device, DEFAULT, norm.ALGORITHMS[problem.op]).name for device in devices]
    assert names == ["channel_block_backward", "channel_slab_backward"]
    assert blocks.workspace(problem) > 0


def test_large_arrays_and_doubles_are_left_to_others():
    assert "bytes" in channel_block.rejects(next(_channel_problems((64, 256, 56, 56), FLOAT32)), _DEVICE)
    assert "float" in channel_block.rejects(next(_channel_problems((4, 16, 14, 14), FLOAT64)), _DEVICE)
    assert "registers" in channel_block.rejects(next(_channel_problems((1, 1, 1 << 17), FLOAT32)), _DEVICE)


def test_many_channels_last_of_half_types_whose_statistics_were_saved_take_whole_sectors():
    operation, x, each = (
        find("batch_norm_train_backward"),
        _channels_last((4, 1024, 7, 7), FLOAT16),
        Spec((1024,), FLOAT32),
    )
    chosen = {n: v for n, v in operation.defaults.items() if n in operation.static}
    problem = operation.problem(
        tuple({"x": x, "grad": x, "mean": each, "rstd": each}.get(n) for n in operation.arrays), chosen
    )
    assert choose(problem, _DEVICE, DEFAULT, norm.ALGORITHMS[problem.op]).name == "channel_tile_backward"


def test_more_batch_indices_than_a_grid_has():
    for x in (Spec((65_536, 2, 2), FLOAT16), Spec((65_536, 4), FLOAT16)):
        assert "65,536" in channel_block.rejects(_problem("group_norm", x, (x.shape[1],), num_groups=2), _DEVICE)


def _of_samples(op, x, **options):
    """A norm over samples whose statistics are results, or of a gradient inputs."""
    operation, parameter = find(op), Spec((x.shape[1],), FLOAT32)
    statistic = Spec((x.shape[0], options.get("num_groups", x.shape[1])), FLOAT64 if x.dtype == FLOAT64 else FLOAT32)
    arrays = {"x": x, "grad": x, "weight": parameter, "bias": parameter, "mean": statistic, "rstd": statistic}
    if x.dtype == FLOAT64:
        arrays |= {"weight": None, "bias": None}
    chosen = {n: v for n, v in (operation.defaults | options | {"return_stats": True}).items() if n in operation.static}
    return operation.problem(tuple(arrays.get(n) for n in operation.arrays), chosen)


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, BFLOAT16, FLOAT64], ids=str)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(("op", "options"), [("group_norm", {"num_groups": 8}), ("instance_norm", {})])
def test_statistics_of_samples_are_written_and_taken_by_every_algorithm(op, options, last, dtype):
    ways, steps = set(), ("", "_backward")
    for shape in ((2, 64, 7, 7), (8, 64, 56, 56), (2, 32, 300, 300), (0, 64, 7, 7)):
        x = _channels_last(shape, dtype) if last else Spec(shape, dtype)
        for step in steps:
            problem = _of_samples(op + step, x, **options)
            inputs = len([s for s in problem.inputs if s is not None])
            mean = inputs - 2 if step else inputs + 1  # the place of the mean among the arrays, before that of rstd
            for method, device in product(norm.ALGORITHMS[op + step], (_DEVICE, replace(_DEVICE, aligned=False))):
                if method.rejects(problem, device) is not None:
                    continue
                ways.add(method.name)
                given = {a.index for plan in method.run(problem, device, device.aligned).plans for a in plan.arrays}
                assert not x.size or {mean, mean + 1} <= given, (method.name, shape)
    small = set() if dtype == FLOAT64 else {"channel_block", "channel_block_backward"}
    assert ways >= {"channels", "channel_slab", "channel_slab_backward"} | small


def _channels_last(shape, dtype):
    dense = Spec((shape[0], *shape[2:], shape[1]), dtype).c_strides
    return Spec(shape, dtype, (dense[0], dense[-1], *dense[1:-1]))


def _last(op, shape, dtype, groups=32):
    return _problem(
        op, _channels_last(shape, dtype), (shape[1],), **({"num_groups": groups} if op.startswith("group_norm") else {})
    )


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, BFLOAT16], ids=str)
@pytest.mark.parametrize(
    ("op", "shape", "vector", "blocks", "together"),
    [
        ("batch_norm_train_backward", (2, 32, 14, 14), 2, 16, 1),
        ("batch_norm_train", (8, 512, 7, 7), 4, 128, 1),
        ("batch_norm_train", (16, 256, 7, 7), 4, 128, 2),  # more rows than a block takes as fast as a cluster
        ("batch_norm_train_backward", (3, 64, 28, 28), 4, 128, 8),
        ("batch_norm_train", (2, 510, 7, 9), 2, 255, 1),
        ("batch_norm_train", (2, 151, 7, 9), 1, 151, 1),  # an odd number of channels
        ("group_norm", (2, 256, 7, 7), None, 32, 1),
        ("group_norm_backward", (2, 64, 14, 14), 2, 32, 1),
        ("instance_norm", (4, 64, 7, 7), 4, 16, 1),
        ("instance_norm_backward", (4, 256, 7, 7), 2, 128, 1),
        ("instance_norm_backward", (13, 32, 26, 26), 4, 64, 8),  # batch indices shared out
    ],
)
def test_small_arrays_channels_last_take_one_launch_as_well(op, shape, vector, blocks, together, dtype):
    problem, stem = _last(op, shape, dtype), f"channel_block{'_backward' * op.endswith('_backward')}"
    for aligned in (True, False):
        device = replace(_DEVICE, aligned=aligned)
        method = choose(problem, device, DEFAULT, norm.ALGORITHMS[op])
        assert method.name.removesuffix("_cluster") == stem
        assert not aligned or method.name.endswith("_cluster") == (together > 1)
        (plan,) = method.run(problem, device, aligned).plans
        config = plan.kernel.config
        assert (config.last, plan.block % 32) == (True, 0)
        if aligned:
            assert config.blocks == together
            assert config.vector == (vector or 16 // dtype.itemsize)  # of a group as wide as can be
            assert plan.grid[0] == blocks


@pytest.mark.parametrize(
    ("op", "shape", "dtype", "expected"),
    [
        ("batch_norm_train", (13, 32, 26, 26), FLOAT32, "folded"),  # 1,098 rows a block
        (
            "batch_norm_train",
            (16, 8, 28, 28),
            FLOAT16,
            "channel_block_cluster",
        ),  # eight of which share a line of memory
        ("batch_norm_train", (2, 512, 14, 14), FLOAT16, "channel_block"),
        ("batch_norm_train", (4, 255, 24, 24), FLOAT16, "folded"),
        (
            "batch_norm_train",
            (16, 5, 100, 100),
            FLOAT16,
            "channels",
        ),  # so few channels that all blocks have a share of each
        ("batch_norm_train", (4, 320, 14, 14), FLOAT16, "channel_block"),  # 784 rows a block
        ("batch_norm_train", (16, 128, 14, 14), FLOAT16, "folded"),  # as many, in clusters
        ("batch_norm_train", (32, 2048, 7, 7), FLOAT16, "channel_tile"),
        ("batch_norm_train", (8, 1024, 14, 14), FLOAT16, "folded"),
        ("batch_norm_train", (64, 256, 28, 28), FLOAT16, "channels"),
        ("batch_norm_train", (64, 255, 56, 56), FLOAT16, "folded"),  # whose vectors would be single elements
        ("batch_norm_train_backward", (13, 32, 26, 26), FLOAT16, "channel_block_backward_cluster"),
        (
            "instance_norm_backward",
            (9, 64, 24, 24),
            FLOAT32,
            "channel_slab_backward",
        ),  # 16 clusters of 8 blocks, of 512 threads each
        ("instance_norm_backward", (13, 64, 21, 21), FLOAT32, "channel_block_backward_cluster"),
    ],
)
def test_what_one_launch_is_worth_channels_last(op, shape, dtype, expected):
    """As measured; docs/development/findings/norm/one-launch-thresholds.md has the times."""
    assert choose(_last(op, shape, dtype), _DEVICE, DEFAULT, norm.ALGORITHMS[op]).name == expected


@pytest.mark.parametrize(
    ("shape", "dtype", "plain", "residual"),
    [
        ((2, 128, 14, 14), FLOAT16, "channel_block_backward", "channel_block_backward"),
        (
            (4, 64, 28, 28),
            FLOAT16,
            "channel_block_backward_cluster",
            "folded",
        ),  # 392 rows a block, of three arrays or of five
        ((16, 128, 14, 14), FLOAT32, "folded", "folded"),
        ((4, 255, 24, 24), FLOAT16, "folded", "folded"),
        ((64, 256, 28, 28), FLOAT16, "channels", "channels"),
    ],
)
def test_gradients_of_batch_norm_channels_last(shape, dtype, plain, residual):
    """Whose statistics were saved: as measured."""
    operation, x, each = find("batch_norm_train_backward"), _channels_last(shape, dtype), Spec(shape[1:2], FLOAT32)
    arrays = {"x": x, "grad": x, "weight": each, "bias": each, "mean": each, "rstd": each}
    chosen = {n: v for n, v in operation.defaults.items() if n in operation.static}
    for more, options, expected in (({}, {}, plain), ({"residual": x}, {"activation": "relu"}, residual)):
        problem = operation.problem(tuple((arrays | more).get(n) for n in operation.arrays), chosen | options)
        assert choose(problem, _DEVICE, DEFAULT, norm.ALGORITHMS[problem.op]).name == expected


def test_too_many_rows_for_a_block_and_no_clusters():
    older = Device("made-up A100", "cuda", 108, {"float32": 19e12}, 1.5e12, 4e-6, (8, 0), 166_912)
    problem = _last("batch_norm_train", (4, 64, 28, 28), FLOAT16)
    assert "registers" in channel_block.rejects(problem, older)
    assert channel_block_cluster.rejects(problem, _DEVICE) is None
    assert "cluster" in channel_block.rejects(problem, _DEVICE)


def test_groups_of_any_number_of_channels():
    """Lanes that make no whole row of a group are idle."""
    for shape, groups, neighbours in (((2, 96, 7, 7), 32, 3), ((2, 320, 4, 4), 32, 5), ((2, 640, 4, 4), 32, 5)):
        (plan,) = channel_block.run(_last("group_norm", shape, FLOAT16, groups), _DEVICE, True).plans
        config = plan.kernel.config
        assert (
            plan.block // neighbours * neighbours * config.vectors * config.vector
            >= shape[1] // groups * shape[2] * shape[3]
        )
    assert "registers" in channel_block.rejects(
        _last("group_norm", (2, 521, 3, 3), FLOAT16, 1), _DEVICE
    )  # a row is longer than a block


@pytest.mark.parametrize(
    ("op", "shape", "dtype", "expected"),
    [
        ("batch_norm_train", (64, 256, 28, 28), "bfloat16", "channels"),  # two channels a block: rows of 4 bytes
        ("batch_norm_train", (64, 2048, 7, 7), "float32", "channel_slab"),
        ("group_norm", (64, 512, 14, 14), "float32", "channel_slab"),
        ("group_norm", (64, 256, 28, 28), "bfloat16", "channels"),
    ],
)
def test_what_is_held_on_chip_channels_last(op, shape, dtype, expected):
    """As measured; docs/development/findings/norm/slab-or-three-passes.md has the times."""
    operation, x = find(op), _channels_last(shape, dtype)
    specs, options = operation.bind((x,), {"num_groups": 32} if op == "group_norm" else {})
    problem = operation.problem(specs, {n: v for n, v in options.items() if n in operation.static})
    assert choose(problem, _DEVICE, DEFAULT, norm.ALGORITHMS[op]).name == expected


@pytest.mark.parametrize(
    ("op", "shape", "dtype", "expected"),
    [
        ("batch_norm_train", (64, 2048, 7, 7), "bfloat16", "channel_tile"),
        ("batch_norm_train", (64, 512, 7, 7), "float16", "channel_tile"),
        ("batch_norm_train", (64, 1024, 14, 14), "bfloat16", "channel_slab"),
        ("batch_norm_train", (64, 2048, 7, 7), "float32", "channel_slab"),
        ("group_norm", (64, 2048, 7, 7), "float32", "rows"),
        ("group_norm", (64, 1024, 14, 14), "bfloat16", "channel_slab"),
    ],
)
def test_what_is_held_on_chip_channels_first(op, shape, dtype, expected):
    """As measured: images that are no whole vectors are walked by columns, or as rows."""
    operation = find(op)
    specs, options = operation.bind((Spec(shape, dtype),), {"num_groups": 32} if op == "group_norm" else {})
    problem = operation.problem(specs, {n: v for n, v in options.items() if n in operation.static})
    assert choose(problem, _DEVICE, DEFAULT, norm.ALGORITHMS[op]).name == expected


@pytest.mark.parametrize(
    ("op", "rows", "columns", "dtype", "blocks"),
    [
        ("layer_norm", 1024, 131_072, FLOAT32, 8),
        ("rms_norm", 1024, 131_072, BFLOAT16, 4),
        ("layer_norm", 1024, 262_144, FLOAT16, 8),
        ("add_rms_norm", 1024, 65_536, FLOAT32, 4),
        ("layer_norm", 200, 131_072, FLOAT32, None),  # too few rows
        ("layer_norm", 1024, 32_768, FLOAT32, None),  # short enough for several blocks a multiprocessor
        ("layer_norm", 1024, 262_144, FLOAT32, None),  # too long
        ("layer_norm", 1024, 131_071, FLOAT32, None),  # no whole vectors
        ("add_rms_norm", 1024, 131_072, FLOAT16, None),  # the sum would be rounded before its statistics are taken
        ("layer_norm", 1024, 131_072, FLOAT64, None),
    ],
)
def test_clusters_that_stay_for_long_rows(op, rows, columns, dtype, blocks):
    problem = _problem(op, Spec((rows, columns), dtype), (columns,))
    method = next(m for m in norm.ALGORITHMS[op] if m.rejects(problem, _DEVICE) is None)
    assert (method.name == "staying_rows") == (blocks is not None)
    if blocks is None:
        return
    (plan,) = method.run(problem, _DEVICE, True).plans
    config = plan.kernel.config
    assert config.blocks == blocks
    assert config.blocks * config.threads * config.vectors * 16 >= columns * dtype.itemsize
    assert plan.grid[0] <= _DEVICE.units
    assert plan.grid[0] % blocks == 0
    assert "no multiple of 16" in method.rejects(problem, replace(_DEVICE, aligned=False))


def test_no_cluster_stays_on_a_card_that_places_none():
    slice_of_a_card = Device("made-up slice", "cuda", 8, {"float32": 3e12}, 0.3e12, 4e-6, (9, 0), 232_448)
    problem = _problem("layer_norm", Spec((1024, 131_072), FLOAT32), (131_072,))
    method = next(m for m in norm.ALGORITHMS["layer_norm"] if m.rejects(problem, slice_of_a_card) is None)
    assert method.name != "staying_rows"


@pytest.mark.parametrize("op", ["batch_norm_train", "group_norm", "layer_norm"])
def test_the_engine_keeps_running_statistics_apart(op):
    """Threads of a block may find the last statistic once more: launches never write over what they read, and the
    engine copies where `out` names it."""
    x = Spec((4, 12, 5, 5), FLOAT32)
    operation, row = find(op), Spec((12,), FLOAT32)
    arrays = {"x": x, "running_mean": row, "running_var": row}
    chosen = {n: v for n, v in (operation.defaults | {"num_groups": 3}).items() if n in operation.static}
    problem = operation.problem(tuple(arrays.get(n) for n in operation.arrays), chosen)
    assert problem.in_place == (((3, 3), (4, 4)) if op == "batch_norm_train" else ())
    assert not any(method.in_place for method in norm.ALGORITHMS[op])
