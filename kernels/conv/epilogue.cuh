// What a tile of sums in registers becomes in memory: bias, residual and activation behind a matrix product of the
// tensor cores.
//
// Four neighbouring lanes hold a row of 8 columns in pairs, as all mma and wgmma instructions leave it.
#pragma once

#include "dnnarray/core/activation.cuh"
#include "conv/geometry.cuh"
#include "dnnarray/core/vec.cuh"

namespace dnnarray {

// Where results go: `outs` channels of a group; y and residual by steps along batch and space, their channels dense.
template <typename T, typename R>
struct Target {
  const T *bias, *residual;
  R* y;
  int outs;
  long long y_n, y_d, y_h, y_w;
  float p, q;

  // Where the channels of output pixel m begin.
  __device__ __forceinline__ long long row(const ConvAxes& axes, long long m) const {
    const Split by_w = split(m, axes.w.out), by_h = split(by_w.quotient, axes.h.out),
                by_d = split(by_h.quotient, axes.d.out);
    return by_d.quotient * y_n + by_d.rest * y_d + by_h.rest * y_h + by_w.rest * y_w;
  }
};

// As the arguments of a kernel say.
template <typename T, typename R, typename Arguments>
__device__ __forceinline__ Target<T, R> target_of(const T* bias, const T* residual, R* y, const Arguments& a) {
  const PixelStrides& s = a.y_strides;
  return {bias, residual, y, a.outs, s.n, s.d, s.h, s.w, static_cast<float>(a.p), static_cast<float>(a.q)};
}

// Two neighbours of the result, of a half type.
template <typename Activation>
struct Finished {
  template <typename R>
  static __device__ __forceinline__ unsigned pair(float low, float high, float p, float q, R kind) {
    return narrow_pair(Activation::forward(low, p, q), Activation::forward(high, p, q), kind);
  }
};
template <>
struct Finished<Relu> {
  template <typename R>
  static __device__ __forceinline__ unsigned pair(float low, float high, float, float, R kind) {
    return rectified_pair(low, high, kind);
  }
};

// Pair i of lane q of four becomes pair q of lane i: 8 columns in a row for each lane.
__device__ __forceinline__ void transpose_pairs(unsigned (&v)[4]) {
  const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const unsigned got = __shfl_xor_sync(0xffffffffu, odd ? v[i] : v[i + 1], 1);
    (odd ? v[i] : v[i + 1]) = got;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const unsigned got = __shfl_xor_sync(0xffffffffu, high ? v[i] : v[i + 2], 2);
    (high ? v[i] : v[i + 2]) = got;
  }
}

// One row of the lane's sums, kColumns of it from channel n of a group on; `half` picks the row of the two that a lane
// holds. C is the kernel's Config. The lanes of a warp come together, `there` or not.
template <typename C, int kColumns, typename T, typename R>
__device__ __forceinline__ void write_row(const Target<T, R>& target, const float (&sums)[kColumns / 2], int half,
                                          int group, int first, long long at, bool there) {
  const int q = threadIdx.x % 4;
  at += static_cast<long long>(group) * target.outs;
#pragma unroll
  for (int j = 0; j < kColumns / 32; ++j) {
    unsigned pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int n = first + (4 * j + i) * 8 + q * 2;
      const bool inside = there && n < target.outs;
      float v[2] = {sums[(4 * j + i) * 4 + half * 2], sums[(4 * j + i) * 4 + half * 2 + 1]};
      if (C::kBias && inside) {
        const Vec<T, 2> bias = load<T, 2>(target.bias + group * target.outs + n);
        v[0] += widen(bias.at[0]), v[1] += widen(bias.at[1]);
      }
      if (C::kResidual && inside) {
        const Vec<T, 2> residual = load<T, 2>(target.residual + at + n);
        v[0] += widen(residual.at[0]), v[1] += widen(residual.at[1]);
      }
      if constexpr (sizeof(R) == 4) {
        v[0] = C::Activation::forward(v[0], target.p, target.q),
        v[1] = C::Activation::forward(v[1], target.p, target.q);
        if (inside) store(target.y + at + n, Vec<R, 2>{{narrow<R>(v[0]), narrow<R>(v[1])}});
      } else {
        pairs[i] = Finished<typename C::Activation>::pair(v[0], v[1], target.p, target.q, R());
      }
    }
    if constexpr (sizeof(R) == 2) {
      transpose_pairs(pairs);
      const int n = first + (4 * j + q) * 8;
      const Vec<unsigned, 4> row = {{pairs[0], pairs[1], pairs[2], pairs[3]}};
      if (there && n < target.outs) store(reinterpret_cast<unsigned*>(target.y + at + n), row);
    }
  }
}

}  // namespace dnnarray
