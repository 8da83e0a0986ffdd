// One time step of a layer back: from the gradient of the new state and the output to those of the gates' inputs and
// the old state.
//
// Maths:   the derivatives of step.cu. What flows to the old state beside the matrix products is left in layer.d_state,
//          to which the products are then added; past the end of a sequence that is the whole gradient, and the gates'
//          gradients are 0. kProjected comes first where there is a projection: it collects the gradient of its result.
//          kGruReset is the first half of the GRU whose reset gate acts on the state, kGruLast the second, with the
//          gradient of the reset state in layer.product.
// Layout:  a thread owns one element of (directions, batch, hidden), or (.., width) for kProjected. Scratch memory as
//          in rnn.cuh.
// Bound:   latency of launches.

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
#define DNNARRAY_ENTRY rnn_step_backward_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
using M = math_t<T>;
constexpr int kKind = Config::kKind;

// The gradient of the new state: what came from later steps and what comes from the output.
__device__ __forceinline__ A collect(const Layer<T, A>& layer, const Place& p) {
  const Access<T, A> at = {layer, p};
  const A later = *at.of_batch(layer.d_state, layer.width);
  if (!p.running || layer.output == nullptr) return later;
  const A dy = A(widen(static_cast<const Config::Output*>(layer.output)[at.output_index()]));
  return later + dy * at.factor();
}

__device__ __forceinline__ void lstm(const Layer<T, A>& layer, const Place& p) {
  const Access<T, A> at = {layer, p};
  const long long H = layer.hidden;
  A* gates = at.of_steps(layer.gates, 4 * H);
  A i = 0, f = 0, g = 0, o = 0, output = 0;
  if (p.running) {
    i = gates[0], f = gates[H], g = gates[2 * H], o = gates[3 * H];
    const A dh = Config::kProjects ? *at.of_batch(layer.product, H) : collect(layer, p);
    A dc = *at.of_batch(layer.d_cell, H);
    output = lstm_backward<M>(i, f, g, o, *at.slab(layer.cell, H, false), *at.slab(layer.cell, H, true), dh, dc,
                              A(layer.clip), at.bias(layer.peephole, 0), at.bias(layer.peephole, 1),
                              at.bias(layer.peephole, 2));
    *at.of_batch(layer.d_cell, H) = dc;
    if (!Config::kProjects) *at.of_batch(layer.d_state, H) = 0;
  }
  gates[0] = i, gates[H] = f, gates[2 * H] = g, gates[3 * H] = o;
  if (Config::kProjects) *at.of_steps(layer.before, H) = output;
}

__device__ __forceinline__ void projected(const Layer<T, A>& layer, const Place& p) {
  const Access<T, A> at = {layer, p};
  *at.of_steps(layer.projected, layer.width) = p.running ? collect(layer, p) : A(0);
  if (p.running) *at.of_batch(layer.d_state, layer.width) = 0;
}

__device__ __forceinline__ void gru(const Layer<T, A>& layer, const Place& p) {
  const Access<T, A> at = {layer, p};
  const long long H = layer.hidden;
  A *gates = at.of_steps(layer.gates, 3 * H), *extra = at.of_steps(layer.extra, H);
  A d_r = 0, d_z = 0, d_n = 0, d_extra = 0;
  if (p.running) {
    const A r = gates[0], z = gates[H], dh = collect(layer, p);
    gru_mix_backward(z, gates[2 * H], *at.slab(layer.state, H, false), dh, d_z, d_n);
    d_r = d_n * *extra * r * (A(1) - r);
    d_extra = d_n * r;
    *at.of_batch(layer.d_state, H) = dh * z;
  }
  gates[0] = d_r, gates[H] = d_z, gates[2 * H] = d_n, *extra = d_extra;
}

__device__ __forceinline__ void gru_reset(const Layer<T, A>& layer, const Place& p) {
  const Access<T, A> at = {layer, p};
  const long long H = layer.hidden;
  A* gates = at.of_steps(layer.gates, 3 * H);
  A d_z = 0, d_n = 0;
  if (p.running) {
    const A z = gates[H], dh = collect(layer, p);
    gru_mix_backward(z, gates[2 * H], *at.slab(layer.state, H, false), dh, d_z, d_n);
    *at.of_batch(layer.d_state, H) = dh * z;
  } else {
    *at.of_steps(layer.extra, H) = 0;
  }
  gates[H] = d_z, gates[2 * H] = d_n;
}

__device__ __forceinline__ void gru_last(const Layer<T, A>& layer, const Place& p) {
  const Access<T, A> at = {layer, p};
  const long long H = layer.hidden;
  A *gate = at.of_steps(layer.gates, 3 * H), *d_state = at.of_batch(layer.d_state, H);
  const A r = *gate, d_extra = *at.of_batch(layer.product, H);
  if (p.running) *d_state += d_extra * r;
  *gate = p.running ? d_extra * *at.slab(layer.state, H, false) * r * (A(1) - r) : A(0);
}

__device__ __forceinline__ void simple(const Layer<T, A>& layer, const Place& p) {
  const Access<T, A> at = {layer, p};
  A* gate = at.of_steps(layer.gates, layer.hidden);
  A d = 0;
  if (p.running) {
    const A h = *gate, dh = collect(layer, p);
    d = kKind == kTanhCell ? dh * (A(1) - h * h) : h > A(0) ? dh : A(0);
    *at.of_batch(layer.d_state, layer.width) = 0;
  }
  *gate = d;
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, 4)
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
    projected(layer, p);
  } else {
    simple(layer, p);
  }
}
