// Layer and RMS norm over rows of any length: y = (s - mean) * rstd * weight + bias with s = x (+ residual), and the
// gradient dx = rstd * (h - average(h) - u * average(h * u)) (+ the gradient of the sum) with h = grad * weight, u = (s
// - mean) * rstd.
//
// Layout:  rows of contiguous columns, a block per row, thread t the vectors t, t + kThreads, ...; the last round runs
//          backwards, so that it begins with what is still in the cache.
// Needs:   columns a multiple of kVector; pointers aligned to kVector elements.
// Bound:   memory: x (and grad) read twice, the second time from the L2 cache as far as the rows at work fit there.

#include "dnnarray/core/vec.cuh"
#include "norm/statistics.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Weight = float;
  using Bias = float;
  static constexpr bool kCentred = true;
  static constexpr bool kAdd = false;
  static constexpr bool kGradient = false;
  static constexpr int kVector = 4;
  static constexpr int kThreads = 512;
};
struct Arguments {
  const void* given_mean;
  const void* given_rstd;
  Config::Element* more;
  dnnarray::arithmetic_t<Config::Element>* mean_of;
  dnnarray::arithmetic_t<Config::Element>* rstd_of_row;
  long long columns;
  double eps;
  long long wide_mean;
  long long wide_rstd;
};
#define DNNARRAY_ENTRY norm_long_rows_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kVector = Config::kVector, kThreads = Config::kThreads, kStep = kThreads * kVector;

struct Values {
  A at[kVector];
};

template <typename P>
__device__ __forceinline__ Values read(const P* from, long long j) {
  constexpr int kPiece = kVector * sizeof(P) > 16 ? 16 / sizeof(P) : kVector;
  Values to;
#pragma unroll
  for (int start = 0; start < kVector; start += kPiece) {
    const auto piece = load<P, kPiece>(from + j + start);
#pragma unroll
    for (int v = 0; v < kPiece; ++v) to.at[start + v] = widen(piece.at[v]);
  }
  return to;
}

template <typename P>
__device__ __forceinline__ Values read_or(const P* from, long long j, A absent) {
  if (from != nullptr) return read(from, j);
  Values to;
#pragma unroll
  for (int v = 0; v < kVector; ++v) to.at[v] = absent;
  return to;
}

__device__ __forceinline__ Values input(const T* x, const T* residual, long long at) {
  Values s = read(x, at);
  if constexpr (Config::kAdd) {
    const Values r = read(residual, at);
#pragma unroll
    for (int v = 0; v < kVector; ++v) s.at[v] += r.at[v];
  }
  return s;
}

__device__ __forceinline__ void write(T* to, long long at, const Values& values) {
  Vec<T, kVector> out;
#pragma unroll
  for (int v = 0; v < kVector; ++v) out.at[v] = narrow<T>(values.at[v]);
  store(to + at, out);
}

// The moments of the row, for rms norm around 0.
__device__ __forceinline__ Moments statistics(const T* x, const T* residual, long long start, long long columns,
                                              Moments* smem) {
  const long long first = static_cast<long long>(threadIdx.x) * kVector;
  Shifted<A> sums(Config::kCentred && first < columns ? input(x, residual, start + first).at[0] : A(0));
  long long count = 0;
#pragma unroll 4
  for (long long j = first; j < columns; j += kStep) {
    const Values s = input(x, residual, start + j);
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      if constexpr (Config::kCentred) {
        sums.add(s.at[v]);
      } else {
        sums.square += s.at[v] * s.at[v];
      }
    }
    count += kVector;
  }
  const Moments own = Config::kCentred ? sums.moments(count) : Moments{1, 0, double(sums.square)};
  return over_steps<1, kThreads>(own, [](const Moments& p, const Moments& q) { return merge(p, q); }, smem);
}

// Forward: out is y and more the sum; gradient: out is dx and more dresidual. Absent arrays are null.
extern "C" __global__ void __launch_bounds__(kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ grad, const T* __restrict__ grad_sum, const T* __restrict__ x,
                   const T* __restrict__ residual, const Config::Weight* __restrict__ weight,
                   const Config::Bias* __restrict__ bias, T* __restrict__ out, const __grid_constant__ Arguments a) {
  __shared__ Moments smem[kThreads];
  const Parameter<T> saved_mean = {a.given_mean, a.wide_mean != 0}, saved_rstd = {a.given_rstd, a.wide_rstd != 0};
  const long long row = blockIdx.x, start = row * a.columns;
  const double n = a.columns > 0 ? double(a.columns) : 1.0;
  Moments found = {0, 0, 0};
  if (a.given_rstd == nullptr || (Config::kCentred && a.given_mean == nullptr))
    found = statistics(x, residual, start, a.columns, smem);
  const A mean = Config::kCentred ? saved_mean.at(row, A(found.mean)) : A(0);
  const A rstd = saved_rstd.at(row, A(1.0 / sqrt(found.square / n + a.eps)));
  if (threadIdx.x == 0) {
    if (a.mean_of != nullptr) a.mean_of[row] = mean;
    if (a.rstd_of_row != nullptr) a.rstd_of_row[row] = rstd;
  }
  const long long first = static_cast<long long>(threadIdx.x) * kVector;
  const long long last = first < a.columns ? first + (a.columns - 1 - first) / kStep * kStep : -1;
  if constexpr (!Config::kGradient) {
    const A delta = Config::kCentred ? A(found.mean - double(mean)) : A(0);
#pragma unroll 2
    for (long long j = last; j >= 0; j -= kStep) {
      Values s = input(x, residual, start + j);
      const Values w = read_or(weight, j, A(1)), b = read_or(bias, j, A(0));
      if constexpr (Config::kAdd) write(a.more, start + j, s);
#pragma unroll
      for (int v = 0; v < kVector; ++v) s.at[v] = ((s.at[v] - mean) - delta) * rstd * w.at[v] + b.at[v];
      write(out, start + j, s);
    }
  } else {
    A average = A(0), projection = A(0), *smem_sums = reinterpret_cast<A*>(smem);
#pragma unroll 2
    for (long long j = first; j < a.columns; j += kStep) {
      const Values s = input(x, residual, start + j), g = read(grad, start + j), w = read_or(weight, j, A(1));
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        const A h = rounded_product(g.at[v], w.at[v]);
        average += h;
        projection += h * ((s.at[v] - mean) * rstd);
      }
    }
    block_reduce<kThreads>(average, Sum(), projection, Sum(), smem_sums);
    average = Config::kCentred ? average / A(n) : A(0);
    projection /= A(n);
#pragma unroll 2
    for (long long j = last; j >= 0; j -= kStep) {
      Values s = input(x, residual, start + j);
      const Values g = read(grad, start + j), w = read_or(weight, j, A(1)), plus = read_or(grad_sum, start + j, A(0));
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        const A u = (s.at[v] - mean) * rstd;
        s.at[v] = rstd * (rounded_product(g.at[v], w.at[v]) - average - u * projection) + plus.at[v];
      }
      write(out, start + j, s);
      if constexpr (Config::kAdd) write(a.more, start + j, s);
    }
  }
}
