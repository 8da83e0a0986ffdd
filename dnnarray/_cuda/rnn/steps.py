"""The recurrence step by step: a matrix product of the state and a kernel for the rest, both directions at once."""

from __future__ import annotations

from dnnarray._cuda.core.plan import SHORT, TYPES, Kernel, Matrix, Plan, Program
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.rnn.layers import Layer, Recurrence, backward, forward, matrix_batch
from dnnarray._cuda.rnn.network import THREADS, Block, Launches, Network, blocks
from dnnarray._cuda.rnn.products import product
from dnnarray._cuda.rnn.shared import EFFICIENCY, UNITS, itemsize, refuses
from dnnarray._cuda.rnn.step import StepArguments, StepConfig
from dnnarray._cuda.rnn.step_backward import StepBackwardArguments
from dnnarray._problems.rnn import RecurrentProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device
from dnnarray._spec import HALF

_STEP_LAUNCHES = 5  # the time of a step, a product and a kernel that wait for each other, in launches
# As the enumeration in kernels/rnn/rnn.cuh.
KINDS = {"tanh": 0, "relu": 1, "gru": 2, "gru_reset": 3, "gru_last": 4, "lstm": 5, "projected": 6}
NAMES = {TYPES[d]: SHORT[d] for d in TYPES} | {f"dnnarray::Parts<{TYPES[d]}>": f"{SHORT[d]}_parts" for d in HALF}


def _products(
    layer: Layer,
    field: str,
    a: tuple[Block, Block | None, int],
    c: tuple[Block, Block | None, int],
    extents: tuple[int, int, int],
    *,
    first: int = 0,
    transposed: bool,
    add: bool = False,
) -> Launches:
    """A product with a matrix of the weights, from its row `first` on, for each direction.

    `a` and `c` are the blocks of both directions (None without a second) and the distance between rows.
    """
    entries = layer.network.entries(layer.number)
    shape = getattr(layer.network.weights[entries[0]], field).shape
    held = [layer.weight(field, k).at(first * shape[1]) for k in entries]
    b = matrix_batch(held[0], shape[1], held[1] if len(held) > 1 else None, transposed=transposed)
    out: Matrix = matrix_batch(c[0], c[2], c[1])
    return product(
        matrix_batch(a[0], a[2], a[1]),
        b,
        c[0],
        extents,
        c[2],
        batch=len(held),
        step=out.batch,
        add=add,
        precision=layer.precision,
    )


@frozen
class _Step:
    """One step of a layer: what of its memory takes part, as (first direction, second, distance between rows)."""

    layer: Layer
    step: int

    def gates(self, first: int = 0) -> tuple[Block, Block | None, int]:
        n = self.layer.network
        both = [
            self.layer.gates_of(d, n.time(d, self.step)).at(first * n.problem.hidden)
            for d in range(n.problem.directions)
        ]
        return both[0], both[1] if len(both) > 1 else None, n.gate_rows

    def state(self) -> tuple[Block, Block | None, int]:
        """Before the step."""
        n = self.layer.network
        both = [self.layer.slab("state", d, n.slab(d, self.step)) for d in range(n.problem.directions)]
        return both[0], both[1] if len(both) > 1 else None, n.problem.state

    def of_batch(self, name: str, extent: int) -> tuple[Block, Block | None, int]:
        """Memory of (directions, batch, extent)."""
        n = self.layer.network
        first = n.memory[name]
        return first, first.at(n.problem.batch * extent) if n.problem.directions > 1 else None, extent

    def of_steps(self, block: Block, extent: int) -> tuple[Block, Block | None, int]:
        """Memory of (directions, steps, batch, extent), or of one step where nothing is kept."""
        n = self.layer.network
        if not n.kept:
            return block, block.at(n.problem.batch * extent) if n.problem.directions > 1 else None, extent
        both = [
            block.at((d * n.rows + n.time(d, self.step) * n.problem.batch) * extent)
            for d in range(n.problem.directions)
        ]
        return both[0], both[1] if len(both) > 1 else None, extent


def _launch(layer: Layer, source: str, kind: str, output: str, step: int) -> Plan:
    """The kernel of one step."""
    n, p = layer.network, layer.network.problem
    dtype, projects = n.x.block.dtype, p.projected and kind == "lstm"
    config = StepConfig(TYPES[dtype], output, KINDS[kind], projects, THREADS)
    name = f"rnn_{source}_{kind}{'_projects' if projects else ''}_{SHORT[dtype]}_{NAMES[output]}"
    extent = p.state if kind == "projected" else p.hidden
    grid = blocks(p.directions * p.batch * extent)
    arguments = (StepBackwardArguments if source == "step_backward" else StepArguments)(n.memory["layer"].array, step)
    return planned(Kernel(f"rnn/{source}.cu", name, config, ("core/math",)), grid, THREADS, arguments)


def kind_of(layer: Layer) -> str:
    cell = layer.network.problem.cell
    return cell.activation if cell.kind == "rnn" else cell.kind


def _step_forward(layer: Layer, output: str, s: int) -> Launches:
    n, p, at = layer.network, layer.network.problem, _Step(layer, s)
    N, H, P, cell = p.batch, p.hidden, p.state, p.cell
    if cell.kind == "gru" and cell.linear_before_reset:
        products = _products(layer, "w_hh", at.state(), at.of_batch("product", 3 * H), (N, 3 * H, P), transposed=True)
        return [*products, _launch(layer, "step", "gru", output, s)]
    if cell.kind == "gru":
        reset = at.of_steps(layer.memory("extra"), H)
        return [
            *_products(layer, "w_hh", at.state(), at.gates(), (N, 2 * H, P), transposed=True, add=True),
            _launch(layer, "step", "gru_reset", TYPES[n.dtype], s),
            *_products(layer, "w_hh", reset, at.gates(2), (N, H, H), first=2 * H, transposed=True, add=True),
            _launch(layer, "step", "gru_last", output, s),
        ]
    launches = _products(layer, "w_hh", at.state(), at.gates(), (N, n.gate_rows, P), transposed=True, add=True)
    if not p.projected:
        return [*launches, _launch(layer, "step", kind_of(layer), output, s)]
    before = at.of_batch("before", H)
    launches.append(_launch(layer, "step", "lstm", TYPES[n.dtype], s))
    launches += _products(layer, "w_hr", before, at.of_batch("product", P), (N, P, H), transposed=True)
    return [*launches, _launch(layer, "step", "projected", output, s)]


def _step_backward(layer: Layer, output: str, s: int) -> Launches:
    n, p, at = layer.network, layer.network.problem, _Step(layer, s)
    N, H, P, cell = p.batch, p.hidden, p.state, p.cell
    d_state = at.of_batch("d_state", P)
    if cell.kind == "gru" and cell.linear_before_reset:
        extra = at.of_steps(layer.memory("extra"), H)
        return [
            _launch(layer, "step_backward", "gru", output, s),
            *_products(layer, "w_hh", at.gates(), d_state, (N, P, 2 * H), transposed=False, add=True),
            *_products(layer, "w_hh", extra, d_state, (N, P, H), first=2 * H, transposed=False, add=True),
        ]
    if cell.kind == "gru":
        return [
            _launch(layer, "step_backward", "gru_reset", output, s),
            *_products(layer, "w_hh", at.gates(2), at.of_batch("product", H), (N, P, H), first=2 * H, transposed=False),
            _launch(layer, "step_backward", "gru_last", TYPES[n.dtype], s),
            *_products(layer, "w_hh", at.gates(), d_state, (N, P, 2 * H), transposed=False, add=True),
        ]
    launches: Launches = []
    if p.projected:
        projected = at.of_steps(n.memory["projected"], P)
        launches.append(_launch(layer, "step_backward", "projected", output, s))
        launches += _products(layer, "w_hr", projected, at.of_batch("product", H), (N, H, P), transposed=False)
        output = TYPES[n.dtype]
    launches.append(_launch(layer, "step_backward", kind_of(layer), output, s))
    return launches + _products(layer, "w_hh", at.gates(), d_state, (N, P, n.gate_rows), transposed=False, add=True)


def _forward(layer: Layer, output: str) -> Launches:
    return [launch for s in range(layer.network.problem.steps) for launch in _step_forward(layer, output, s)]


def _backward(layer: Layer, output: str) -> Launches:
    return [launch for s in reversed(range(layer.network.problem.steps)) for launch in _step_backward(layer, output, s)]


STEPS = Recurrence(_forward, _backward)


def run(back: bool, precision: str, problem: RecurrentProblem, device: Device, aligned: bool) -> Program:
    return Program(tuple((backward if back else forward)(Network(problem, back), STEPS, precision)))


def cost(back: bool, precision: str, problem: RecurrentProblem, device: Device) -> Cost:
    launches = problem.steps * problem.layers * problem.passes * _STEP_LAUNCHES
    return Cost(problem.flops, problem.bytes, EFFICIENCY, launches, UNITS[precision].get(max(4, itemsize(problem))))


def rejects(precision: str, problem: RecurrentProblem, device: Device) -> str | None:
    return refuses(precision, problem)
