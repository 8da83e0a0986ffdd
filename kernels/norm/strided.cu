// Layer and RMS norm over any axes, y = (s - mean) * rstd * weight + bias with s = x (+ residual), and the gradient
// with respect to s.
//
// Layout:  any strides, the same for all arrays of the shape of x; `kept` and `along` are the axes that statistics keep
//          and sum over, in C order, and weight and bias run along the latter. A block owns kSide neighbouring
//          statistics, thread t the side t % kSide and every kThreads / kSide-th element: kSide is 32 where neighbours
//          of the kept axes are neighbours in memory, else 1.
// Needs:   at most four kept and four summed axes (neighbours that are one axis in memory count as one).
// Bound:   memory, with x read twice (three times in the gradient); the general path, not the fast one.

#include "norm/axes.cuh"
#include "norm/statistics.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr bool kCentred = true;
  static constexpr bool kGradient = false;
  static constexpr int kSide = 1;
  static constexpr int kThreads = 256;
};
struct Arguments {
  const Config::Element* grad;
  const Config::Element* grad_sum;
  const Config::Element* x;
  const Config::Element* residual;
  const void* weight;
  const void* bias;
  const void* given_mean;
  const void* given_rstd;
  Config::Element* out;
  Config::Element* more;
  dnnarray::arithmetic_t<Config::Element>* mean_of;
  dnnarray::arithmetic_t<Config::Element>* rstd_of_row;
  long long wide_weight;
  long long wide_bias;
  long long wide_mean;
  long long wide_rstd;
  double eps;
  long long statistics;
  long long count;
  dnnarray::Axes kept;
  dnnarray::Axes along;
};
#define DNNARRAY_ENTRY norm_strided_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kSide = Config::kSide, kThreads = Config::kThreads, kSteps = kThreads / kSide;

__device__ __forceinline__ A value(const T* x, const T* residual, long long at) {
  return residual == nullptr ? widen(x[at]) : widen(x[at]) + widen(residual[at]);
}

struct Pair {
  double average, projection;
};

// Forward: out is y and more the sum; gradient: out is dx and more dresidual, `grad_sum` is added to both, and the
//          statistics that the
// gradients of the parameters need are written. Absent arrays are null.
extern "C" __global__ void __launch_bounds__(kThreads, 1) DNNARRAY_ENTRY(const __grid_constant__ Arguments a) {
  const T *const grad = a.grad, *const grad_sum = a.grad_sum, *const x = a.x, *const residual = a.residual;
  const void *const weight = a.weight, *const bias = a.bias, *const given_mean = a.given_mean,
                    *const given_rstd = a.given_rstd;
  T *const out = a.out, *const more = a.more;
  A *const mean_of = a.mean_of, *const rstd_of_row = a.rstd_of_row;
  const long long wide_weight = a.wide_weight, wide_bias = a.wide_bias, wide_mean = a.wide_mean,
                  wide_rstd = a.wide_rstd, statistics = a.statistics, count = a.count;
  const double eps = a.eps;
  const Axes kept = a.kept, along = a.along;
  __shared__ Moments smem[kThreads];
  const Parameter<T> w = {weight, wide_weight != 0}, b = {bias, wide_bias != 0};
  const Parameter<T> saved_mean = {given_mean, wide_mean != 0}, saved_rstd = {given_rstd, wide_rstd != 0};
  const long long wanted = static_cast<long long>(blockIdx.x) * kSide + threadIdx.x % kSide;
  const bool mine = wanted < statistics;
  const long long statistic = mine ? wanted : statistics - 1, base = kept.offset(statistic);
  const int first = threadIdx.x / kSide;

  const bool sample =
      Config::kCentred && first < count;  // rms norm leaves the shift at 0: its moments are those around 0
  Shifted<A> sums(sample ? value(x, residual, base + along.offset(first)) : A(0));
  if (given_rstd == nullptr || (Config::kCentred && given_mean == nullptr))
    for (long long i = first; i < count; i += kSteps) {
      const A s = value(x, residual, base + along.offset(i));
      if constexpr (Config::kCentred) {
        sums.add(s);
      } else {
        sums.square += s * s;
      }
    }
  const Moments own =
      Config::kCentred ? sums.moments((count - first + kSteps - 1) / kSteps) : Moments{1, 0, double(sums.square)};
  const Moments found =
      over_steps<kSide, kThreads>(own, [](const Moments& p, const Moments& q) { return merge(p, q); }, smem);
  const double n = count > 0 ? double(count) : 1.0;
  const A mean = Config::kCentred ? saved_mean.at(statistic, A(found.mean)) : A(0);
  const A rstd = saved_rstd.at(statistic, A(1.0 / sqrt(found.square / n + eps)));
  if (mine && first == 0) {
    if (mean_of != nullptr) mean_of[statistic] = mean;
    if (rstd_of_row != nullptr) rstd_of_row[statistic] = rstd;
  }
  if constexpr (!Config::kGradient) {
    const A delta = Config::kCentred ? A(found.mean - double(mean)) : A(0);
    if (!mine) return;
    for (long long i = first; i < count; i += kSteps) {
      const long long at = base + along.offset(i);
      const A s = value(x, residual, at);
      if (more != nullptr) more[at] = narrow<T>(s);
      out[at] = narrow<T>(((s - mean) - delta) * rstd * w.at(i, A(1)) + b.at(i, A(0)));
    }
  } else {
    A average = A(0), projection = A(0);
    for (long long i = first; i < count; i += kSteps) {
      const long long at = base + along.offset(i);
      const A h = rounded_product(widen(grad[at]), w.at(i, A(1)));
      average += h;
      projection += h * ((value(x, residual, at) - mean) * rstd);
    }
    const auto add = [](const Pair& p, const Pair& q) {
      return Pair{p.average + q.average, p.projection + q.projection};
    };
    const Pair all = over_steps<kSide, kThreads>(Pair{average, projection}, add, reinterpret_cast<Pair*>(smem));
    average = Config::kCentred ? A(all.average / n) : A(0);
    projection = A(all.projection / n);
    if (!mine) return;
    for (long long i = first; i < count; i += kSteps) {
      const long long at = base + along.offset(i);
      const A u = (value(x, residual, at) - mean) * rstd;
      A d = rstd * (rounded_product(widen(grad[at]), w.at(i, A(1))) - average - u * projection);
      if (grad_sum != nullptr) d += widen(grad_sum[at]);
      out[at] = narrow<T>(d);
      if (more != nullptr) more[at] = narrow<T>(d);
    }
  }
}
