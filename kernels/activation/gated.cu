// y = f(gate) x, a gated linear unit; for the gradient dgate = f'(g x, gate) (kOfGate) and dx = g f(gate) (kOfX).
//
// Layout:  gate, x and their gradients in rows of `row` elements that lie `pitch` apart: the two halves of one array
//          (glu), or one row where they are arrays of their own. g and y are dense. A thread owns one vector of kVector
//          elements.
// Needs:   `row` a multiple of kVector, pointers aligned to kVector elements.
// Bound:   memory: each input read once, each output written once.

#include "dnnarray/core/activation.cuh"
#include "dnnarray/core/index.cuh"
#include "dnnarray/core/vec.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Activation = dnnarray::Sigmoid;
  static constexpr bool kOfGate = false;
  static constexpr bool kOfX = false;
  static constexpr bool kRows = true;
  static constexpr int kVector = 4;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long size;
  long long row;
  long long pitch;
};
#define DNNARRAY_ENTRY activation_gated_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
using F = Config::Activation;
constexpr int V = Config::kVector;

__device__ __forceinline__ void forward(const T* gate, const T* x, T* y) {
  const Vec<T, V> reg_gate = load<T, V>(gate), reg_x = load<T, V>(x);
  Vec<T, V> reg_y;
#pragma unroll
  for (int j = 0; j < V; ++j)
    reg_y.at[j] = narrow<T>(F::forward(widen(reg_gate.at[j]), A(1), A(0)) * widen(reg_x.at[j]));
  store(y, reg_y);
}

__device__ __forceinline__ void backward(const T* g, const T* gate, const T* x, T* gate_out, T* x_out) {
  const Vec<T, V> reg_g = load<T, V>(g), reg_gate = load<T, V>(gate);
  Vec<T, V> reg_x, d_gate, d_x;
  if constexpr (Config::kOfGate) reg_x = load<T, V>(x);
#pragma unroll
  for (int j = 0; j < V; ++j) {
    const A source = widen(reg_g.at[j]), door = widen(reg_gate.at[j]);
    if constexpr (Config::kOfGate) d_gate.at[j] = narrow<T>(F::gradient(source * widen(reg_x.at[j]), door, A(1), A(0)));
    if constexpr (Config::kOfX) d_x.at[j] = narrow<T>(F::forward(door, A(1), A(0)) * source);
  }
  if constexpr (Config::kOfGate) store(gate_out, d_gate);
  if constexpr (Config::kOfX) store(x_out, d_x);
}

// The forward writes `y`; the gradient reads `g`, and x for that of the gate alone, and writes `gate_out` and `x_out`.
extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ grad, const T* __restrict__ gate, const T* __restrict__ x, T* __restrict__ y,
                   T* __restrict__ dgate, T* __restrict__ dx, const __grid_constant__ Arguments a) {
  const long long i = (static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x) * V;
  if (i >= a.size) return;
  long long at = i;
  if constexpr (Config::kRows) {
    const Divided place = divide_index(i, a.row);
    at = place.quotient * a.pitch + place.remainder;
  }
  if constexpr (Config::kOfGate || Config::kOfX) {
    backward(grad + i, gate + at, x + at, dgate + at, dx + at);
  } else {
    forward(gate + at, x + at, y + i);
  }
}
