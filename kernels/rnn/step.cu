// One time step of a layer behind its matrix products: gates activated, the new state, the output with its dropout.
//
// Maths:   the cells of rnn.cuh. kGruReset is the first half of the GRU whose reset gate acts on the state, kGruLast
//          its second half; kProjected takes over the state that an LSTM's projection has produced. Past the end of a
//          sequence the state stays and the output is 0.
// Layout:  a thread owns one element of (directions, batch, hidden), or (.., width) for kProjected. Scratch memory as
//          in rnn.cuh.
// Needs:   layer.gates holds the input's products, and for all but kGru those of the state; kGru: layer.product (.., 3
//          * hidden).
// Bound:   latency of launches; the memory traffic of a step fits the L2.

#include "rnn/rnn.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Output = float;
  static constexpr int kKind = dnnarray::kLstm;
  static constexpr bool kProjects = false;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long step;
};
#define DNNARRAY_ENTRY rnn_step_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
using M = math_t<T>;
constexpr int kKind = Config::kKind;

// The state after the step, and the output.
__device__ __forceinline__ void emit(const Layer<T, A>& layer, const Place& p, A h) {
  const Access<T, A> at = {layer, p};
  *at.slab(layer.state, layer.width, true) = p.running ? h : *at.slab(layer.state, layer.width, false);
  write_output<Config::Output>(layer, p, h);
}

__device__ __forceinline__ void lstm(const Layer<T, A>& layer, const Place& p) {
  const Access<T, A> at = {layer, p};
  const long long H = layer.hidden;
  A* gates = at.of_steps(layer.gates, 4 * H);
  A i = gates[0] + at.biases(0), f = gates[H] + at.biases(1), g = gates[2 * H] + at.biases(2),
    o = gates[3 * H] + at.biases(3);
  const A before = *at.slab(layer.cell, H, false);
  A c = before;
  const A h = lstm_forward<M>(i, f, g, o, c, A(layer.clip), at.bias(layer.peephole, 0), at.bias(layer.peephole, 1),
                              at.bias(layer.peephole, 2));
  *at.slab(layer.cell, H, true) = p.running ? c : before;
  if (layer.kept) gates[0] = i, gates[H] = f, gates[2 * H] = g, gates[3 * H] = o;
  if constexpr (Config::kProjects) {
    *at.of_batch(layer.before, H) = h;
  } else {
    emit(layer, p, h);
  }
}

__device__ __forceinline__ void gru(const Layer<T, A>& layer, const Place& p) {
  const Access<T, A> at = {layer, p};
  const long long H = layer.hidden;
  A* gates = at.of_steps(layer.gates, 3 * H);
  const A* product = at.of_batch(layer.product, 3 * H);
  const A extra = product[2 * H] + at.bias(layer.b_hh, 2);
  const A r = SigmoidOf<M>::value(gates[0] + at.biases(0) + product[0]),
          z = SigmoidOf<M>::value(gates[H] + at.biases(1) + product[H]);
  const A n = M::tanh(gates[2 * H] + at.bias(layer.b_ih, 2) + r * extra);
  if (layer.kept) gates[0] = r, gates[H] = z, gates[2 * H] = n, *at.of_steps(layer.extra, H) = extra;
  emit(layer, p, gru_mix(z, n, *at.slab(layer.state, H, false)));
}

__device__ __forceinline__ void gru_reset(const Layer<T, A>& layer, const Place& p) {
  const Access<T, A> at = {layer, p};
  const long long H = layer.hidden;
  A* gates = at.of_steps(layer.gates, 3 * H);
  const A r = SigmoidOf<M>::value(gates[0] + at.biases(0));
  gates[0] = r;
  gates[H] = SigmoidOf<M>::value(gates[H] + at.biases(1));
  *(layer.kept ? at.of_steps(layer.extra, H) : at.of_batch(layer.extra, H)) = r * *at.slab(layer.state, H, false);
}

__device__ __forceinline__ void gru_last(const Layer<T, A>& layer, const Place& p) {
  const Access<T, A> at = {layer, p};
  const long long H = layer.hidden;
  A* gates = at.of_steps(layer.gates, 3 * H);
  const A n = M::tanh(gates[2 * H] + at.biases(2));
  if (layer.kept) gates[2 * H] = n;
  emit(layer, p, gru_mix(gates[H], n, *at.slab(layer.state, H, false)));
}

__device__ __forceinline__ void simple(const Layer<T, A>& layer, const Place& p) {
  const Access<T, A> at = {layer, p};
  A* gate = at.of_steps(layer.gates, layer.hidden);
  const A x = *gate + at.biases(0), h = kKind == kTanhCell ? M::tanh(x) : Relu::forward(x, A(0), A(0));
  if (layer.kept) *gate = h;
  emit(layer, p, h);
}

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const Layer<T, A>* __restrict__ description, const __grid_constant__ Arguments a) {
  const Layer<T, A>& layer = *description;
  const long long extent = kKind == kProjected ? layer.width : layer.hidden;
  const long long i = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (i >= layer.directions * layer.batch * extent) return;
  const Place p = place_of(layer, i, extent, a.step);
  if constexpr (kKind == kLstm) {
    lstm(layer, p);
  } else if constexpr (kKind == kGru) {
    gru(layer, p);
  } else if constexpr (kKind == kGruReset) {
    gru_reset(layer, p);
  } else if constexpr (kKind == kGruLast) {
    gru_last(layer, p);
  } else if constexpr (kKind == kProjected) {
    emit(layer, p, *Access<T, A>{layer, p}.of_batch(layer.product, layer.width));
  } else {
    simple(layer, p);
  }
}
