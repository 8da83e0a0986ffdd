// One layer of a recurrent network, both its directions, as the kernels of the rnn family see it; and the cells'
// formulas.
//
// Time steps keep their number t in memory for both directions. A kept state (for the gradient) has steps + 1 slabs:
// the state before step t stands in slab t of the forward direction and in slab t + 1 of a reversed one. A state that
// is not kept has two slabs, used in turn.
#pragma once

#include "dnnarray/core/activation.cuh"
#include "dnnarray/core/philox.cuh"

namespace dnnarray {

enum Kind { kTanhCell, kReluCell, kGru, kGruReset, kGruLast, kLstm, kProjected };

// Filled by kernels/rnn/describe.cu, eight bytes a field. T is the type of the arrays, A that of the arithmetic and of
// all scratch memory.
template <typename T, typename A>
struct Layer {
  const T* b_ih[2];  // by direction, null where absent; so are the next two
  const T* b_hh[2];
  const T* peephole[2];
  // (directions, steps, batch, gates * hidden): the products of the input, then the activated gates, then their
  // gradients
  A* gates;
  A* state;      // (directions, slabs, batch, width)
  A* cell;       // (directions, slabs, batch, hidden)
  A* extra;      // (directions, steps, batch, hidden): a GRU's product of the n gate with the state, or its reset state
  A* product;    // (directions, batch, ...): products of the present step
  A* before;     // (directions, steps or 1, batch, hidden): the output before a projection
  A* projected;  // (directions, steps, batch, width): gradient of the projected output
  A* d_state;    // (directions, batch, width)
  A* d_cell;     // (directions, batch, hidden)
  void* output;  // null where nobody wants it; in the backward its gradient
  long long output_step, output_row, output_column;  // strides in elements
  const int* lengths;                                // null: all steps of all sequences
  long long steps, batch, hidden, width, directions;
  long long reversed;  // bit d: direction d begins with the last step
  long long kept;      // whether the states of all steps are
  double clip;         // infinite where there is none
  long long dropped;   // whether there is dropout behind this layer
  unsigned long long seed, offset;
  long long threshold;
  double scale;
  long long first;  // number of the layer's first element in the stream of random numbers
};

// An element (d, n, j) of (directions, batch, extent) in the step number `step` of the order in which the network takes
// them.
struct Place {
  long long d, t, n, j, step, row;  // row: t * batch + n
  bool running;                     // within the length of its sequence

  template <typename L>
  __device__ __forceinline__ Place(const L& layer, long long direction, long long batch, long long unit, long long step)
      : d(direction), n(batch), j(unit), step(step) {
    t = layer.reversed >> d & 1 ? layer.steps - 1 - step : step;
    row = t * layer.batch + n;
    running = layer.lengths == nullptr || t < layer.lengths[n];
  }
};
template <typename L>
__device__ __forceinline__ Place place_of(const L& layer, long long i, long long extent, long long step) {
  const long long line = i / extent, d = line / layer.batch;
  return Place(layer, d, line - d * layer.batch, i - line * extent, step);
}

// Pointers to the element of a place.
template <typename T, typename A>
struct Access {
  const Layer<T, A>& layer;
  const Place& p;

  __device__ __forceinline__ A* of_steps(A* base, long long extent) const {
    return base + (p.d * layer.steps * layer.batch + p.row) * extent + p.j;
  }
  __device__ __forceinline__ A* of_batch(A* base, long long extent) const {
    return base + (p.d * layer.batch + p.n) * extent + p.j;
  }
  // A state before the step, or after it.
  __device__ __forceinline__ A* slab(A* base, long long extent, bool after) const {
    const long long slabs = layer.kept ? layer.steps + 1 : 2;
    const long long s = layer.kept ? p.t + ((layer.reversed >> p.d & 1) != after) : (p.step + after) & 1;
    return base + ((p.d * slabs + s) * layer.batch + p.n) * extent + p.j;
  }
  __device__ __forceinline__ long long output_index() const {
    return p.t * layer.output_step + p.n * layer.output_row + (p.d * layer.width + p.j) * layer.output_column;
  }
  // What dropout multiplies the output with.
  __device__ __forceinline__ A factor() const {
    if (!layer.dropped) return A(1);
    const Keep<1, A> keep = {layer.seed, layer.offset, static_cast<unsigned>(layer.threshold), A(layer.scale)};
    A factor[1];
    keep.factors(layer.first + (p.row * layer.directions + p.d) * layer.width + p.j, factor);
    return factor[0];
  }
  __device__ __forceinline__ A bias(const T* const (&of)[2], long long gate) const {
    const T* vector = p.d == 0 ? of[0] : of[1];  // an index would send the pointers to local memory
    return vector == nullptr ? A(0) : A(widen(vector[gate * layer.hidden + p.j]));
  }
  __device__ __forceinline__ A biases(long long gate) const { return bias(layer.b_ih, gate) + bias(layer.b_hh, gate); }
};

// An output type: two numbers of type T that add up to the value, the second as many elements behind the first as a row
// has features.
template <typename T>
struct Parts {
  T value;
};
template <typename T>
__device__ __forceinline__ void write_value(T* out, arithmetic_t<T> y, long long) {
  *out = narrow<T>(y);
}
template <typename T>
__device__ __forceinline__ void write_value(Parts<T>* out, float y, long long features) {
  const T high = narrow<T>(y);
  out[0].value = high;
  out[features].value = narrow<T>(y - widen(high));
}

// The output of a step, with its dropout: 0 past the end of the sequence.
template <typename Output, typename T, typename A>
__device__ __forceinline__ void write_output(const Layer<T, A>& layer, const Place& p, A h) {
  if (layer.output == nullptr) return;
  const Access<T, A> at = {layer, p};
  const A y = p.running ? h * at.factor() : A(0);
  write_value(static_cast<Output*>(layer.output) + at.output_index(), y, layer.directions * layer.width);
}

// --- the long short-term memory --------------------------------------------------------------------------------------

template <typename A>
__device__ __forceinline__ A clipped(A c, A clip) {
  return c > clip ? clip : c < -clip ? -clip : c;
}

// i, f, g, o come as the inputs of the gates and leave activated; c becomes the new cell state. Returns the output
// before a projection.
template <typename M, typename A>
__device__ __forceinline__ A lstm_forward(A& i, A& f, A& g, A& o, A& c, A clip, A peephole_i, A peephole_f,
                                          A peephole_o) {
  i = SigmoidOf<M>::value(i + peephole_i * c);
  f = SigmoidOf<M>::value(f + peephole_f * c);
  g = M::tanh(g);
  c = clipped(f * c + i * g, clip);
  o = SigmoidOf<M>::value(o + peephole_o * c);
  return o * M::tanh(c);
}

// The gates come activated and leave as gradients of their inputs; dc becomes the gradient of the old cell state.
// Returns the output before a projection.
template <typename M, typename A>
__device__ __forceinline__ A lstm_backward(A& i, A& f, A& g, A& o, A before, A after, A dh, A& dc, A clip, A peephole_i,
                                           A peephole_f, A peephole_o) {
  const A squashed = M::tanh(after), output = o * squashed, d_o = dh * squashed * o * (A(1) - o),
          unclipped = f * before + i * g;
  A d = dc + dh * o * (A(1) - squashed * squashed) + d_o * peephole_o;
  if (absolute(unclipped) > clip) d = A(0);
  const A d_i = d * g * i * (A(1) - i), d_f = d * before * f * (A(1) - f), d_g = d * i * (A(1) - g * g);
  dc = d * f + d_i * peephole_i + d_f * peephole_f;
  i = d_i, f = d_f, g = d_g, o = d_o;
  return output;
}

// --- the gated recurrent unit ----------------------------------------------------------------------------------------

// The new state from the update gate, the candidate and the old state.
template <typename A>
__device__ __forceinline__ A gru_mix(A z, A n, A h) {
  return (h - n) * z + n;
}

// Gradients of the inputs of z and n.
template <typename A>
__device__ __forceinline__ void gru_mix_backward(A z, A n, A h, A dh, A& d_z, A& d_n) {
  d_z = dh * (h - n) * z * (A(1) - z);
  d_n = dh * (A(1) - z) * (A(1) - n * n);
}

}  // namespace dnnarray
