"""Options, telemetry and check_finite: scope, threads, tasks, values."""

import asyncio
import copy
import gc
import pickle
import threading
import warnings

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray import _options
from dnnarray._call import dispatch as _dispatch
from dnnarray._options import current


def test_options_hold_inside_the_block_only():
    assert current().deterministic is False
    with dnn.options(deterministic=True, workspace_limit="1.5KB") as inside:
        assert inside is current()
        assert (current().deterministic, current().workspace_limit) == (True, 1500)
        with dnn.options(deterministic=False):
            assert (current().deterministic, current().workspace_limit) == (False, 1500)
    assert (current().deterministic, current().workspace_limit) == (False, None)


def test_options_are_restored_after_an_error():
    with pytest.raises(RuntimeError), dnn.options(telemetry=True):
        raise RuntimeError
    assert current().telemetry is False


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("deterministic", 1),
        ("telemetry", "yes"),
        ("float32_precision", "low"),
        ("workspace_limit", -1),
        ("workspace_limit", "much"),
        ("workspace_limit", True),
        ("workspace_limit", 1.5),
        ("speed", 1),
    ],
)
def test_wrong_options_change_nothing(name, value):
    before = current()
    with pytest.raises(dnn.OptionError, match=name):
        dnn.options(**{name: value})
    with pytest.raises(dnn.OptionError, match=name):
        dnn.set_options(**{name: value})
    assert current() is before


def test_copies_of_settings_are_the_settings():
    with dnn.options(deterministic=True, workspace_limit=5) as inside:
        assert pickle.loads(pickle.dumps(inside)) is inside
        assert copy.deepcopy(inside) is copy.copy(inside) is inside


@pytest.mark.parametrize(
    ("text", "expected"), [("256MB", 256_000_000), ("1 GiB", 2**30), ("12", 12), (7, 7), (np.int64(9), 9), (None, None)]
)
def test_workspace_limit_forms(text, expected):
    with dnn.options(workspace_limit=text):
        assert current().workspace_limit == expected


def test_threads_do_not_see_each_other():
    seen = {}
    barrier = threading.Barrier(2)

    def work(flag):
        dnn.set_options(deterministic=flag)
        barrier.wait()
        seen[flag] = current().deterministic

    threads = [threading.Thread(target=work, args=(flag,)) for flag in (True, False)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert seen == {True: True, False: False}
    assert current().deterministic is False


def test_tasks_do_not_see_each_other():
    async def work(flag):
        with dnn.options(deterministic=flag):
            await asyncio.sleep(0)
            return current().deterministic

    async def both():
        return await asyncio.gather(work(True), work(False))

    assert asyncio.run(both()) == [True, False]


def test_telemetry_counts_calls_errors_and_algorithms():
    dnn.telemetry.reset()
    x = np.ones((3, 4), np.float32)
    dnn.relu(x)
    assert dnn.telemetry.snapshot() == {}
    with dnn.options(telemetry=True):
        dnn.relu(x)
        dnn.relu(x)
        with pytest.raises(dnn.DTypeError):
            dnn.relu(np.arange(3))
    entry = dnn.telemetry.snapshot()["relu"]
    assert (entry["calls"], entry["errors"], entry["algorithms"]) == (2, 1, {dnn.algorithms("relu", x)[0].name: 2})
    assert entry["latency_ms"]["p50"] > 0
    dnn.telemetry.reset()
    assert dnn.telemetry.snapshot() == {}


def test_telemetry_counts_algorithm_switches_and_workspace():
    dnn.telemetry.reset()
    x, w = np.ones((1, 4, 9, 9), np.float32), np.ones((4, 4, 3, 3), np.float32)
    names = [a.name for a in dnn.algorithms("conv", x, w)][:2]
    with dnn.options(telemetry=True):
        for name in names:
            dnn.conv(x, w, algorithm=name)
        with pytest.raises(dnn.WorkspaceError):
            dnn.conv(x, w, algorithm="fft", workspace=np.empty(0, np.uint8))
    entry = dnn.telemetry.snapshot()["conv"]
    assert entry["switched"] == 1
    assert set(entry["algorithms"]) == set(names)
    assert entry["workspace_failures"] == 1
    dnn.telemetry.reset()


def test_telemetry_survives_threads():
    dnn.telemetry.reset()
    x = np.ones(8)

    def work():
        with dnn.options(telemetry=True):
            for _ in range(200):
                dnn.relu(x)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert dnn.telemetry.snapshot()["relu"]["calls"] == 800
    dnn.telemetry.reset()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_check_finite_names_the_call_and_the_array(bad):
    with dnn.options(check_finite=True):
        dnn.relu(np.ones(3))
        with pytest.raises(FloatingPointError, match="relu: the input x"):
            dnn.relu(np.array([1.0, bad]))


def test_threads_may_share_an_options_object():
    """Each thread goes back to its own settings, whoever leaves the block first."""
    shared, inside, seen = dnn.options(deterministic=True), threading.Barrier(2), []

    def work(first):
        with dnn.options(telemetry=first), shared:
            inside.wait()
            if not first:
                inside.wait()
        seen.append((current().deterministic, current().telemetry))
        if first:
            inside.wait()

    threads = [threading.Thread(target=work, args=(flag,)) for flag in (True, False)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert seen == [(False, False)] * 2


@pytest.mark.parametrize("wrong", [np.array([1, 2]), np.array(-1), "9" * 400 + "MB", 2.5, {}])
def test_a_workspace_limit_of_nonsense_is_an_option_error(wrong):
    with pytest.raises(dnn.OptionError, match="options: workspace_limit is"):
        dnn.options(workspace_limit=wrong)


def test_a_precision_of_nonsense_is_an_option_error():
    with pytest.raises(dnn.OptionError, match="options: float32_precision is"):
        dnn.options(float32_precision=np.array([1, 2]))


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00"], ids=["no folder", "no text"])
def test_a_record_that_cannot_be_written_is_reported_once_and_the_call_goes_on(tmp_path, content):
    path = tmp_path / "folder" / "calls"
    path.parent.mkdir()
    settings = dnn.options(record=path)
    if content is None:
        path.parent.rmdir()
    else:
        path.write_bytes(content)
    with settings:
        with pytest.warns(UserWarning, match="calls cannot be recorded to"):
            assert dnn.relu(np.ones(3)).sum() == 3
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert dnn.gelu(np.zeros(3)).sum() == 0


def test_settings_that_nothing_refers_to_are_forgotten(monkeypatch):
    monkeypatch.setattr(_dispatch, "_CACHE_SIZE", 8)
    _dispatch.forget()
    gc.collect()
    before = len(_options._interned)
    for n in range(20_000):
        with dnn.options(workspace_limit=n):
            assert current().workspace_limit == n
    assert len(_options._interned) == before
    for n in range(800):
        with dnn.options(workspace_limit=n):
            dnn.relu(np.zeros(3))
    assert len(_options._interned) <= before + 400  # what the memories of the selection hold at the most


def test_threads_that_set_the_same_share_one_object():
    start, found = threading.Barrier(8), []

    def enter():
        for n in range(200):
            start.wait()
            with dnn.options(workspace_limit=10**6 + n) as inside:
                found.append(inside)
                start.wait()

    threads = [threading.Thread(target=enter) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(set(map(id, found))) == 200
