// Per channel over a part of the batch and of space: count, mean and squared distances of x; or, for the gradient, the sums of g and of
// g * (x - mean), where g is grad before the activation of z = (x - mean) * scale + shift + residual.
//
// Layout:  channels first (outer, channels, inner): a block owns a channel of `outer_step` outer indices and `inner_step` inner ones; its
//          threads walk them in vectors. Channels last (batch, rows, channels): a block owns kSide vectors of channels over `inner_step` rows,
//          thread t the vector t % kSide of every kThreads / kSide-th row. Part p of the results is p / inner_parts, p % inner_parts.
// Needs:   inner (channels last: channels) a multiple of kVector; pointers aligned to kVector elements.
// Bound:   memory: x (and grad, and residual with an activation) read once. Threads sum in the arithmetic type, from their first number on;
//          parts are merged in double, in a fixed order.

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
  static constexpr int kThreads = 256;
};
#define DNNARRAY_ENTRY norm_channel_sums_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kVector = Config::kVector, kSide = Config::kSide, kThreads = Config::kThreads, kSteps = kThreads / kSide;
constexpr int kOwn = Config::kLast ? kVector : 1;  // channels of a thread

struct Arrays {
  const T *x, *grad, *residual;
  A p, q;
};

// What a thread keeps of one channel.
struct Channel {
  Shifted<A> moments;
  A mean, scale, shift, of_bias, of_weight;

  __device__ __forceinline__ void add(A x, A g, A residual, A p, A q) {
    if constexpr (Config::kGradient) {
      const A d = x - mean, before = Config::Activation::gradient(g, d * scale + shift + residual, p, q);
      of_bias += before;
      of_weight += before * d;
    } else {
      moments.add(x);
    }
  }
  __device__ __forceinline__ Moments result(long long count) const {
    return Config::kGradient ? Moments{0, double(of_bias), double(of_weight)} : moments.moments(count);
  }
};

struct MergeParts {
  __device__ __forceinline__ Moments operator()(const Moments& a, const Moments& b) const {
    return Config::kGradient ? Moments{0, a.mean + b.mean, a.square + b.square} : merge(a, b);
  }
};

// `coefficients` holds mean, scale and shift of each instance, one array after the other.
__device__ __forceinline__ Channel begin(const A* coefficients, long long instances, long long instance, const T* first) {
  Channel c = {Shifted<A>(first != nullptr ? widen(*first) : A(0)), A(0), A(1), A(0), A(0), A(0)};
  if constexpr (Config::kGradient) {
    c.mean = coefficients[instance];
    c.scale = coefficients[instances + instance];
    c.shift = coefficients[2 * instances + instance];
  }
  return c;
}

__device__ __forceinline__ void add_vector(Channel (&channels)[kOwn], const Arrays& arrays, long long at) {
  const auto x = load<T, kVector>(arrays.x + at);
  Vec<T, kVector> g = x, r = x;
  if (Config::kGradient) g = load<T, kVector>(arrays.grad + at);
  const bool more = Config::kGradient && arrays.residual != nullptr;
  if (more) r = load<T, kVector>(arrays.residual + at);
#pragma unroll
  for (int v = 0; v < kVector; ++v)
    channels[Config::kLast ? v : 0].add(widen(x.at[v]), widen(g.at[v]), more ? widen(r.at[v]) : A(0), arrays.p, arrays.q);
}

// Null: grad, residual and coefficients where there are none. `per_batch` says that instances are (outer, channel), not channel.
extern "C" __global__ void __launch_bounds__(kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ x, const T* __restrict__ grad, const T* __restrict__ residual, const A* __restrict__ coefficients,
                   Moments* __restrict__ partial, long long outer, long long channels, long long inner, long long outer_step,
                   long long inner_step, long long inner_parts, long long per_batch, double p64, double q64) {
  __shared__ Moments smem[kThreads];
  const Arrays arrays = {x, grad, residual, A(p64), A(q64)};
  const long long tiles = Config::kLast ? (channels / kVector + kSide - 1) / kSide : channels;
  const long long part = blockIdx.x / tiles, tile = blockIdx.x % tiles, instances = per_batch ? outer * channels : channels;
  const long long first_outer = part / inner_parts * outer_step, first_inner = part % inner_parts * inner_step;
  const long long end_outer = min(first_outer + outer_step, outer), end_inner = min(first_inner + inner_step, inner);
  const long long batch = per_batch ? first_outer * channels : 0;
  Channel own[kOwn];
  long long count = 0;
  if constexpr (Config::kLast) {
    const long long channel = (tile * kSide + threadIdx.x % kSide) * kVector, row = first_inner + threadIdx.x / kSide;
    const bool mine = channel < channels;
    const long long start = first_outer * inner * channels + channel;
#pragma unroll
    for (int v = 0; v < kOwn; ++v)
      if (mine) own[v] = begin(coefficients, instances, batch + channel + v, row < end_inner ? x + start + row * channels + v : nullptr);
    if (mine) {
#pragma unroll 4
      for (long long r = row; r < end_inner; r += kSteps) add_vector(own, arrays, start + r * channels);
      count = row < end_inner ? (end_inner - row + kSteps - 1) / kSteps : 0;
    }
#pragma unroll
    for (int v = 0; v < kOwn; ++v) {
      const Moments all = over_steps<kSide, kThreads>(mine ? own[v].result(count) : Moments{0, 0, 0}, MergeParts(), smem);
      if (mine && threadIdx.x < kSide) partial[part * channels + channel + v] = all;
    }
  } else {
    const long long vectors = (end_inner - first_inner) / kVector, over = kThreads / vectors, rest = kThreads % vectors;
    long long n = first_outer + threadIdx.x / vectors, i = threadIdx.x % vectors;
    const long long base = tile * inner + first_inner, pitch = channels * inner;
    own[0] = begin(coefficients, instances, batch + tile, n < end_outer ? x + base + n * pitch + i * kVector : nullptr);
#pragma unroll 4
    while (n < end_outer) {
      add_vector(own, arrays, base + n * pitch + i * kVector);
      count += kVector;
      n += over;
      i += rest;
      if (i >= vectors) i -= vectors, ++n;
    }
    const Moments all = over_steps<1, kThreads>(own[0].result(count), MergeParts(), smem);
    if (threadIdx.x == 0) partial[part * channels + tile] = all;
  }
}
