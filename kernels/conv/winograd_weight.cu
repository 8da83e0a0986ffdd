// Windows in Winograd's domain: u[point, c, k] = (G w G^T)[point], w the 3 x 3 window of output k and input c; in
// double, rounded once.
//
// Layout:  w by strides; u is points x C x K. A thread owns one window.
// Needs:   nothing.
// Bound:   memory, and small beside everything else.

#include "dnnarray/core/strides.cuh"
#include "conv/winograd.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long inputs;
  long long outputs;
  long long strides[4];
};
#define DNNARRAY_ENTRY conv_winograd_weight_default
#endif

using namespace dnnarray;

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const float* __restrict__ w, float* __restrict__ u, const __grid_constant__ Arguments a) {
  const long long unit = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x,
                  plane = a.inputs * a.outputs;
  if (unit >= plane) return;
  const Split at = split(unit, static_cast<int>(a.outputs));
  const float* from = w + at.rest * a.strides[0] + at.quotient * a.strides[1];
  double half[kWindow][kPatch];
#pragma unroll
  for (int i = 0; i < kWindow; ++i) {
    double row[kWindow];
#pragma unroll
    for (int j = 0; j < kWindow; ++j) row[j] = from[i * a.strides[2] + j * a.strides[3]];
    times<WeightTransform>(row, half[i]);
  }
#pragma unroll
  for (int j = 0; j < kPatch; ++j) {
    const double column[kWindow] = {half[0][j], half[1][j], half[2][j]};
    double result[kPatch];
    times<WeightTransform>(column, result);
#pragma unroll
    for (int i = 0; i < kPatch; ++i) u[(i * kPatch + j) * plane + unit] = static_cast<float>(result[i]);
  }
}
