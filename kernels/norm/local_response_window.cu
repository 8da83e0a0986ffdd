// Local response norm with a window that is known at compile time: y = x * d^-beta, d = k + alpha_size * (sum of x^2
// over the window around each channel); gradient dx = grad * d^-beta - 2 * beta * alpha_size * x * (sum of grad * x *
// d^(-beta - 1) over the window turned round).
//
// Layout:  channels first (outer, channels, inner): a thread owns kVector neighbours of an image and walks `steps`
//          times kStep channels, with those of the next kStages steps on their way to shared memory, where only their
//          own thread looks; x, terms of the sum and unfinished results of the last channels stay in registers. kLast
//          (outer, channels): a thread owns a vector of channels and fetches those before and after it too, from the
//          cache.
// Needs:   pointers aligned to kVector elements (kApart: to one); inner (kLast: channels) a multiple of kVector; kLast:
//          what a thread needs of its neighbours, kWindow / 2 channels on a side (gradient: kWindow - 1), at most
//          kVector; kWide where there are 2^31 threads or more.
// Bound:   memory: x (and grad) read once, the result written once.

#include "dnnarray/ptx/mbarrier.cuh"
#include "dnnarray/core/index.cuh"
#include "dnnarray/core/math.cuh"
#include "dnnarray/core/vec.cuh"
#include "dnnarray/ptx/cp_async.cuh"

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
  static constexpr int kStages = 3;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long size;
  long long channels;
  long long inner;
  long long steps;
  long long by_vectors;
  long long by_parts;
  double k;
  double alpha_size;
  double beta;
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
  return Config::kTiny ? rsqrt_approx(x) : rsqrt_approx_ftz(x);
}
__device__ __forceinline__ double reciprocal_root(double x) { return 1 / sqrt(x); }
// Of the reciprocal root of a float, which is never near the smallest ones.
__device__ __forceinline__ float root(float r) { return sqrt_approx_ftz(r); }
__device__ __forceinline__ double root(double r) { return sqrt(r); }
__device__ __forceinline__ float power(float x, float y) {
  return sizeof(T) == 2 ? ex2_approx_ftz(y * lg2_approx_ftz(x)) : powf(x, y);
}
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

// The sums of kWindow neighbours from each of the first N places on: of kReach of them each is the end of one run and
// the beginning of the next, so that a sum takes three additions however long the window is. `Of` says what stands at a
// place, and adds it to a sum.
template <int N, typename Of>
__device__ __forceinline__ void over_windows(const Of& of, A (&sums)[N]) {
#pragma unroll
  for (int start = 0; start < N; start += kReach) {
    A end[kReach], begin = A(0);
    end[kReach - 1] = of.at(start + kReach - 1);
#pragma unroll
    for (int i = kReach - 2; i >= 0; --i) end[i] = of.plus(end[i + 1], start + i);
#pragma unroll
    for (int i = 0; i < kReach && start + i < N; ++i) {
      begin = i == 0 ? of.at(start + kReach) : of.plus(begin, start + kReach + i);
      sums[start + i] = end[i] + begin;
    }
  }
}

struct Squares {
  const A* x;

  __device__ __forceinline__ A at(int i) const { return x[i] * x[i]; }
  __device__ __forceinline__ A plus(A sum, int i) const { return sum + x[i] * x[i]; }
};
struct Terms {
  const A* term;

  __device__ __forceinline__ A at(int i) const { return term[i]; }
  __device__ __forceinline__ A plus(A sum, int i) const { return sum + term[i]; }
};

// Channels last: the results of kVector channels from those of `held`, which begin kVector channels before; `inside`
// says which exist.
template <typename Inside>
__device__ __forceinline__ void at_once(const Vec<T, kVector> (&x)[3], const Vec<T, kVector> (&g)[3], Inside inside,
                                        const Numbers& n, A (&out)[kVector]) {
  constexpr int kTerms = kGradient ? kVector + kReach : kVector, kFirst = kVector - (kGradient ? kAfter : 0);
  A wide_x[3][kVector], wide_g[3][kVector], around[kTerms + kReach], energy[kTerms], terms[kVector + kReach];
#pragma unroll
  for (int side = 0; side < 3; ++side) {
    widen_all(wide_x[side], x[side]);
    if constexpr (kGradient) widen_all(wide_g[side], g[side]);
  }
#pragma unroll
  for (int j = 0; j < kTerms + kReach; ++j)
    around[j] = wide_x[(kFirst - kBefore + j) / kVector][(kFirst - kBefore + j) % kVector];
  over_windows(Squares{around}, energy);
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
    over_windows(Terms{terms}, along);
#pragma unroll
    for (int c = 0; c < kVector; ++c) out[c] -= A(2) * n.beta * n.alpha_size * wide_x[1][c] * along[c];
  }
}

// Channels first: what one element keeps from step to step. After a step its last channel is `ahead` channels behind
// the last x.
struct Walk {
  A x[kReach + kStep], terms[kReach + kStep], scaled[kBefore + kStep];

  // kStep channels on: their x, and the gradients of the channels kAfter before them, of which `exist` says which there
  // are. Gives results for the channels kAfter (gradient: kWindow - 1) before. A channel that is not there has x = grad
  // = 0 and so no term, but where its d is 0, and nothing that is not a number reaches its neighbours through it that
  // does not through their own windows.
  __device__ __forceinline__ void step(const A (&new_x)[kStep], const A (&new_g)[kStep], const bool (&exist)[kStep],
                                       const Numbers& n, A (&out)[kStep]) {
    A energy[kStep];
#pragma unroll
    for (int j = 0; j < kStep; ++j) x[kReach + j] = new_x[j];
    over_windows(Squares{x}, energy);
#pragma unroll
    for (int j = 0; j < kStep; ++j) {
      const Scale scale(energy[j], n);
      if constexpr (kGradient) {
        scaled[kBefore + j] = new_g[j] * scale.power_of;
        const A term = scaled[kBefore + j] * x[kBefore + j] * scale.inverse;
        terms[kReach + j] = !Config::kTiny || exist[j] ? term : A(0);
      } else {
        out[j] = x[kBefore + j] * scale.power_of;
      }
    }
    if constexpr (kGradient) {
      A along[kStep];
      over_windows(Terms{terms}, along);
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

// Channels first: kStep channels of x and grad, as they come, and those that are on their way behind them.
struct Rows {
  Wordwise<T, kVector> x[kStep], grad[kStep];
};
constexpr int kPiece = sizeof(T) * kVector, kArrays = kGradient ? 2 : 1;
constexpr bool kQueue = !Config::kLast && kPiece >= 4;  // what a copy to shared memory moves at the least
constexpr int kStages = Config::kStages;

// Rows that come through shared memory, a place for each stage and thread.
struct Queue {
  using Place = Vec<T, kVector>[kArrays][kStep][kThreads];
  Place* stages;
  int stage = 0;

  // The rows that were asked for kStages steps ago.
  __device__ __forceinline__ void take(Rows& rows) const {
    cp_async_wait_group<kStages - 1>();
#pragma unroll
    for (int j = 0; j < kStep; ++j) {
      rows.x[j] = load_wordwise<T, kVector>(stages[stage][0][j][threadIdx.x].at);
      if constexpr (kGradient) rows.grad[j] = load_wordwise<T, kVector>(stages[stage][kArrays - 1][j][threadIdx.x].at);
    }
  }
  // Row j of an array into the place that is empty; zeros where it is not there.
  __device__ __forceinline__ void bring(int array, int j, const T* from, bool there) const {
    cp_async<kPiece>(shared_address(&stages[stage][array][j][threadIdx.x]), from, there);
  }
  __device__ __forceinline__ void next() {
    cp_async_commit_group();
    if (++stage == kStages) stage = 0;
  }
};

// Rows that come to registers, one step ahead: of single elements of 16 bits.
struct Held {
  Rows rows;

  __device__ __forceinline__ void take(Rows& to) const { to = rows; }
  __device__ __forceinline__ void bring(int array, int j, const T* from, bool there) {
    Wordwise<T, kVector> found = {};
    if (there) found = load_wordwise<T, kVector>(from);
    (array == 0 ? rows.x : rows.grad)[j] = found;
  }
  __device__ __forceinline__ void next() {}
};

// Channels first: what a thread is to do, and where it stands.
struct Stretch {
  long long base, inner;
  int all, first, end;  // channels: how many there are, and those whose results the thread gives
};

template <typename Coming>
__device__ __forceinline__ void walk(Coming coming, int ahead, const T* __restrict__ grad, const T* __restrict__ x,
                                     T* __restrict__ out, const Stretch& own, const Numbers& numbers) {
  constexpr int kBehind = kGradient ? kReach : kAfter;  // channels from the last x to the last result
  int c = own.first - kBefore - (kGradient ? kAfter : 0),
      at = c;  // the first x that a result needs, and the next one to be brought
  const unsigned all_x = min(own.all, own.end + kBehind), all_g = min(own.all, own.end + kBehind - kAfter);
  const T *next_x = x + own.base + c * own.inner,
          *next_g = kGradient ? grad + own.base + (c - kAfter) * own.inner : nullptr;
  T* to = out + own.base + (c - kBehind) * own.inner;
  const auto bring = [&] {  // x from channel `at` on, grad from kAfter before
#pragma unroll
    for (int j = 0; j < kStep; ++j) {
      coming.bring(0, j, next_x + j * own.inner, static_cast<unsigned>(at + j) < all_x);
      if constexpr (kGradient)
        coming.bring(1, j, next_g + j * own.inner, static_cast<unsigned>(at + j - kAfter) < all_g);
    }
    coming.next();
    at += kStep, next_x += kStep * own.inner, next_g += kGradient ? kStep * own.inner : 0;
  };
  for (int s = 0; s < ahead; ++s) bring();
  Walk walks[kVector] = {};
#pragma unroll 2
  for (; c - kBehind < own.end; c += kStep) {
    Rows rows;
    coming.take(rows);
    A new_x[kVector][kStep], new_g[kVector][kStep], results[kVector][kStep];
    bool exist[kStep];
#pragma unroll
    for (int j = 0; j < kStep; ++j) {
      exist[j] = c + j >= kAfter && c + j < own.all + kAfter;
      A wide_x[kVector], wide_g[kVector] = {};
      widen_all(wide_x, rows.x[j]);
      if constexpr (kGradient) widen_all(wide_g, rows.grad[j]);
#pragma unroll
      for (int v = 0; v < kVector; ++v) new_x[v][j] = wide_x[v], new_g[v][j] = wide_g[v];
    }
    bring();
#pragma unroll
    for (int v = 0; v < kVector; ++v) walks[v].step(new_x[v], new_g[v], exist, numbers, results[v]);
#pragma unroll
    for (int j = 0; j < kStep; ++j, to += own.inner) {
      if (c + j - kBehind < own.first || c + j - kBehind >= own.end) continue;
      A row[kVector];
#pragma unroll
      for (int v = 0; v < kVector; ++v) row[v] = results[v][j];
      store(to, narrow_all<T, kVector>(row));
    }
  }
}

// `steps`: how many times kStep channels a thread takes, channels first. `by_vectors`, `by_parts`: the divisors for the
// vectors of an image (kLast: of a row) and for the stretches that its channels are cut into.
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks)
    DNNARRAY_ENTRY(const T* __restrict__ grad, const T* __restrict__ x, T* __restrict__ out,
                   const __grid_constant__ Arguments a) {
  const Numbers numbers = {A(a.k), A(a.alpha_size), A(a.beta)};
  const long long thread = static_cast<long long>(blockIdx.x) * kThreads + threadIdx.x;
  if constexpr (Config::kLast) {
    const long long i = thread * kVector;
    if (i >= a.size) return;
    const int vectors = static_cast<int>(a.channels / kVector),
              c = static_cast<int>(split_index<Config::kWide>(thread, vectors, a.by_vectors).remainder);
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
    const int stretch = static_cast<int>(a.steps) * kStep, all = static_cast<int>(a.channels);
    const Divided image = split_index<Config::kWide>(thread, a.inner / kVector, a.by_vectors);
    const Divided part = split_index<Config::kWide>(image.quotient, (all + stretch - 1) / stretch, a.by_parts);
    const int first = static_cast<int>(part.remainder) * stretch;
    const Stretch own = {part.quotient * a.channels * a.inner + image.remainder * kVector, a.inner, all, first,
                         min(first + stretch, all)};
    if (own.base >= a.size) return;
    if constexpr (kQueue) {
      __shared__ Queue::Place smem_stages[kStages];
      walk(Queue{smem_stages}, kStages, grad, x, out, own, numbers);
    } else {
      walk(Held{}, 1, grad, x, out, own, numbers);
    }
  }
}
