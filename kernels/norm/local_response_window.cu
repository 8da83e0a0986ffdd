// Local response norm with a window that is known at compile time: y = x * d^-beta, d = k + alpha_size * (sum of x^2 over the window around
// each channel); gradient dx = grad * d^-beta - 2 * beta * alpha_size * x * (sum of grad * x * d^(-beta - 1) over the window turned round).
//
// Layout:  channels first (outer, channels, inner): a thread owns kVector neighbours of an image and walks `steps` times kStep channels, with
//          the loads of the next step behind the sums of this one; x, terms of the sum and unfinished results of the last channels stay in
//          registers. kLast (outer, channels): a thread owns a vector of channels and fetches those before and after it too, from the cache.
// Needs:   pointers aligned to kVector elements (kApart: to one); inner (kLast: channels) a multiple of kVector; kLast: what a thread needs of
//          its neighbours, kWindow / 2 channels on a side (gradient: kWindow - 1), at most kVector.
// Bound:   memory: x (and grad) read once, the result written once.

#include "dnnarray/index.cuh"
#include "dnnarray/math.cuh"
#include "dnnarray/vec.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr bool kGradient = false;
  static constexpr bool kLast = false;
  static constexpr bool kApart = false;
  static constexpr int kWindow = 5;
  static constexpr int kVector = 4;
  static constexpr int kThreads = 128;
};
#define DNNARRAY_ENTRY norm_local_response_window_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kWindow = Config::kWindow, kVector = Config::kVector, kThreads = Config::kThreads;
constexpr int kBefore = kWindow / 2, kAfter = (kWindow - 1) / 2;
constexpr bool kGradient = Config::kGradient;
constexpr int kStep = 4;  // channels that a thread takes at a time, channels first

// A vector of elements, one by one where its address is not aligned.
__device__ __forceinline__ Vec<T, kVector> fetch(const T* from) {
  if constexpr (!Config::kApart) return load<T, kVector>(from);
  Vec<T, kVector> v;
#pragma unroll
  for (int i = 0; i < kVector; ++i) v.at[i] = from[i];
  return v;
}

struct Numbers {
  A k, alpha_size, beta;
};

__device__ __forceinline__ float reciprocal_root(float x) {
  float y;
  asm("rsqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ double reciprocal_root(double x) { return 1 / sqrt(x); }
__device__ __forceinline__ float root(float r) {
  float y;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(r));
  return y;
}
__device__ __forceinline__ double root(double r) { return sqrt(r); }
__device__ __forceinline__ float power(float x, float y) { return sizeof(T) == 2 ? quick_exp2(y * quick_log2(x)) : powf(x, y); }
__device__ __forceinline__ double power(double x, double y) { return pow(x, y); }

// d^-beta and 1 / d, d = k + alpha_size * energy; the usual exponents by square roots.
struct Scale {
  A power_of, inverse;

  __device__ __forceinline__ Scale(A energy, const Numbers& n) {
    const A d = n.k + n.alpha_size * energy, r = reciprocal_root(d);
    inverse = r * r;
    power_of = n.beta == A(0.75) ? r * root(r) : n.beta == A(0.5) ? r : n.beta == A(1) ? inverse : power(d, -n.beta);
  }
};

// The sum of kWindow neighbours.
__device__ __forceinline__ A over_window(const A* from) {
  A sum = from[0];
#pragma unroll
  for (int j = 1; j < kWindow; ++j) sum += from[j];
  return sum;
}

// Channels last: the results of kVector channels from those of `held`, which begin kVector channels before; `inside` says which exist.
template <typename Inside>
__device__ __forceinline__ void at_once(const Vec<T, kVector> (&x)[3], const Vec<T, kVector> (&g)[3], Inside inside, const Numbers& n,
                                        A (&out)[kVector]) {
  constexpr int kTerms = kGradient ? kVector + kWindow - 1 : kVector, kFirst = kVector - (kGradient ? kAfter : 0);
  A wide_x[3][kVector], wide_g[3][kVector], squares[kTerms + kWindow - 1], terms[kTerms];
#pragma unroll
  for (int side = 0; side < 3; ++side) {
    widen_all(wide_x[side], x[side]);
    if constexpr (kGradient) widen_all(wide_g[side], g[side]);
  }
#pragma unroll
  for (int j = 0; j < kTerms + kWindow - 1; ++j) {
    const int c = kFirst - kBefore + j;
    const A here = inside(c) ? wide_x[c / kVector][c % kVector] : A(0);
    squares[j] = here * here;
  }
#pragma unroll
  for (int t = 0; t < kTerms; ++t) {
    const int c = kFirst + t, own = c - kVector;
    const Scale scale(over_window(squares + t), n);
    const A here = wide_x[c / kVector][c % kVector];
    if constexpr (kGradient) {
      const A scaled = wide_g[c / kVector][c % kVector] * scale.power_of;
      terms[t] = inside(c) ? scaled * here * scale.inverse : A(0);
      if (own >= 0 && own < kVector) out[own] = scaled;
    } else {
      out[t] = here * scale.power_of;
    }
  }
  if constexpr (kGradient) {
#pragma unroll
    for (int c = 0; c < kVector; ++c) out[c] -= A(2) * n.beta * n.alpha_size * wide_x[1][c] * over_window(terms + c);
  }
}

// Channels first: what one element keeps from step to step. After a step its last channel is `ahead` channels behind the last x.
struct Walk {
  A x[kWindow - 1 + kStep], terms[kGradient ? kWindow - 1 + kStep : 1], scaled[kGradient ? kBefore + kStep : 1];

  // kStep channels on: their x, and the gradients of the channels kAfter before them, of which `exist` says which there are. Gives results
  // for the channels kAfter (gradient: kWindow - 1) before.
  __device__ __forceinline__ void step(const A (&new_x)[kStep], const A (&new_g)[kStep], const bool (&exist)[kStep], const Numbers& n,
                                       A (&out)[kStep]) {
    A squares[kWindow - 1 + kStep];
#pragma unroll
    for (int j = 0; j < kStep; ++j) x[kWindow - 1 + j] = new_x[j];
#pragma unroll
    for (int j = 0; j < kWindow - 1 + kStep; ++j) squares[j] = x[j] * x[j];
#pragma unroll
    for (int j = 0; j < kStep; ++j) {
      const Scale scale(over_window(squares + j), n);
      if constexpr (kGradient) {
        scaled[kBefore + j] = new_g[j] * scale.power_of;
        terms[kWindow - 1 + j] = exist[j] ? scaled[kBefore + j] * x[kBefore + j] * scale.inverse : A(0);
      } else {
        out[j] = x[kBefore + j] * scale.power_of;
      }
    }
    if constexpr (kGradient) {
#pragma unroll
      for (int j = 0; j < kStep; ++j) out[j] = scaled[j] - A(2) * n.beta * n.alpha_size * x[j] * over_window(terms + j);
#pragma unroll
      for (int j = 0; j < kWindow - 1; ++j) terms[j] = terms[j + kStep];
#pragma unroll
      for (int j = 0; j < kBefore; ++j) scaled[j] = scaled[j + kStep];
    }
#pragma unroll
    for (int j = 0; j < kWindow - 1; ++j) x[j] = x[j + kStep];
  }
};

// `steps`: how many times kStep channels a thread takes, channels first.
extern "C" __global__ void __launch_bounds__(kThreads, kVector > 2 ? kGradient ? 2 : 4 : 0)
    DNNARRAY_ENTRY(const T* __restrict__ grad, const T* __restrict__ x, T* __restrict__ out, long long size, long long channels,
                   long long inner, long long steps, double k, double alpha_size, double beta) {
  const Numbers numbers = {A(k), A(alpha_size), A(beta)};
  const long long thread = static_cast<long long>(blockIdx.x) * kThreads + threadIdx.x;
  if constexpr (Config::kLast) {
    const long long i = thread * kVector, c = divide_index(i, channels).remainder;
    if (i >= size) return;
    const bool here[3] = {c > 0, true, c + kVector < channels};
    Vec<T, kVector> of_x[3], of_g[3];
#pragma unroll
    for (int side = 0; side < 3; ++side) {
      if (here[side]) of_x[side] = fetch(x + i + (side - 1) * kVector);
      if (kGradient && here[side]) of_g[side] = fetch(grad + i + (side - 1) * kVector);
    }
    A result[kVector];
    at_once(of_x, of_g, [&](int at) { return here[at / kVector]; }, numbers, result);
    const auto to = narrow_all<T, kVector>(result);
    if constexpr (Config::kApart) {
#pragma unroll
      for (int v = 0; v < kVector; ++v) out[i + v] = to.at[v];
    } else {
      store(out + i, to);
    }
  } else {
    constexpr int kBehind = kGradient ? kWindow - 1 : kAfter;  // channels from the last x to the last result
    const long long vectors = inner / kVector, parts = (channels + steps * kStep - 1) / (steps * kStep);
    const long long place = thread % vectors * kVector, part = thread / vectors % parts, n = thread / vectors / parts;
    const long long base = n * channels * inner + place;
    if (base >= size) return;
    const long long first = part * steps * kStep, end = min(first + steps * kStep, channels);
    Walk walks[kVector] = {};
    Vec<T, kVector> of_x[kStep], of_g[kStep];
    const auto bring = [&](long long c) {  // x from channel c on, grad from kAfter before
#pragma unroll
      for (int j = 0; j < kStep; ++j) {
        if (c + j >= end + kBehind) continue;
        if (c + j >= 0 && c + j < channels) of_x[j] = load<T, kVector>(x + base + (c + j) * inner);
        if (kGradient && c + j >= kAfter && c + j < channels + kAfter) of_g[j] = load<T, kVector>(grad + base + (c + j - kAfter) * inner);
      }
    };
    long long c = first - kBefore - (kGradient ? kAfter : 0);  // the first x that a result needs
    bring(c);
    for (; c - kBehind < end; c += kStep) {
      A new_x[kVector][kStep], new_g[kVector][kStep], results[kVector][kStep];
      bool exist[kStep];
#pragma unroll
      for (int j = 0; j < kStep; ++j) {
        const bool here = c + j >= 0 && c + j < channels;
        exist[j] = c + j >= kAfter && c + j < channels + kAfter;
        A wide_x[kVector], wide_g[kVector] = {};
        widen_all(wide_x, of_x[j]);
        if constexpr (kGradient) widen_all(wide_g, of_g[j]);
#pragma unroll
        for (int v = 0; v < kVector; ++v) new_x[v][j] = here ? wide_x[v] : A(0), new_g[v][j] = exist[j] ? wide_g[v] : A(0);
      }
      bring(c + kStep);
#pragma unroll
      for (int v = 0; v < kVector; ++v) walks[v].step(new_x[v], new_g[v], exist, numbers, results[v]);
#pragma unroll
      for (int j = 0; j < kStep; ++j) {
        const long long at = c + j - kBehind;
        if (at < first || at >= end) continue;
        A row[kVector];
#pragma unroll
        for (int v = 0; v < kVector; ++v) row[v] = results[v][j];
        store(out + base + at * inner, narrow_all<T, kVector>(row));
      }
    }
  }
}
