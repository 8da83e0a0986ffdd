// y = act(z) with z = (x - mean) * scale + shift + residual; for the gradient, g = act'(grad, z), dresidual = g and
// dx = rstd * (g * weight - average - slope * (x - mean)). The coefficients belong to an instance, a (batch, channel) or a channel, and come from kernels/norm/channel_finish.cu.
//
// Layout:  channels first: flat memory, a vector a thread; instance = (i / inner) % instances. Channels last (batch, rows, channels): a block
//          owns kSide vectors of channels over `rows_step` rows, thread t the vector t % kSide of every kThreads / kSide-th row, with the
//          coefficients of its channels in registers.
// Needs:   pointers aligned to kVector elements; channels last: channels a multiple of kVector.
// Bound:   memory: each input read once, each output written once.

#include "dnnarray/activation.cuh"
#include "dnnarray/norm.cuh"
#include "dnnarray/vec.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Activation = dnnarray::Identity;
  static constexpr bool kGradient = false;
  static constexpr bool kLast = false;
  static constexpr int kVector = 4;
  static constexpr int kSide = 1;
  static constexpr int kThreads = 128;
};
#define DNNARRAY_ENTRY norm_channel_apply_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kVector = Config::kVector, kSide = Config::kSide, kThreads = Config::kThreads, kSteps = kThreads / kSide;

struct Arrays {
  const T *x, *grad, *residual;
  T *out, *more;
  A p, q;
};

struct Coefficients {
  A mean, scale, shift, rstd, weight, average, slope;

  __device__ __forceinline__ void read(const A* from, long long instances, long long instance) {
    mean = from[instance];
    scale = from[instances + instance];
    shift = from[2 * instances + instance];
    if constexpr (Config::kGradient) {
      rstd = from[3 * instances + instance];
      weight = from[4 * instances + instance];
      average = from[5 * instances + instance];
      slope = from[6 * instances + instance];
    }
  }
};

// The result; `g` becomes the gradient before the activation.
__device__ __forceinline__ A evaluate(const Coefficients& c, A x, A& g, A residual, A p, A q) {
  const A d = x - c.mean, z = d * c.scale + c.shift + residual;
  if constexpr (Config::kGradient) {
    g = Config::Activation::gradient(g, z, p, q);
    return c.rstd * (rounded_product(g, c.weight) - c.average - c.slope * d);  // 0 where a statistic has a single value
  } else {
    return Config::Activation::forward(z, p, q);
  }
}

// kCount elements from `at` on; `of(v)` gives the coefficients of element v.
template <int kCount, typename Of>
__device__ __forceinline__ void apply(const Arrays& arrays, long long at, Of of) {
  const auto x = load<T, kCount>(arrays.x + at);
  Vec<T, kCount> g = x, r = x, out;
  if (Config::kGradient) g = load<T, kCount>(arrays.grad + at);
  const bool more = arrays.residual != nullptr;
  if (more) r = load<T, kCount>(arrays.residual + at);
#pragma unroll
  for (int v = 0; v < kCount; ++v) {
    A before = widen(g.at[v]);
    out.at[v] = narrow<T>(evaluate(of(v), widen(x.at[v]), before, more ? widen(r.at[v]) : A(0), arrays.p, arrays.q));
    if (Config::kGradient) g.at[v] = narrow<T>(before);
  }
  store(arrays.out + at, out);
  if (Config::kGradient && arrays.more != nullptr) store(arrays.more + at, g);
}

// Null: grad, residual and dresidual (`more`) where there are none. `batch` is 1 where instances are channels.
extern "C" __global__ void __launch_bounds__(kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ x, const T* __restrict__ grad, const T* __restrict__ residual, const A* __restrict__ coefficients,
                   T* __restrict__ out, T* __restrict__ more, long long size, long long batch, long long channels, long long inner,
                   long long rows_step, double p64, double q64) {
  const Arrays arrays = {x, grad, residual, out, more, A(p64), A(q64)};
  const long long instances = batch * channels;
  if constexpr (Config::kLast) {
    const long long tiles = (channels / kVector + kSide - 1) / kSide, steps = (inner + rows_step - 1) / rows_step;
    const long long tile = blockIdx.x % tiles, step = blockIdx.x / tiles % steps, b = blockIdx.x / tiles / steps;
    const long long channel = (tile * kSide + threadIdx.x % kSide) * kVector;
    if (channel >= channels) return;
    Coefficients c[kVector];
#pragma unroll
    for (int v = 0; v < kVector; ++v) c[v].read(coefficients, instances, b * channels + channel + v);
    const long long end = min((step + 1) * rows_step, inner);
#pragma unroll 4
    for (long long r = step * rows_step + threadIdx.x / kSide; r < end; r += kSteps)
      apply<kVector>(arrays, (b * inner + r) * channels + channel, [&](int v) -> const Coefficients& { return c[v]; });
  } else {
    const long long i = (static_cast<long long>(blockIdx.x) * kThreads + threadIdx.x) * kVector;
    if (i >= size) return;
    Coefficients c;
    const long long left = inner - i % inner;
    c.read(coefficients, instances, i / inner % instances);
    if (i + kVector <= size && left >= kVector) {
      apply<kVector>(arrays, i, [&](int) -> const Coefficients& { return c; });
    } else {
      const long long end = min(i + kVector, size);
      for (long long j = i; j < end; ++j) {
        c.read(coefficients, instances, j / inner % instances);
        apply<1>(arrays, j, [&](int) -> const Coefficients& { return c; });
      }
    }
  }
}
