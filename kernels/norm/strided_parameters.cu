// dweight[i] = sum over the statistics s of grad * u and dbias[i] = sum of grad, with u = (x (+ residual) - mean[s]) *
// rstd[s].
//
// Layout:  as in strided.cu, turned round: a block owns kSide neighbouring parameters, thread t the side t % kSide and
//          every kThreads / kSide-th statistic: kSide is 32 where neighbours of the summed axes are neighbours in
//          memory, else 1.
// Bound:   memory: grad and x read once.

#include "norm/axes.cuh"
#include "norm/statistics.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr int kSide = 32;
  static constexpr int kThreads = 256;
};
struct Arguments {
  const Config::Element* grad;
  const Config::Element* x;
  const Config::Element* residual;
  const dnnarray::arithmetic_t<Config::Element>* mean;
  const dnnarray::arithmetic_t<Config::Element>* rstd;
  void* dweight;
  void* dbias;
  long long wide_weight;
  long long wide_bias;
  long long statistics;
  long long count;
  dnnarray::Axes kept;
  dnnarray::Axes along;
};
#define DNNARRAY_ENTRY norm_strided_parameters_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kSide = Config::kSide, kThreads = Config::kThreads, kSteps = kThreads / kSide;

// `mean` is null for rms norm; dweight and dbias where they are not asked for.
extern "C" __global__ void __launch_bounds__(kThreads) DNNARRAY_ENTRY(const __grid_constant__ Arguments a) {
  const T *const grad = a.grad, *const x = a.x, *const residual = a.residual;
  const A *const mean = a.mean, *const rstd = a.rstd;
  void *const dweight = a.dweight, *const dbias = a.dbias;
  const long long wide_weight = a.wide_weight, wide_bias = a.wide_bias, statistics = a.statistics, count = a.count;
  const Axes kept = a.kept, along = a.along;
  __shared__ double smem[2][kThreads];
  const long long i = static_cast<long long>(blockIdx.x) * kSide + threadIdx.x % kSide;
  const int first = threadIdx.x / kSide;
  A of_weight = A(0), of_bias = A(0);
  if (i < count) {
    const long long base = along.offset(i);
    for (long long s = first; s < statistics; s += kSteps) {
      const long long at = base + kept.offset(s);
      const A g = widen(grad[at]), total = residual == nullptr ? widen(x[at]) : widen(x[at]) + widen(residual[at]);
      of_weight += g * ((total - (mean == nullptr ? A(0) : mean[s])) * rstd[s]);
      of_bias += g;
    }
  }
  smem[0][threadIdx.x] = double(of_weight);
  smem[1][threadIdx.x] = double(of_bias);
  __syncthreads();
#pragma unroll
  for (int half = kSteps / 2; half > 0; half /= 2) {
    if (threadIdx.x < half * kSide) {
      smem[0][threadIdx.x] += smem[0][threadIdx.x + half * kSide];
      smem[1][threadIdx.x] += smem[1][threadIdx.x + half * kSide];
    }
    __syncthreads();
  }
  if (first != 0 || i >= count) return;
  if (dweight != nullptr) put<T>(dweight, wide_weight != 0, i, A(smem[0][threadIdx.x]));
  if (dbias != nullptr) put<T>(dbias, wide_bias != 0, i, A(smem[1][threadIdx.x]));
}
