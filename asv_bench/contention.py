"""Training steps of a small convolutional network while other programs want the cores too, side by side with PyTorch.

    python -m asv_bench.contention [--steps N] [--rounds N] [--threads N] [--only numba,numpy,torch]

Prints the milliseconds of a step (the median of the rounds, in which all take turns) on the machine as it is, beside as
many busy loops as there are cores, and with two copies of the program at once; `idle` is the processor time that a
program takes in half a second behind its last step, in milliseconds. All programs live as long as the measurement does,
so that none of them may disturb the others while it waits."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np

BATCH, EXTENT, CLASSES = 64, 8, 10
WIDTHS = (1, 32, 64, 64)
POOLED = (1, 2)  # the convolutions that a max pool follows
ENGINES = ("numba", "numpy", "torch")
RATE = np.float32(0.05)
IDLE_SECONDS = 0.5
_THREAD_LIMITS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

Step = Callable[[], Any]


def drawn() -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Parameters, images and labels."""
    rng, parameters = np.random.default_rng(0), {}
    for i, (c, k) in enumerate(pairwise(WIDTHS)):
        parameters[f"conv{i}"] = rng.standard_normal((k, c, 3, 3)) * np.sqrt(2 / (9 * c))
        parameters |= {f"scale{i}": np.ones(k), f"shift{i}": np.zeros(k)}
    features = WIDTHS[-1] * (EXTENT // 2 ** len(POOLED)) ** 2
    parameters |= {"weight": rng.standard_normal((CLASSES, features)) / np.sqrt(features), "bias": np.zeros(CLASSES)}
    images = rng.standard_normal((BATCH, WIDTHS[0], EXTENT, EXTENT)).astype(np.float32)
    return {n: p.astype(np.float32) for n, p in parameters.items()}, images, rng.integers(0, CLASSES, BATCH)


def step_of_ours() -> Step:
    """Forward, backward and the new parameters, by pullbacks."""
    import dnnarray as dnn

    p, images, labels = drawn()
    running = {i: (np.zeros(k, np.float32), np.ones(k, np.float32)) for i, k in enumerate(WIDTHS[1:])}

    def step() -> Any:
        pullbacks, x = [], images

        def through(names: tuple[str, ...], op: str, *arrays: Any, **options: Any) -> Any:
            y, pullback = dnn.vjp(op, *arrays, **options)
            pullbacks.append((names, pullback, arrays[0].shape))
            return y

        for i in running:
            x = through((f"conv{i}",), "conv", x, p[f"conv{i}"], padding=1)
            norm = through(
                (f"scale{i}", f"shift{i}"), "batch_norm_train", x, p[f"scale{i}"], p[f"shift{i}"], *running[i]
            )
            x = through((), "relu", norm.y)
            if i in POOLED:
                x = through((), "max_pool", x, kernel_size=2)
        flat = through(("weight", "bias"), "linear", x.reshape(BATCH, -1), p["weight"], p["bias"])
        loss = through((), "cross_entropy", flat, labels)
        grad = np.ones((), np.float32)
        for names, pullback, shape in reversed(pullbacks):
            grad, *of_parameters = pullback(grad)
            for name, gradient in zip(names, of_parameters, strict=False):
                p[name] = p[name] - RATE * gradient
            grad = grad.reshape(x.shape if names == ("weight", "bias") else shape)
        return loss

    return step


def step_of_torch(threads: int) -> Step:
    """The same by PyTorch's autograd."""
    import torch
    from torch.nn import functional

    torch.set_num_threads(threads)
    parameters, *data = drawn()
    images, labels = (torch.from_numpy(a) for a in data)
    p = {n: torch.from_numpy(a).requires_grad_() for n, a in parameters.items()}
    running = [(torch.zeros(k), torch.ones(k)) for k in WIDTHS[1:]]

    def step() -> Any:
        x = images
        for i, (mean, variance) in enumerate(running):
            x = functional.conv2d(x, p[f"conv{i}"], padding=1)
            x = functional.relu(functional.batch_norm(x, mean, variance, p[f"scale{i}"], p[f"shift{i}"], training=True))
            if i in POOLED:
                x = functional.max_pool2d(x, 2)
        loss = functional.cross_entropy(functional.linear(x.reshape(BATCH, -1), p["weight"], p["bias"]), labels)
        loss.backward()
        with torch.no_grad():
            for parameter in p.values():
                parameter -= float(RATE) * parameter.grad
                parameter.grad = None
        return loss.detach()

    return step


def ready(engine: str, threads: int) -> Step:
    """The steps of an engine, with everything compiled that they want."""
    step = step_of_torch(threads) if engine == "torch" else step_of_ours()
    step()
    if engine == "numba":
        from dnnarray._cpu.compiled import compiler

        for _ in range(3):  # what takes the place of another algorithm may have a faster one yet to come
            compiler.settle()
            step()
    for _ in range(5):
        step()
    return step


def serve(engine: str, threads: int) -> None:
    """Run as many steps as each line of the input says, and print the seconds of one; 0 prints the processor time of
    half a second without any."""
    step = ready(engine, threads)
    print("ready", flush=True)
    for line in sys.stdin:
        if count := int(line):
            start = time.perf_counter()
            for _ in range(count):
                step()
            print((time.perf_counter() - start) / count, flush=True)
        else:
            step()
            start = time.process_time()
            time.sleep(IDLE_SECONDS)
            print(time.process_time() - start, flush=True)


class Program:
    """A process that trains when it is told to."""

    def __init__(self, engine: str, threads: int) -> None:
        variables = (
            os.environ | dict.fromkeys(_THREAD_LIMITS, str(threads)) | {"DNNARRAY_NUMBA": str(int(engine != "numpy"))}
        )
        command = [sys.executable, "-m", "asv_bench.contention", "--serve", engine, "--threads", str(threads)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables
        )
        self._answer()

    def start(self, steps: int) -> None:
        assert self._process.stdin is not None
        print(steps, file=self._process.stdin, flush=True)

    def seconds(self) -> float:
        return float(self._answer())

    def end(self) -> None:
        self._process.kill()
        self._process.wait()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("a program ended before it answered")
        return line


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """So many programs that want a core each and do nothing with it."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for each in loops:
            each.send_signal(signal.SIGKILL)
            each.wait()


def _together(programs: list[Program], steps: int) -> float:
    for each in programs:
        each.start(steps)
    return max(each.seconds() for each in programs)


def measure(engines: list[str], threads: int, steps: int, rounds: int) -> dict[str, dict[str, float]]:
    """Milliseconds by situation and engine."""
    pairs = {engine: [Program(engine, threads) for _ in range(2)] for engine in engines}
    found: dict[str, dict[str, list[float]]] = {}

    def note(situation: str, engine: str, seconds: float) -> None:
        found.setdefault(situation, {}).setdefault(engine, []).append(1e3 * seconds)

    try:
        for _ in range(rounds):
            for engine, pair in pairs.items():
                note("as it is", engine, _together(pair[:1], steps))
                note("idle", engine, _together(pair[:1], 0))
            with busy_loops(len(os.sched_getaffinity(0))):
                for engine, pair in pairs.items():
                    note("busy loops", engine, _together(pair[:1], steps))
            for engine, pair in pairs.items():
                note("two copies", engine, _together(pair, steps))
    finally:
        for pair in pairs.values():
            for each in pair:
                each.end()
    return {
        situation: {engine: median(times) for engine, times in by_engine.items()}
        for situation, by_engine in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default=",".join(ENGINES))
    parser.add_argument("--serve", choices=ENGINES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.threads)
        return
    engines = options.only.split(",")
    print(f"{'ms':12}" + "".join(f"{engine:>10}" for engine in engines))
    for situation, by_engine in measure(engines, options.threads, options.steps, options.rounds).items():
        print(f"{situation:12}" + "".join(f"{by_engine[engine]:10.2f}" for engine in engines))


if __name__ == "__main__":
    main()
