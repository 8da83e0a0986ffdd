// Products of spectra: c[g, i, j, f] = sum over l of a[g, i, l, f] * conj(b[g, j, l, f]), added to c where `adds` is
// set.
//
// Layout:  complex numbers as pairs of floats, the frequency running fastest; the other axes by strides, in complex
//          numbers. A thread owns one frequency and kI x kJ sums of it, a block kThreads neighbouring frequencies; the
//          tiles of (i, j) of the same frequencies run side by side.
// Needs:   pointers to 8 bytes.
// Bound:   second-level cache: kI + kJ numbers are read for kI * kJ products.

#include "dnnarray/core/index.cuh"
#include "dnnarray/core/vec.cuh"
#include "dnnarray/core/strides.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  static constexpr int kTileI = 4;
  static constexpr int kTileJ = 4;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long frequencies;
  int groups;
  long long ni;
  long long nj;
  long long nl;
  long long left_strides[3];
  long long right_strides[3];
  long long out_strides[3];
  int adds;
};
#define DNNARRAY_ENTRY conv_spectral_product_default
#endif

using namespace dnnarray;
constexpr int kI = Config::kTileI, kJ = Config::kTileJ;
using Complex = Vec<float, 2>;

// Pointers to the first term of each of N rows; rows behind the last one stand for it.
template <int N>
struct Rows {
  const float* at[N];

  __device__ __forceinline__ Rows(const float* p, long long first, long long count, long long step) {
#pragma unroll
    for (int r = 0; r < N; ++r) at[r] = p + 2 * (first + r < count ? first + r : count - 1) * step;
  }
  __device__ __forceinline__ void take(Complex (&reg)[N], long long offset) const {
#pragma unroll
    for (int r = 0; r < N; ++r) reg[r] = load<float, 2>(at[r] + offset);
  }
};

__device__ __forceinline__ void add_product(Complex& sum, const Complex& a, const Complex& b) {
  sum.at[0] = fmaf(a.at[1], b.at[1], fmaf(a.at[0], b.at[0], sum.at[0]));
  sum.at[1] = fmaf(-a.at[0], b.at[1], fmaf(a.at[1], b.at[0], sum.at[1]));
}

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const float* __restrict__ left, const float* __restrict__ right, float* __restrict__ out,
                   const __grid_constant__ Arguments a) {
  const long long ni = a.ni, nj = a.nj, nl = a.nl, left_l = a.left_strides[2], right_l = a.right_strides[2];
  const int tiles_i = static_cast<int>((ni + kI - 1) / kI), tiles_j = static_cast<int>((nj + kJ - 1) / kJ);
  const Split by_j = split(blockIdx.x, tiles_j), by_i = split(by_j.quotient, tiles_i),
              by_g = split(by_i.quotient, a.groups);
  const long long f = by_g.quotient * Config::kThreads + threadIdx.x, g = by_g.rest;
  if (f >= a.frequencies) return;
  const long long i0 = static_cast<long long>(by_i.rest) * kI, j0 = static_cast<long long>(by_j.rest) * kJ;
  const Rows<kI> rows_a(left + 2 * (g * a.left_strides[0] + f), i0, ni, a.left_strides[1]);
  const Rows<kJ> rows_b(right + 2 * (g * a.right_strides[0] + f), j0, nj, a.right_strides[1]);
  Complex sums[kI][kJ] = {};
#pragma unroll 2
  for (long long l = 0; l < nl; ++l) {
    Complex reg_a[kI], reg_b[kJ];
    rows_a.take(reg_a, 2 * l * left_l);
    rows_b.take(reg_b, 2 * l * right_l);
#pragma unroll
    for (int i = 0; i < kI; ++i)
#pragma unroll
      for (int j = 0; j < kJ; ++j) add_product(sums[i][j], reg_a[i], reg_b[j]);
  }
#pragma unroll
  for (int i = 0; i < kI; ++i) {
#pragma unroll
    for (int j = 0; j < kJ; ++j) {
      if (i0 + i >= ni || j0 + j >= nj) continue;
      float* at = out + 2 * (g * a.out_strides[0] + (i0 + i) * a.out_strides[1] + (j0 + j) * a.out_strides[2] + f);
      if (a.adds) {
        const Complex before = load<float, 2>(at);
        sums[i][j].at[0] += before.at[0];
        sums[i][j].at[1] += before.at[1];
      }
      store(at, sums[i][j]);
    }
  }
}
