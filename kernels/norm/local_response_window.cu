// Local response norm with a window that is known at compile time: y = x * d^-beta, d = k + alpha_size * (sum of x^2 over the window around
// each channel); gradient dx = grad * d^-beta - 2 * beta * alpha_size * x * (sum of grad * x * d^(-beta - 1) over the window turned round).
//
// Layout:  channels first (outer, channels, inner): a thread owns kVector neighbours of an image and walks `steps` times kStep channels, with
//          the loads of the next step behind the sums of this one; x, terms of the sum and unfinished results of the last channels stay in
//          registers. kLast (outer, channels): a thread owns a vector of channels and fetches those before and after it too, from the cache.
// Needs:   pointers aligned to kVector elements (kApart: to one); inner (kLast: channels) a multiple of kVector; kLast: what a thread needs of
//          its neighbours, kWindow / 2 channels on a side (gradient: kWindow - 1), at most kVector; kWide where there are 2^31 vectors or more.
// Bound:   memory: x (and grad) read once, the result written once.

#include "dnnarray/division.cuh"
#include "dnnarray/math.cuh"
#include "dnnarray/vec.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr bool kGradient = false;
  static constexpr bool kLast = false;
  static constexpr bool kApart = false;
  static constexpr int kWindow = 5;
  static constexpr int kQuarters = 3;
  static constexpr bool kTiny = false;
  static constexpr bool kWide = false;
  static constexpr int kVector = 4;
  static constexpr int kThreads = 128;
};
#define DNNARRAY_ENTRY norm_local_response_window_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kWindow = Config::kWindow, kVector = Config::kVector, kThreads = Config::kThreads;
constexpr int kBefore = kWindow / 2, kAfter = (kWindow - 1) / 2, kReach = kWindow - 1;
constexpr bool kGradient = Config::kGradient;
constexpr int kStep = kReach < 4 ? 4 : kReach;  // channels that a thread takes at a time, channels first

// A vector of elements, one by one where its address is not aligned; 0 where there is none.
__device__ __forceinline__ Vec<T, kVector> fetch(const T* from, bool there) {
  if (!there) return {};
  if constexpr (!Config::kApart) {
    return load<T, kVector>(from);
  } else {
    Vec<T, kVector> v;
#pragma unroll
    for (int i = 0; i < kVector; ++i) v.at[i] = from[i];
    return v;
  }
}

// Blocks of a multiprocessor that registers are shared out to, channels first.
constexpr int kBlocks = Config::kLast ? 0 : kWindow > 5 || Config::kQuarters == 0 ? 2 : kGradient ? 3 : 4;

struct Numbers {
  A k, alpha_size, beta;
};

// kTiny says that x may be below the normal numbers, which costs three more instructions.
__device__ __forceinline__ float reciprocal_root(float x) {
  float y;
  if constexpr (Config::kTiny) {
    asm("rsqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  } else {
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  }
  return y;
}
__device__ __forceinline__ double reciprocal_root(double x) { return 1 / sqrt(x); }
// Of the reciprocal root of a float, which is never near the smallest ones.
__device__ __forceinline__ float root(float r) {
  float y;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(r));
  return y;
}
__device__ __forceinline__ double root(double r) { return sqrt(r); }
__device__ __forceinline__ float power(float x, float y) { return sizeof(T) == 2 ? quick_exp2(y * quick_log2(x)) : powf(x, y); }
__device__ __forceinline__ double power(double x, double y) { return pow(x, y); }

// d^-beta and 1 / d, d = k + alpha_size * energy; the usual exponents, kQuarters quarters, by roots.
struct Scale {
  A power_of, inverse;

  __device__ __forceinline__ Scale(A energy, const Numbers& n) {
    constexpr int kQuarters = Config::kQuarters;
    const A d = n.k + n.alpha_size * energy, r = reciprocal_root(d);
    inverse = r * r;
    power_of = kQuarters == 3 ? r * root(r) : kQuarters == 2 ? r : kQuarters == 4 ? inverse : power(d, -n.beta);
  }
};

// The sums of kWindow neighbours from each of the first N places on: of kReach of them each is the end of one run and the beginning of the
// next, so that a sum takes three additions however long the window is.
template <int N>
__device__ __forceinline__ void over_windows(const A (&from)[N + kReach], A (&sums)[N]) {
#pragma unroll
  for (int start = 0; start < N; start += kReach) {
    A end[kReach], begin = A(0);
    end[kReach - 1] = from[start + kReach - 1];
#pragma unroll
    for (int i = kReach - 2; i >= 0; --i) end[i] = from[start + i] + end[i + 1];
#pragma unroll
    for (int i = 0; i < kReach && start + i < N; ++i) {
      begin = i == 0 ? from[start + kReach] : begin + from[start + kReach + i];
      sums[start + i] = end[i] + begin;
    }
  }
}

// Channels last: the results of kVector channels from those of `held`, which begin kVector channels before; `inside` says which exist.
template <typename Inside>
__device__ __forceinline__ void at_once(const Vec<T, kVector> (&x)[3], const Vec<T, kVector> (&g)[3], Inside inside, const Numbers& n,
                                        A (&out)[kVector]) {
  constexpr int kTerms = kGradient ? kVector + kReach : kVector, kFirst = kVector - (kGradient ? kAfter : 0);
  A wide_x[3][kVector], wide_g[3][kVector], squares[kTerms + kReach], energy[kTerms], terms[kVector + kReach];
#pragma unroll
  for (int side = 0; side < 3; ++side) {
    widen_all(wide_x[side], x[side]);
    if constexpr (kGradient) widen_all(wide_g[side], g[side]);
  }
#pragma unroll
  for (int j = 0; j < kTerms + kReach; ++j) {
    const A here = wide_x[(kFirst - kBefore + j) / kVector][(kFirst - kBefore + j) % kVector];
    squares[j] = here * here;
  }
  over_windows(squares, energy);
#pragma unroll
  for (int t = 0; t < kTerms; ++t) {
    const int c = kFirst + t, own = c - kVector;
    const Scale scale(energy[t], n);
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
    A along[kVector];
    over_windows(terms, along);
#pragma unroll
    for (int c = 0; c < kVector; ++c) out[c] -= A(2) * n.beta * n.alpha_size * wide_x[1][c] * along[c];
  }
}

// Channels first: what one element keeps from step to step. After a step its last channel is `ahead` channels behind the last x.
struct Walk {
  A x[kReach + kStep], terms[kReach + kStep], scaled[kBefore + kStep];

  // kStep channels on: their x, and the gradients of the channels kAfter before them, of which `exist` says which there are. Gives results
  // for the channels kAfter (gradient: kWindow - 1) before.
  __device__ __forceinline__ void step(const A (&new_x)[kStep], const A (&new_g)[kStep], const bool (&exist)[kStep], const Numbers& n,
                                       A (&out)[kStep]) {
    A squares[kReach + kStep], energy[kStep];
#pragma unroll
    for (int j = 0; j < kStep; ++j) x[kReach + j] = new_x[j];
#pragma unroll
    for (int j = 0; j < kReach + kStep; ++j) squares[j] = x[j] * x[j];
    over_windows(squares, energy);
#pragma unroll
    for (int j = 0; j < kStep; ++j) {
      const Scale scale(energy[j], n);
      if constexpr (kGradient) {
        scaled[kBefore + j] = new_g[j] * scale.power_of;
        terms[kReach + j] = exist[j] ? scaled[kBefore + j] * x[kBefore + j] * scale.inverse : A(0);
      } else {
        out[j] = x[kBefore + j] * scale.power_of;
      }
    }
    if constexpr (kGradient) {
      A along[kStep];
      over_windows(terms, along);
#pragma unroll
      for (int j = 0; j < kStep; ++j) out[j] = scaled[j] - A(2) * n.beta * n.alpha_size * x[j] * along[j];
#pragma unroll
      for (int j = 0; j < kReach; ++j) terms[j] = terms[j + kStep];
#pragma unroll
      for (int j = 0; j < kBefore; ++j) scaled[j] = scaled[j + kStep];
    }
#pragma unroll
    for (int j = 0; j < kReach; ++j) x[j] = x[j + kStep];
  }
};

// `steps`: how many times kStep channels a thread takes, channels first; kLast: the divisor for the vectors of a row.
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks)
    DNNARRAY_ENTRY(const T* __restrict__ grad, const T* __restrict__ x, T* __restrict__ out, long long size, long long channels,
                   long long inner, long long steps, double k, double alpha_size, double beta) {
  const Numbers numbers = {A(k), A(alpha_size), A(beta)};
  const long long thread = static_cast<long long>(blockIdx.x) * kThreads + threadIdx.x;
  if constexpr (Config::kLast) {
    const long long i = thread * kVector;
    if (i >= size) return;
    const int vectors = static_cast<int>(channels / kVector);
    const int c = Config::kWide ? static_cast<int>(thread % vectors) : static_cast<int>(Divisor(vectors, steps).remainder(static_cast<unsigned>(thread)));
    const bool here[3] = {c > 0, true, c + 1 < vectors};
    Vec<T, kVector> of_x[3], of_g[3];
#pragma unroll
    for (int side = 0; side < 3; ++side) {
      of_x[side] = fetch(x + i + (side - 1) * kVector, here[side]);
      if constexpr (kGradient) of_g[side] = fetch(grad + i + (side - 1) * kVector, here[side]);
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
    constexpr int kBehind = kGradient ? kReach : kAfter;  // channels from the last x to the last result
    const int all = static_cast<int>(channels), stretch = static_cast<int>(steps) * kStep;
    const long long vectors = inner / kVector, parts = (channels + stretch - 1) / stretch;
    const long long place = thread % vectors * kVector, part = thread / vectors % parts, n = thread / vectors / parts;
    const long long base = n * channels * inner + place;
    if (base >= size) return;
    const int first = static_cast<int>(part) * stretch, end = min(first + stretch, all);
    int c = first - kBefore - (kGradient ? kAfter : 0);  // the first x that a result needs
    const T *next_x = x + base + c * inner, *next_g = kGradient ? grad + base + (c - kAfter) * inner : nullptr;
    T* to = out + base + (c - kBehind) * inner;
    Walk walks[kVector] = {};
    Vec<T, kVector> of_x[kStep], of_g[kStep];
    const auto bring = [&](int from) {  // x from this channel on, grad from kAfter before
#pragma unroll
      for (int j = 0; j < kStep; ++j) {
        const int at = from + j;
        of_x[j] = fetch(next_x, at >= 0 && at < min(all, end + kBehind));
        next_x += inner;
        if constexpr (kGradient) {
          of_g[j] = fetch(next_g, at >= kAfter && at < min(all + kAfter, end + kBehind));
          next_g += inner;
        }
      }
    };
    bring(c);
    for (; c - kBehind < end; c += kStep) {
      A new_x[kVector][kStep], new_g[kVector][kStep], results[kVector][kStep];
      bool exist[kStep];
#pragma unroll
      for (int j = 0; j < kStep; ++j) {
        exist[j] = c + j >= kAfter && c + j < all + kAfter;
        A wide_x[kVector], wide_g[kVector] = {};
        widen_all(wide_x, of_x[j]);
        if constexpr (kGradient) widen_all(wide_g, of_g[j]);
#pragma unroll
        for (int v = 0; v < kVector; ++v) new_x[v][j] = wide_x[v], new_g[v][j] = wide_g[v];
      }
      bring(c + kStep);
#pragma unroll
      for (int v = 0; v < kVector; ++v) walks[v].step(new_x[v], new_g[v], exist, numbers, results[v]);
#pragma unroll
      for (int j = 0; j < kStep; ++j, to += inner) {
        const int at = c + j - kBehind;
        if (at < first || at >= end) continue;
        A row[kVector];
#pragma unroll
        for (int v = 0; v < kVector; ++v) row[v] = results[v][j];
        store(to, narrow_all<T, kVector>(row));
      }
    }
  }
}
