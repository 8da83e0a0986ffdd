"""Attention with both of its products on the matrix unit, beside the definition in float64: sizes, options, numbers
that pieces cannot hold, threads."""

import threading

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._call.dispatch import dispatch
from dnnarray._call.operation import find
from dnnarray._cpu import matrix_unit, threads
from dnnarray._cpu.compiled import compiler
from tests import guarded
from tests.oracles.attention import attention as oracle
from tests.support import DTYPES, assert_close, call_by

_REASON = compiler.missing() or matrix_unit.missing()
needs_unit = pytest.mark.skipif(_REASON is not None, reason=str(_REASON))
_OPTIONS = {
    "all": {},
    "causal": {"causal": True},
    "upper left": {"causal": "upper_left"},
    "window": {"window": (20, 3)},
    "window behind": {"causal": True, "window": (40, 0)},
    "scale": {"scale": 0.3, "causal": True},
}


def _normal(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape, dtype=np.float32)


def _attend(q, k, v, causal_offset=None, out=None, workspace=None, algorithm="split_tiled", **options):
    operation = find("attention")
    bound, chosen = operation.bind(
        (q, k, v), options | ({} if causal_offset is None else {"causal_offset": causal_offset})
    )
    static, runtime = (tuple(chosen[n] for n in names) for names in (operation.static, operation.runtime))
    return dispatch(operation, bound, static, runtime, out, workspace, algorithm)


def _check(q, k, v, **options):
    y, lse = _attend(q, k, v, return_lse=True, **options)
    expected, sums = oracle(*(a.astype(np.float64) for a in (q, k, v)), return_lse=True, **options)
    assert_close(y, expected, k.shape[2] + q.shape[3], note="y")
    assert_close(lse, sums, q.shape[3], note="lse")


@pytest.fixture
def ordinary(monkeypatch):
    """The calls that went by the ordinary kernels."""
    if _REASON is not None:
        pytest.skip(_REASON)
    from dnnarray._cpu.compiled.attention import split_tiled as attention_split

    done, usual = [], attention_split.attend
    monkeypatch.setattr(attention_split, "attend", lambda *arguments: done.append(1) or usual(*arguments))
    return done


# --- sizes and options ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", _OPTIONS.values(), ids=_OPTIONS)
@pytest.mark.parametrize("queries, keys", [(1, 1), (17, 17), (33, 130), (130, 33), (130, 130), (64, 128), (65, 257)])
def test_all_options_at_sizes_that_do_not_come_out_even(queries, keys, options, ordinary):
    q, k, v = _normal(2, 4, queries, 40), _normal(2, 2, keys, 40), _normal(2, 2, keys, 72)
    _check(q, k, v, **options)
    assert not ordinary


@pytest.mark.parametrize(
    "width, value_width", [(8, 8), (40, 64), (64, 64), (72, 40), (128, 72), (1, 128), (33, 1), (130, 200)]
)
def test_widths_of_heads(width, value_width, ordinary):
    q, k, v = _normal(1, 3, 77, width), _normal(1, 1, 90, width), _normal(1, 1, 90, value_width)
    for options in ({}, {"causal": True}):
        _check(q, k, v, **options)
    assert not ordinary


@pytest.mark.parametrize("keys", [2047, 2048, 2113])
def test_long_sequences(keys, ordinary):
    """Beyond 2,048 keys, blocks are longer; sums go over many blocks."""
    q, k, v = _normal(1, 2, 70, 24), _normal(1, 2, keys, 24), _normal(1, 2, keys, 24)
    for options in ({}, {"causal": True}, {"window": (300, 500)}):
        _check(q, k, v, **options)
    assert not ordinary


def test_scores_that_rise_and_fall_along_the_keys(ordinary):
    """The ground of the exponentials rises late, at different keys for different queries."""
    q, k, v = _normal(1, 2, 100, 16), _normal(1, 2, 700, 16), _normal(1, 2, 700, 16)
    for slope in (np.linspace(0.1, 9, 700), np.linspace(9, 0.1, 700), 4 + 4 * np.sin(np.arange(700) / 50)):
        _check(q, (k * slope[:, None]).astype(np.float32), v)
        _check(q, (k * slope[:, None]).astype(np.float32), v, causal=True)
    assert not ordinary


@needs_unit
@pytest.mark.parametrize("offset", [-1000, -40, 0, 13, 1000])
def test_offsets_move_the_diagonal(offset):
    q, k, v = _normal(2, 2, 70, 16), _normal(2, 2, 150, 16), _normal(2, 2, 150, 16)
    _check(q, k, v, causal=True, causal_offset=np.array([offset, 5]))


@needs_unit
@pytest.mark.parametrize("layout", ["BHSD", "BSHD"])
def test_layouts_and_strides(layout):
    shape = (2, 3, 70, 20) if layout == "BHSD" else (2, 70, 3, 20)
    arrays = [_normal(*shape, seed=i) for i in range(3)]
    expected = oracle(*(a.astype(np.float64) for a in arrays), causal=True, layout=layout)
    turned = [a.transpose(3, 1, 0, 2).copy().transpose(2, 1, 3, 0) for a in arrays]
    wide = [np.repeat(a, 2, axis=-1)[..., ::2] for a in arrays]
    backwards = [a[:, :, ::-1].copy()[:, :, ::-1] for a in arrays]
    unaligned = [np.frombuffer(b"x" + a.tobytes(), np.uint8)[1:].view(np.float32).reshape(shape) for a in arrays]
    for given in (arrays, turned, wide, backwards, unaligned):
        out = np.full((*shape[:-1], 40), 7, np.float32)
        for target in (None, out[..., ::2], out[..., 20:]):
            assert_close(_attend(*given, causal=True, layout=layout, out=target), expected, 90)


@needs_unit
@pytest.mark.parametrize("dtype", DTYPES[2:], ids=str)
def test_half_types_arrive_widened(dtype):
    q, k, v = (_normal(1, 2, 70, 24, seed=i).astype(dtype) for i in range(3))
    _check(q, k, v, causal=True)


# --- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e-43, 1e-30, 2.0**-52, 2.0**53, 3e38])
@pytest.mark.parametrize("which", ["q", "k", "v"])
def test_what_the_pieces_cannot_hold_goes_by_the_ordinary_kernels(which, value, ordinary):
    arrays = {"q": _normal(1, 2, 70, 24), "k": _normal(1, 2, 80, 24), "v": _normal(1, 2, 80, 24)}
    arrays[which][0, 1, 69, 3] = value
    with np.errstate(all="ignore"):
        for options in ({}, {"causal": True}):
            got = _attend(*arrays.values(), return_lse=True, **options)
            expected = _attend(*arrays.values(), return_lse=True, algorithm="tiled", **options)
            for a, e in zip(got, expected, strict=True):
                np.testing.assert_array_equal(a, e)
    assert len(ordinary) == 2


@pytest.mark.parametrize(
    "scales", [(2.0**-20, 2.0**-20, 2.0**-20), (2.0**20, 2.0**-20, 2.0**40), (2.0**-30, 1, 2.0**-30), (8, 8, 1)]
)
def test_large_and_small_numbers_that_they_hold(scales, ordinary):
    q, k, v = (_normal(1, 2, 90, 24, seed=i) for i in range(3))
    q, k, v = (np.where(np.abs(a) < 2.0**-10, 0, a) * np.float32(s) for a, s in zip((q, k, v), scales, strict=True))
    y, lse = _attend(q, k, v, return_lse=True)
    expected, sums = oracle(*(a.astype(np.float64) for a in (q, k, v)), return_lse=True)
    condition = max(1.0, float(np.abs(np.einsum("bhid,bhjd->bhij", q, k)).max()))
    assert_close(y, expected, 114, condition)
    assert_close(lse, sums, 24, note="lse")
    assert not ordinary


def test_zeros_and_queries_that_see_nothing(ordinary):
    q, k, v = _normal(1, 2, 70, 16), _normal(1, 2, 30, 16), _normal(1, 2, 30, 16)
    y, lse = _attend(q, k, v, causal=True, return_lse=True)
    assert (y[:, :, :40] == 0).all()
    assert (lse[:, :, :40] == -np.inf).all()
    _check(q, k, v, causal=True)
    y, lse = _attend(np.zeros_like(q), k, v, return_lse=True)
    assert_close(y, np.broadcast_to(v.astype(np.float64).mean(2, keepdims=True), y.shape), 30)
    assert_close(lse, np.full(lse.shape, np.log(30)), 30)
    assert (_attend(q, k, np.zeros_like(v)) == 0).all()
    assert not ordinary


def test_weights_far_below_the_largest_are_nothing(ordinary):
    """Beside a key whose score is 100 above all others, and where scores are far apart in both directions."""
    q, k, v = np.zeros((1, 1, 70, 8), np.float32), np.zeros((1, 1, 140, 8), np.float32), _normal(1, 1, 140, 8)
    q[..., 0], k[..., 77, 0] = 1, 100
    assert_close(_attend(q, k, v, scale=1.0), np.broadcast_to(v[:, :, 77:78], (1, 1, 70, 8)), 140)
    k[..., 0] = np.linspace(-200, 200, 140)
    expected = oracle(*(a.astype(np.float64) for a in (q, k, v)), scale=1.0)
    assert_close(_attend(q, k, v, scale=1.0), expected, 140, 200)
    assert not ordinary


@needs_unit
@pytest.mark.parametrize("keys", [128, 1024, 4096])
def test_long_sums_round_no_more_than_those_of_vectors(keys):
    q, k, v = _normal(1, 2, 64, 64), _normal(1, 2, keys, 64), _normal(1, 2, keys, 64, seed=1)
    expected = oracle(*(a.astype(np.float64) for a in (q, k, v)))
    error = {
        name: np.sqrt(np.mean((_attend(q, k, v, algorithm=name) - expected) ** 2)) for name in ("split_tiled", "tiled")
    }
    assert error["split_tiled"] <= error["tiled"]


# --- threads, memory, refusals ----------------------------------------------------------------------------------------

_SHAPES = {"one head": (1, 1, 300, 64), "three heads": (1, 3, 130, 24), "many heads": (3, 8, 70, 16)}


@needs_unit
@pytest.mark.parametrize("shape", _SHAPES.values(), ids=_SHAPES)
def test_the_number_of_threads_does_not_change_a_bit(shape, monkeypatch):
    monkeypatch.setattr(threads, "GRAIN", 1)  # every call is spread
    q, k, v = (_normal(*shape, seed=i) for i in range(3))
    found = []
    for count in (1, 2, 8):
        with dnn.options(threads=count):
            found.append([a.tobytes() for a in _attend(q, k, v, causal=True, return_lse=True)])
    assert found[0] == found[1] == found[2]


@needs_unit
@pytest.mark.parametrize("cores", [1, 3, 8])
def test_any_number_of_cores(cores, monkeypatch):
    """Shares of a head are as many as make tasks come out even."""
    monkeypatch.setattr(threads, "cores", lambda: cores)
    dnn._call.dispatch.forget()  # what was planned for others
    for shape in _SHAPES.values():
        _check(*(_normal(*shape, seed=i) for i in range(3)), causal=True)
    dnn._call.dispatch.forget()


@needs_unit
def test_callers_with_threads_of_their_own_get_right_results(monkeypatch):
    monkeypatch.setattr(threads, "GRAIN", 1)
    q, k, v = (_normal(1, 3, 150, 24, seed=i) for i in range(3))
    expected, wrong = _attend(q, k, v, causal=True).tobytes(), []

    def repeat():
        wrong.extend(1 for _ in range(30) if _attend(q, k, v, causal=True).tobytes() != expected)

    callers = [threading.Thread(target=repeat) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


@needs_unit
@pytest.mark.parametrize("at_end", [True, False], ids=["end", "start"])
def test_it_stays_within_its_arrays(at_end):
    for queries, keys, width, value_width in ((70, 90, 24, 40), (64, 64, 64, 64), (17, 33, 9, 5)):
        arrays = [_normal(1, 2, n, w, seed=w) for n, w in ((queries, width), (keys, width), (keys, value_width))]
        placed = [guarded.like(a, at_end) for a in arrays]
        out = guarded.like(np.zeros((1, 2, queries, value_width), np.float32), at_end)
        _attend(*placed, out=out)
        assert_close(out, oracle(*(a.astype(np.float64) for a in arrays)), keys + width)


@needs_unit
def test_the_workspace_that_infer_tells_is_enough_and_less_is_an_error():
    q, k, v = (_normal(1, 3, 70, 24, seed=i) for i in range(3))
    expected = _attend(q, k, v, causal=True)
    told = {a.name: a.workspace for a in dnn.algorithms("attention", q, k, v, causal=True)}["split_tiled"]
    memory = np.full(told + 64, 7, np.uint8)
    for start in (0, 1, 63):
        np.testing.assert_array_equal(_attend(q, k, v, causal=True, workspace=memory[start : start + told]), expected)
    assert (memory[told + 63 :] == 7).all()
    with pytest.raises(dnn.WorkspaceError, match="workspace"):
        _attend(q, k, v, causal=True, workspace=memory[: told - 1])


@needs_unit
def test_what_it_does_not_do_is_refused():
    q, k, v = (_normal(1, 2, 20, 8, seed=i) for i in range(3))
    for options, reason in (({"softcap": 3.0}, "softcap"), ({"bias": np.zeros((20, 20), np.float32)}, "no bias")):
        with pytest.raises(dnn.UnsupportedError, match=reason):
            _attend(q, k, v, **options)
    with pytest.raises(dnn.UnsupportedError, match="float64: the matrix unit multiplies float32 in pieces"):
        _attend(*(a.astype(np.float64) for a in (q, k, v)))
    with pytest.raises(dnn.UnsupportedError, match="there is nothing to multiply"):
        _attend(q, k[:, :, :0], v[:, :, :0])


@needs_unit
def test_it_is_chosen_where_it_is_faster(pytestconfig):
    if pytestconfig.getoption("--compiled"):
        pytest.skip("all compiled algorithms are as fast as each other then")
    large, small, few = (
        ((1, 8, 512, 64), (1, 8, 512, 64)),
        ((1, 2, 16, 16), (1, 2, 16, 16)),
        ((1, 8, 1, 64), (1, 8, 4096, 64)),
    )
    for (query, key), name in ((large, "split_tiled"), (small, "tiled"), (few, "tiled")):
        q, k, v = _normal(*query), _normal(*key), _normal(*key)
        call_by("tiled", "attention", (q, k, v) + (None,) * 7, {})
        _attend(q, k, v)
        assert dnn.algorithms("attention", q, k, v)[0].name == name
