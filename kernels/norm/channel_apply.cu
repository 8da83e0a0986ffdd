// y = act(z) with z = (x - mean) * scale + shift + residual; for the gradient, g = act'(grad, z), dresidual = g and
// dx = rstd * (g * weight - average - slope * (x - mean)), or (kFixed) dx = rstd * g * weight where the statistics are
// no function of x. The coefficients belong to an instance, a (batch, channel) or a channel, and come from
// kernels/norm/channel_finish.cu, or (kGiven) straight from the statistics.
//
// With kSettled grad is what the sums left: the gradient before the activation, already the result `dresidual`.
//
// Layout:  channels first: flat memory, a vector a thread; instance = (i / inner) % instances. Channels last (batch,
//          rows, channels): a block owns kSide vectors of channels over `rows_step` rows, thread t the vector t % kSide
//          of every kThreads / kSide-th row, with the coefficients of its channels in registers. Blocks go from the end
//          of the array to its start: what the sums read last is still in the L2.
// Needs:   pointers aligned to kVector elements; channels last: channels a multiple of kVector, first: kStraddle says
//          how often the image may change within a vector, 0, 1 or 2 for more than once; kWide where there are 2^31
//          elements or more. kPlain: the statistics and parameters that are given are in the arithmetic type.
// Bound:   memory: each input read once, each output written once.

#include "dnnarray/core/activation.cuh"
#include "dnnarray/core/division.cuh"
#include "norm/channels.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Activation = dnnarray::Identity;
  static constexpr bool kGradient = false;
  static constexpr bool kLast = false;
  static constexpr bool kGiven = false;
  static constexpr bool kFixed = false;
  static constexpr bool kResidual = false;
  static constexpr bool kMore = false;
  static constexpr bool kSettled = false;
  static constexpr bool kPlain = true;
  static constexpr int kStraddle = 0;
  static constexpr bool kWide = false;
  static constexpr int kVector = 4;
  static constexpr int kSide = 1;
  static constexpr int kBatch = 4;
  static constexpr int kThreads = 128;
};
struct Arguments {
  const dnnarray::arithmetic_t<Config::Element>* coefficients;
  const dnnarray::arithmetic_t<Config::Element>* slopes;
  Config::Element* out;
  Config::Element* more;
  long long wide_mean;
  long long wide_variance;
  long long wide_weight;
  long long wide_bias;
  long long size;
  long long batch;
  long long channels;
  long long inner;
  long long rows_step;
  long long steps;
  long long inner_divisor;
  long long instances_divisor;
  double eps;
  double p;
  double q;
};
#define DNNARRAY_ENTRY norm_channel_apply_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kVector = Config::kVector, kSide = Config::kSide, kThreads = Config::kThreads, kSteps = kThreads / kSide;
constexpr int kBatch = Config::kBatch;  // vectors in flight, channels last

// Where a vector may need several coefficients registers decide, elsewhere the compiler knows best.
constexpr bool kTight = Config::kStraddle > 0 || !Config::kPlain || (Config::kLast && Config::kGradient);
constexpr int kMost = __CUDA_ARCH__ < 900 && Config::kGradient && Config::kMore
                          ? 10
                          : 12;  // more registers where the compiler needs them
constexpr int kBlocks = sizeof(A) > 4                                             ? 2
                        : kTight                                                  ? 4
                        : !Config::kLast && (Config::kGiven || Config::kResidual) ? kMost
                                                                                  : 0;  // of a multiprocessor
constexpr bool kFolded = !Config::kGradient && sizeof(T) == 2;

struct Arrays {
  const T *x, *grad, *residual;
  T *out, *more;
  A p, q;
};

// Where the coefficients come from: `affine` and `slopes`, or with kGiven the statistics and parameters themselves.
struct Source {
  const A *affine, *slopes;
  Parameter<T> mean, variance, weight, bias;
  A eps;
};

struct Coefficients {
  Affine<A> affine;
  Slope<A> slope;

  __device__ __forceinline__ static A value(const Parameter<T>& of, long long i, A absent) {
    return Config::kPlain ? Parameter<T>{of.data, true}.at(i, absent) : of.at(i, absent);
  }
  // What is rounded to a half type has digits to spare for the mean in the shift.
  __device__ __forceinline__ void fold() {
    if constexpr (kFolded) affine.shift -= affine.mean * affine.scale;
  }
  __device__ __forceinline__ void know(A mean, A variance, A weight, A bias, A eps) {
    const A rstd = sizeof(T) == 2 ? A(rsqrt_approx(float(variance + eps))) : A(1) / root_of(variance + eps);
    affine = {mean, rstd * weight, bias, rstd};
  }
  __device__ __forceinline__ void read(const Source& from, long long i) {
    if constexpr (Config::kGiven) {
      know(value(from.mean, i, A(0)), value(from.variance, i, A(1)), value(from.weight, i, A(1)),
           value(from.bias, i, A(0)), from.eps);
    } else {
      affine = reinterpret_cast<const Affine<A>*>(from.affine)[i];
    }
    if constexpr (Config::kGradient) slope = reinterpret_cast<const Slope<A>*>(from.slopes)[i];
    fold();
  }
};

// The coefficients of neighbouring channels.
__device__ __forceinline__ void read_neighbours(Coefficients (&to)[kVector], const Source& from, long long instances,
                                                long long i) {
  if constexpr (Config::kGiven && !Config::kPlain) {
#pragma unroll
    for (int v = 0; v < kVector; ++v) to[v].read(from, i + v);
  } else {
    A numbers[7][kVector];
    if constexpr (Config::kGiven) {
      const void* given[4] = {from.mean.data, from.variance.data, from.weight.data, from.bias.data};
#pragma unroll
      for (int k = 0; k < 4; ++k) {
#pragma unroll
        for (int v = 0; v < kVector; ++v) numbers[k][v] = k == 2 ? A(1) : A(0);
        if (given[k] != nullptr) read_all(numbers[k], static_cast<const A*>(given[k]) + i);
      }
    } else {
#pragma unroll
      for (int k = 0; k < 4; ++k) read_all(numbers[k], from.affine + k * instances + i);
    }
    if constexpr (Config::kGradient) {
#pragma unroll
      for (int k = 0; k < 3; ++k) read_all(numbers[4 + k], from.slopes + k * instances + i);
    }
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      if constexpr (Config::kGiven) {
        to[v].know(numbers[0][v], numbers[1][v], numbers[2][v], numbers[3][v], from.eps);
      } else {
        to[v].affine = {numbers[0][v], numbers[1][v], numbers[2][v], numbers[3][v]};
      }
      if constexpr (Config::kGradient) to[v].slope = {numbers[4][v], numbers[5][v], numbers[6][v], A(0)};
      to[v].fold();
    }
  }
}

// The result; `g` becomes the gradient before the activation.
__device__ __forceinline__ A evaluate(const Coefficients& c, A x, A& g, A residual, A p, A q) {
  if constexpr (kFolded) return Config::Activation::forward(x * c.affine.scale + c.affine.shift + residual, p, q);
  const A d = x - c.affine.mean, z = d * c.affine.scale + c.affine.shift + residual;
  if constexpr (Config::kGradient) {
    g = Config::Activation::gradient(g, z, p, q);
    if constexpr (Config::kFixed) return c.affine.rstd * (g * c.slope.weight);  // whatever x and the mean are
    const A along = rounded_product(g, c.slope.weight) - c.slope.average;  // 0 where a statistic has a single value
    return c.affine.rstd * (along - c.slope.slope * d);
  } else {
    return Config::Activation::forward(z, p, q);
  }
}

// How a vector is asked for: while the kernel before ends, or when the compiler likes.
struct AtOnce {
  __device__ __forceinline__ Wordwise<T, kVector> operator()(const T* p) const { return load_at_once<T, kVector>(p); }
};
struct InTime {
  __device__ __forceinline__ Wordwise<T, kVector> operator()(const T* p) const { return load_wordwise<T, kVector>(p); }
};

// One vector of each array, in words: several are under way, some of them under a predicate.
struct Piece {
  Wordwise<T, kVector> x, g, r;

  template <typename Load>
  __device__ __forceinline__ void fetch(const Arrays& arrays, long long at, Load load) {
    x = load(arrays.x + at);
    if constexpr (Config::kGradient) g = load(arrays.grad + at);
    if constexpr (Config::kResidual) r = load(arrays.residual + at);
  }
  // The results, with of(v) the coefficients of element v, which is called in order.
  template <typename Of>
  __device__ __forceinline__ void apply(const Arrays& arrays, long long at, Of of) const {
    A of_x[kVector], before[kVector] = {}, of_r[kVector] = {}, out[kVector];
    widen_all(of_x, x);
    if constexpr (Config::kGradient) widen_all(before, g);
    if constexpr (Config::kResidual) widen_all(of_r, r);
#pragma unroll
    for (int v = 0; v < kVector; ++v) out[v] = evaluate(of(v), of_x[v], before[v], of_r[v], arrays.p, arrays.q);
    store(arrays.out + at, narrow_all<T, kVector>(out));
    if constexpr (Config::kMore) store(arrays.more + at, narrow_all<T, kVector>(before));
  }
};

// Channels first: a piece that begins at i, `j` elements into the image of `plane`, whose coefficients are `c`.
__device__ __forceinline__ void apply_piece(const Piece& piece, Coefficients c, const Arrays& arrays,
                                            const Source& from, long long i, long long plane, long long j,
                                            long long inner, long long instances) {
  if constexpr (Config::kStraddle == 0) {
    piece.apply(arrays, i, [&](int) -> const Coefficients& { return c; });
  } else if constexpr (Config::kStraddle == 1) {
    Coefficients next;
    next.read(from, j + kVector > inner && plane + 1 < instances ? plane + 1 : j + kVector > inner ? 0 : plane);
    piece.apply(arrays, i, [&](int v) -> const Coefficients& { return j + v < inner ? c : next; });
  } else {
    piece.apply(arrays, i, [&](int v) -> const Coefficients& {
      if (v > 0 && ++j == inner) {
        j = 0;
        plane = plane + 1 < instances ? plane + 1 : 0;
        c.read(from, plane);
      }
      return c;
    });
  }
}

__device__ __forceinline__ void apply_single(const Arrays& arrays, const Coefficients& c, long long i) {
  A before = Config::kGradient ? widen(arrays.grad[i]) : A(0);
  const A residual = Config::kResidual ? widen(arrays.residual[i]) : A(0);
  arrays.out[i] = narrow<T>(evaluate(c, widen(arrays.x[i]), before, residual, arrays.p, arrays.q));
  if (Config::kMore) arrays.more[i] = narrow<T>(before);
}

// Null: what is absent. `batch` is 1 where instances are channels; `steps` times `rows_step` cover the rows of a batch
//       index.
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks)
    DNNARRAY_ENTRY(const T* __restrict__ x, const T* __restrict__ grad, const T* __restrict__ residual,
                   const void* __restrict__ mean, const void* __restrict__ variance, const void* __restrict__ weight,
                   const void* __restrict__ bias, const __grid_constant__ Arguments a) {
  const A *const coefficients = a.coefficients, *const slopes = a.slopes;
  T *const out = a.out, *const more = a.more;
  const long long wide_mean = a.wide_mean, wide_variance = a.wide_variance, wide_weight = a.wide_weight,
                  wide_bias = a.wide_bias, size = a.size, batch = a.batch, channels = a.channels, inner = a.inner,
                  rows_step = a.rows_step, steps = a.steps, inner_divisor = a.inner_divisor,
                  instances_divisor = a.instances_divisor;
  const double eps = a.eps;
  Arrays arrays = {x, grad, residual, out, more, A(a.p), A(a.q)};
  if constexpr (Config::kSettled) arrays.grad = after_previous_kernel(arrays.grad);
  Source from = {coefficients,
                 slopes,
                 {mean, wide_mean != 0},
                 {variance, wide_variance != 0},
                 {weight, wide_weight != 0},
                 {bias, wide_bias != 0},
                 A(eps)};
  const auto settle = [&] {  // x is on its way while the kernel before ends
    if constexpr (!Config::kGiven)
      from.affine = after_previous_kernel(from.affine), from.slopes = after_previous_kernel(from.slopes);
  };
  const long long block = gridDim.x - 1 - blockIdx.x, instances = batch * channels;
  if constexpr (Config::kLast) {
    const unsigned tiles = static_cast<unsigned>((channels / kVector + kSide - 1) / kSide),
                   of_batch = static_cast<unsigned>(steps);
    const unsigned place = static_cast<unsigned>(block) / tiles;
    const long long tile = static_cast<unsigned>(block) % tiles, step = place % of_batch, b = place / of_batch;
    const long long channel = (tile * kSide + threadIdx.x % kSide) * kVector;
    if (channel >= channels) return;
    const long long end = min((step + 1) * rows_step, inner);
    Piece pieces[kBatch];
    const auto fetch = [&](long long r, auto load) {
#pragma unroll
      for (int k = 0; k < kBatch; ++k)
        if (r + k * kSteps < end) pieces[k].fetch(arrays, (b * inner + r + k * kSteps) * channels + channel, load);
    };
    long long r = step * rows_step + threadIdx.x / kSide;
    fetch(r, AtOnce());
    settle();
    Coefficients c[kVector];
    read_neighbours(c, from, instances, b * channels + channel);
    for (; r < end; fetch(r, InTime())) {
#pragma unroll
      for (int k = 0; k < kBatch; ++k)
        if (r + k * kSteps < end)
          pieces[k].apply(arrays, (b * inner + r + k * kSteps) * channels + channel,
                          [&](int v) -> const Coefficients& { return c[v]; });
      r += kBatch * kSteps;
    }
  } else {
    const long long i = (block * kThreads + threadIdx.x) * kVector;
    if (i >= size) return;
    Piece piece;
    if (i + kVector <= size) piece.fetch(arrays, i, AtOnce());
    Coefficients c;
    long long plane, j;
    const auto locate = [&](long long at) {
      if constexpr (Config::kWide) {
        const long long q = at / inner;
        j = at - q * inner;
        plane = q % instances;
      } else {
        const Divisor by_inner(inner, inner_divisor), by_instances(instances, instances_divisor);
        const unsigned q = by_inner.quotient(static_cast<unsigned>(at));
        j = static_cast<unsigned>(at) - q * by_inner.n;
        plane = by_instances.remainder(q);
      }
      c.read(from, plane);
    };
    settle();
    locate(i);
    if (i + kVector <= size) {
      apply_piece(piece, c, arrays, from, i, plane, j, inner, instances);
    } else {
      for (long long at = i; at < size; ++at) {
        locate(at);
        apply_single(arrays, c, at);
      }
    }
  }
}
