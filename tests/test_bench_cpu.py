"""The rows of the CPU table: names, that each runs, and that both libraries compute the same."""

import numpy as np
import pytest

from asv_bench import cpu, cpu_errors
from asv_bench.cpu_rows import MORE, PLANNED, ROWS, head, leaves

NAMES = [row.name for row in ROWS]
# Of the largest element: float32 rounds to 6e-8, and the longest sums here have some thousand terms.
TOLERANCE = 1e-5


def test_names_are_unique_and_no_row_is_lost():
    assert len(set(NAMES)) == len(NAMES)
    assert (len(PLANNED), len(MORE)) == (31, 20)


@pytest.mark.parametrize("row", ROWS, ids=NAMES)
def test_rows_run_and_name_their_algorithm(row):
    case = row.case(small=True)
    assert all(np.isfinite(array).all() for array in leaves(case.ours()()))
    assert cpu.algorithm_of(case.ours)


def _results(row, call):
    """The gradients, or the first result of a forward call."""
    return [np.asarray(a) for a in leaves(call() if row.backward else head(call()))]


@pytest.mark.parametrize("row", ROWS, ids=NAMES)
def test_rows_agree_with_pytorch_in_every_layout(row):
    torch = pytest.importorskip("torch")
    case = row.case(small=True)
    ours = _results(row, case.ours())
    for layout in case.layouts():
        call = case.theirs(torch, layout)
        theirs = _results(row, lambda call=call: tuple(t.detach() for t in leaves(call())))
        for a, b in zip(ours, theirs, strict=True):
            assert (a.shape, a.dtype) == (b.shape, b.dtype)
            if row.random:  # as many zeros, give or take chance; the others scaled alike
                assert abs(np.mean(a == 0) - np.mean(b == 0)) < 0.1
                assert abs(a.std() / b.std() - 1) < 0.1
            else:
                np.testing.assert_allclose(a, b, rtol=0, atol=TOLERANCE * np.abs(b).max())


def test_images_are_tried_in_both_memory_orders():
    torch = pytest.importorskip("torch")
    case = next(r for r in ROWS if r.name == "conv 3x3 64 at 56x56").case(small=True)
    assert case.layouts() == ("contiguous", "channels_last")
    for layout in case.layouts():
        assert case.theirs(torch, layout)().is_contiguous(
            memory_format=getattr(torch, f"{layout.replace('contiguous', 'contiguous_format')}")
        )


@pytest.mark.parametrize("peer", [True, False])
def test_a_row_is_measured_with_and_without_pytorch(peer, monkeypatch):
    monkeypatch.setattr(cpu, "SLICE_SECONDS", 0.0)
    torch = pytest.importorskip("torch") if peer else None
    measured = cpu.measure(next(r for r in ROWS if r.name == "relu"), torch, 0.0, small=True)
    assert measured.ours_ms > 0
    assert measured.algorithm in str(measured)
    assert (measured.ratio is not None) == peer
    assert bool(cpu.summary([measured])) == peer
    assert cpu.told(cpu.summary([measured]))


def test_summary_of_known_ratios():
    table = [cpu.Measured(str(r), 1.0, r, "contiguous", "x") for r in (0.5, 1.0, 4.0)]
    found = cpu.summary(table)
    assert found["geometric_mean"] == pytest.approx(2 ** (1 / 3))
    assert found["geometric_mean_capped_at_2"] == pytest.approx(1)
    assert found["share_at_1_or_more"] == pytest.approx(2 / 3)
    assert (found["least"], found["least_row"]) == (0.5, "0.5")


def test_a_slow_layout_is_dropped_and_never_wins(monkeypatch):
    monkeypatch.setattr(cpu, "SLICE_SECONDS", 0.0)
    times = {"ours": 5.0, "contiguous": 1.0, "channels_last": 9.0}
    asked = []
    monkeypatch.setattr(cpu, "best_of_slice", lambda call: call())
    calls = {name: lambda name=name: asked.append(name) or times[name] for name in times}
    assert cpu.in_turns(calls, 60.0) == times
    assert asked.count("channels_last") == 2  # once to warm up, once measured
    assert asked.count("ours") == asked.count("contiguous") == 2 + cpu.QUIET_ROUNDS


def test_rows_are_chosen_by_words():
    assert {row.name for row in cpu.chosen("gelu,RELU")} == {"relu", "gelu", "gelu, tanh form", "gelu backward"}
    assert len(cpu.chosen("")) == len(ROWS)


ERROR_ROWS = list(cpu_errors.rows())


def test_every_forward_row_is_compared_with_its_gradient():
    names = [row.name for row in ERROR_ROWS]
    assert len(set(names)) == len(names)
    assert {row.name for row in ROWS if not row.random} <= set(names)
    assert {"relu backward", "gelu, tanh form backward", "conv 3x3 64 at 56x56 backward"} <= set(names)
    assert "gelu backward backward" not in names


@pytest.mark.parametrize("row", ERROR_ROWS, ids=[row.name for row in ERROR_ROWS])
def test_errors_of_both_libraries_are_roundings(row):
    torch = pytest.importorskip("torch")
    found = cpu_errors.compare(row, torch, range(1), small=True)
    assert found
    for entry in found:
        assert max(*entry.ours_largest, *entry.theirs_largest) < TOLERANCE
        assert entry.algorithm in str(entry)


def test_error_of_known_arrays():
    exact = np.array([3.0, 4.0])
    assert cpu_errors.error([exact * 1.1], [exact]) == pytest.approx((0.1, 0.1))
    assert cpu_errors.error([exact, exact * 2], [exact, exact]) == pytest.approx((0.5**0.5, 1.0))


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [
        ([0, 0], [1, 1], "exact"),
        ([1, 1], [1, 1], "no larger"),
        ([3, 3], [1, 2], "larger"),
        ([3, 1], [1, 1.1], "chance"),
        ([1, 1], [0, 0], "larger"),
    ],
)
def test_verdict_on_errors(ours, theirs, verdict):
    entry = cpu_errors.Errors("row", "algorithm", ours, theirs, ours, theirs)
    assert entry.verdict == verdict
    assert ("row" in cpu_errors.told([entry])) == (verdict == "larger")
