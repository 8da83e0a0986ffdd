// Tiles of attention on ordinary arithmetic units: 256 threads hold a tile of rows x columns, each a patch of kPatch x
// kPatch; the operands of a product lie in shared memory with the index of the sum running slowest, so that a thread
// reads its part as one vector.
#pragma once

#include "dnnarray/core/vec.cuh"

namespace dnnarray {

constexpr int kSide = 16;  // threads along either side of a tile
constexpr int kTileThreads = kSide * kSide;

// kPatch: rows and columns of a thread. kDepth: terms of a product that are staged at once. kValues: columns of the
// result.
template <typename T, int kPatch_, int kDepth_, int kValues_, int kVector_>
struct Tiles {
  using A = arithmetic_t<T>;
  static constexpr int kPatch = kPatch_, kDepth = kDepth_, kValues = kValues_, kVector = kVector_;
  static constexpr int kTile = kSide * kPatch;      // rows, and columns, of a tile
  static constexpr int kPitch = kTile + 4;          // of one term in shared memory; keeps vectors of four aligned
  static constexpr int kOwn = kValues / kSide;      // columns of the result that a thread holds
  static constexpr int kRun = kOwn < 4 ? kOwn : 4;  // of these, how many lie side by side
  static constexpr int kStaged = kDepth * kPitch;   // elements of one staged operand
  static constexpr int kWeights = kTile * kPitch;
  static constexpr int kRows = kDepth * kValues;  // elements of the staged rows of the second product

  static __device__ __forceinline__ int row() { return threadIdx.x / kSide; }
  static __device__ __forceinline__ int column() { return threadIdx.x % kSide; }

  // Features `d` to `d` + kDepth - 1 of kTile rows, transposed; zeros where `at(row)` is null or past the width.
  template <typename At>
  static __device__ __forceinline__ void stage(A* staged, long long d, long long width, long long step, At at) {
    constexpr int kAcross = kDepth / kVector;
#pragma unroll 2
    for (int n = threadIdx.x; n < kTile * kAcross; n += kTileThreads) {
      const int r = n / kAcross, c = n % kAcross * kVector;
      const T* p = at(r);
      if (p && d + c < width) {
        const Vec<T, kVector> part = load<T, kVector>(p + (d + c) * step);
#pragma unroll
        for (int k = 0; k < kVector; ++k) staged[(c + k) * kPitch + r] = widen(part.at[k]);
      } else {
#pragma unroll
        for (int k = 0; k < kVector; ++k) staged[(c + k) * kPitch + r] = A(0);
      }
    }
  }

  // kDepth rows, features `d` to `d` + kValues - 1 of each.
  template <typename At>
  static __device__ __forceinline__ void stage_rows(A* staged, long long d, long long width, long long step, At at) {
    constexpr int kAcross = kValues / kVector;
#pragma unroll 2
    for (int n = threadIdx.x; n < kDepth * kAcross; n += kTileThreads) {
      const int r = n / kAcross, c = n % kAcross * kVector;
      const T* p = at(r);
      if (p && d + c < width) {
        const Vec<T, kVector> part = load<T, kVector>(p + (d + c) * step);
#pragma unroll
        for (int k = 0; k < kVector; ++k) staged[r * kValues + c + k] = widen(part.at[k]);
      } else {
#pragma unroll
        for (int k = 0; k < kVector; ++k) staged[r * kValues + c + k] = A(0);
      }
    }
  }

  // sum[i][j] += the products of kDepth terms of two staged operands.
  static __device__ __forceinline__ void multiply(const A* left, const A* right, A (&sum)[kPatch][kPatch]) {
#pragma unroll 4
    for (int d = 0; d < kDepth; ++d) {
      const Vec<A, kPatch> a = load<A, kPatch>(left + d * kPitch + row() * kPatch),
                           b = load<A, kPatch>(right + d * kPitch + column() * kPatch);
#pragma unroll
      for (int i = 0; i < kPatch; ++i)
#pragma unroll
        for (int j = 0; j < kPatch; ++j) sum[i][j] += a.at[i] * b.at[j];
    }
  }

  // The whole product of kTile rows on either side.
  template <typename At, typename Bt>
  static __device__ __forceinline__ void product(A* left, A* right, long long width, long long step_a, At a,
                                                 long long step_b, Bt b, A (&sum)[kPatch][kPatch]) {
#pragma unroll
    for (int i = 0; i < kPatch; ++i)
#pragma unroll
      for (int j = 0; j < kPatch; ++j) sum[i][j] = 0;
    long long d = 0;
    do {  // once at least: what comes next relies on the barriers
      __syncthreads();
      stage(left, d, width, step_a, a);
      stage(right, d, width, step_b, b);
      __syncthreads();
      multiply(left, right, sum);
      d += kDepth;
    } while (d < width);
  }

  // The patch of weights into shared memory, transposed.
  static __device__ __forceinline__ void put(A* weights, const A (&w)[kPatch][kPatch]) {
#pragma unroll
    for (int j = 0; j < kPatch; ++j) {
      Vec<A, kPatch> part;
#pragma unroll
      for (int i = 0; i < kPatch; ++i) part.at[i] = w[i][j];
      *reinterpret_cast<Vec<A, kPatch>*>(weights + (column() * kPatch + j) * kPitch + row() * kPatch) = part;
    }
  }

  // total[i][...] += weights times kTile rows, which `at(row)` gives; the weights lie in shared memory already.
  template <typename At>
  static __device__ __forceinline__ void accumulate(const A* weights, A* rows, long long d, long long width,
                                                    long long step, At at, A (&total)[kPatch][kOwn]) {
    for (int k = 0; k < kTile; k += kDepth) {
      __syncthreads();
      stage_rows(rows, d, width, step, [&](int r) { return at(k + r); });
      __syncthreads();
#pragma unroll 2
      for (int r = 0; r < kDepth; ++r) {
        const Vec<A, kPatch> w = load<A, kPatch>(weights + (k + r) * kPitch + row() * kPatch);
#pragma unroll
        for (int c = 0; c < kOwn; c += kRun) {
          const Vec<A, kRun> v = load<A, kRun>(rows + r * kValues + c * kSide + column() * kRun);
#pragma unroll
          for (int i = 0; i < kPatch; ++i)
#pragma unroll
            for (int n = 0; n < kRun; ++n) total[i][c + n] += w.at[i] * v.at[n];
        }
      }
    }
  }

  // Which feature of the slice element c of `total` is.
  static __device__ __forceinline__ int feature(int c) { return c / kRun * kRun * kSide + column() * kRun + c % kRun; }
};

}  // namespace dnnarray
