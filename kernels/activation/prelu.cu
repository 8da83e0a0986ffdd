// y = x where x > 0, else w[c] x.
//
// Layout:  x and y are outer x channels x inner in memory. A thread owns one vector of kVector elements.
// Needs:   pointers aligned to kVector elements; kChannel says how the channel runs along a vector (channels.cuh).
// Bound:   memory: x read once, y written once.

#include "dnnarray/core/activation.cuh"
#include "dnnarray/core/channels.cuh"
#include "dnnarray/core/overlap.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr int kChannel = 0;
  static constexpr int kVector = 4;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long size;
  dnnarray::ChannelView view;
};
#define DNNARRAY_ENTRY activation_prelu_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;

template <int N>
__device__ __forceinline__ void run(const T* x, const T* w, T* y, long long i, const ChannelView& view) {
  const Vec<T, N> reg_x = load<T, N>(x + i);
  Vec<T, N> reg_y;
  A slope[N];
  load_parameters<N, Config::kChannel>(w, i, view, slope);
#pragma unroll
  for (int j = 0; j < N; ++j) reg_y.at[j] = narrow<T>(LeakyRelu::forward(widen(reg_x.at[j]), slope[j], A(0)));
  store(y + i, reg_y);
}

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ x, const T* __restrict__ weight, T* __restrict__ y,
                   const __grid_constant__ Arguments a) {
  begin_ahead();
  const ChannelView view = a.view;
  const long long i = (static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x) * Config::kVector;
  take_after_previous_kernel(x, weight);
  if (i + Config::kVector <= a.size) {
    run<Config::kVector>(x, weight, y, i, view);
  } else {
    for (long long j = i; j < a.size; ++j) run<1>(x, weight, y, j, view);
  }
}
