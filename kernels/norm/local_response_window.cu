// Local response norm with a window that is known at compile time: y = x * d^-beta, d = k + alpha_size * (sum of x^2 over the window around
// each channel); gradient dx = grad * d^-beta - 2 * beta * alpha_size * x * (sum of grad * x * d^(-beta - 1) over the window turned round).
//
// Layout:  channels first (outer, channels, inner): a thread owns kVector neighbours of an image and walks kStep channels at a time, all
//          loads of a step before its sums, with what the next step needs again in registers. kLast (outer, channels): a thread owns a vector
//          of channels and fetches those before and after it too, from the cache.
// Needs:   pointers aligned to kVector elements (kApart: to one); inner (kLast: channels) a multiple of kVector; kLast: what a thread needs of its neighbours,
//          kWindow / 2 channels on a side (gradient: kWindow - 1), at most kVector.
// Bound:   memory: x (and grad) read once, the result written once.

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
constexpr int kReach = Config::kGradient ? kWindow - 1 : kBefore;      // channels that a result needs before its own
constexpr int kAhead = Config::kGradient ? kWindow - 1 : kAfter;       // and after it
constexpr int kStep = Config::kLast ? kVector : 4;                     // channels that a thread finishes at a time
constexpr int kHeld = kReach + kStep + kAhead;                         // and those it sees

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
__device__ __forceinline__ float fourth(float r) {  // r = d^-0.5 gives d^-0.25
  float y;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(r));
  return y;
}
__device__ __forceinline__ double fourth(double r) { return sqrt(r); }
__device__ __forceinline__ float inverse(float x) { return quick_reciprocal(x); }
__device__ __forceinline__ double inverse(double x) { return 1 / x; }
__device__ __forceinline__ float power(float x, float y) { return sizeof(T) == 2 ? quick_exp2(y * quick_log2(x)) : powf(x, y); }
__device__ __forceinline__ double power(double x, double y) { return pow(x, y); }

// d^-beta; the usual exponents by square roots.
__device__ __forceinline__ A inverse_power(A d, A beta) {
  if (beta == A(1)) return inverse(d);
  const A r = reciprocal_root(d);
  if (beta == A(0.75)) return r * fourth(r);
  return beta == A(0.5) ? r : power(d, -beta);
}

// x and grad of kHeld neighbouring channels at one place, the first kReach and the last kAhead of them only seen; absent ones are 0.
struct Channels {
  A x[kHeld], g[Config::kGradient ? kHeld : 1];

  __device__ __forceinline__ A energy(int c, const Numbers& n) const {
    A sum = A(0);
#pragma unroll
    for (int j = c - kBefore; j <= c + kAfter; ++j) sum += x[j] * x[j];
    return n.k + n.alpha_size * sum;
  }
  // The results of the kStep channels in the middle.
  __device__ __forceinline__ void results(A (&out)[kStep], const Numbers& n) const {
    if constexpr (!Config::kGradient) {
#pragma unroll
      for (int c = 0; c < kStep; ++c) out[c] = x[kReach + c] * inverse_power(energy(kReach + c, n), n.beta);
    } else {
      A terms[kStep + kWindow - 1];  // from channel -kAfter on
#pragma unroll
      for (int t = 0; t < kStep + kWindow - 1; ++t) {
        const int c = kReach - kAfter + t;
        const A d = energy(c, n), scale = inverse_power(d, n.beta);
        terms[t] = g[c] == A(0) || x[c] == A(0) ? A(0) * g[c] * x[c] : g[c] * x[c] * scale * inverse(d);
        if (t >= kAfter && t < kAfter + kStep) out[t - kAfter] = g[c] * scale;
      }
#pragma unroll
      for (int c = 0; c < kStep; ++c) {
        A felt = A(0);
#pragma unroll
        for (int t = c; t < c + kWindow; ++t) felt += terms[t];
        out[c] -= A(2) * n.beta * n.alpha_size * x[kReach + c] * felt;
      }
    }
  }
};

// `steps`: how many times kStep channels a thread takes, channels first.
extern "C" __global__ void __launch_bounds__(kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ grad, const T* __restrict__ x, T* __restrict__ out, long long size, long long channels,
                   long long inner, long long steps, double k, double alpha_size, double beta) {
  const Numbers numbers = {A(k), A(alpha_size), A(beta)};
  const long long thread = static_cast<long long>(blockIdx.x) * kThreads + threadIdx.x;
  if constexpr (Config::kLast) {
    const long long i = thread * kVector, c = i % channels;
    if (i >= size) return;
    Channels held;
#pragma unroll
    for (int side = -1; side <= 1; ++side) {
      const bool here = side == 0 || (side < 0 ? c > 0 : c + kVector < channels);
      Vec<T, kVector> of_x, of_g;
      if (here) of_x = fetch(x + i + side * kVector);
      if (Config::kGradient && here) of_g = fetch(grad + i + side * kVector);
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        const int at = kReach + side * kVector + v;
        if (at < 0 || at >= kHeld) continue;
        held.x[at] = here ? widen(of_x.at[v]) : A(0);
        if constexpr (Config::kGradient) held.g[at] = here ? widen(of_g.at[v]) : A(0);
      }
    }
    A result[kStep];
    Vec<T, kVector> to;
    held.results(result, numbers);
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      to.at[v] = narrow<T>(result[v]);
      if (Config::kApart) out[i + v] = to.at[v];
    }
    if (!Config::kApart) store(out + i, to);
  } else {
    const long long vectors = inner / kVector, parts = (channels + steps * kStep - 1) / (steps * kStep);
    const long long place = thread % vectors * kVector, part = thread / vectors % parts, n = thread / vectors / parts;
    const long long base = n * channels * inner + place;
    if (base >= size) return;
    const long long end = min((part + 1) * steps * kStep, channels);
    Channels held[kVector];
    const auto see = [&](int slot, long long c) {
      const bool here = c >= 0 && c < channels;
      Vec<T, kVector> of_x, of_g;
      if (here) of_x = load<T, kVector>(x + base + c * inner);
      if (Config::kGradient && here) of_g = load<T, kVector>(grad + base + c * inner);
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        held[v].x[slot] = here ? widen(of_x.at[v]) : A(0);
        if constexpr (Config::kGradient) held[v].g[slot] = here ? widen(of_g.at[v]) : A(0);
      }
    };
    long long c = part * steps * kStep;
#pragma unroll
    for (int slot = 0; slot < kReach + kAhead; ++slot) see(slot, c - kReach + slot);
#pragma unroll 1
    for (; c < end; c += kStep) {
#pragma unroll
      for (int slot = kReach + kAhead; slot < kHeld; ++slot) see(slot, c - kReach + slot);
      A results[kVector][kStep];
#pragma unroll
      for (int v = 0; v < kVector; ++v) held[v].results(results[v], numbers);
#pragma unroll
      for (int j = 0; j < kStep; ++j) {
        if (c + j >= end) break;
        Vec<T, kVector> to;
#pragma unroll
        for (int v = 0; v < kVector; ++v) to.at[v] = narrow<T>(results[v][j]);
        store(out + base + (c + j) * inner, to);
      }
#pragma unroll
      for (int slot = 0; slot < kReach + kAhead; ++slot) {
#pragma unroll
        for (int v = 0; v < kVector; ++v) {
          held[v].x[slot] = held[v].x[slot + kStep];
          if constexpr (Config::kGradient) held[v].g[slot] = held[v].g[slot + kStep];
        }
      }
    }
  }
}
