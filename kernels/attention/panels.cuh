// Panels of half-type numbers in shared memory, which cp.async fills and the tensor cores read: for a warp's products
// (Panel) and a warpgroup's (Panels).
#pragma once

#include "dnnarray/mma/warp.cuh"
#include "dnnarray/mma/warpgroup.cuh"
#include "dnnarray/ptx/cp_async.cuh"
#include "dnnarray/ptx/ldmatrix.cuh"

namespace dnnarray {

// Rows of kWidth half-type numbers in shared memory, their 16-byte chunks exchanged so that eight rows of one chunk lie
// in eight banks.
template <int kWidth>
struct Panel {
  static constexpr int kChunks = kWidth / 8;
  unsigned start;

  static __device__ __forceinline__ unsigned offset(int row, int chunk) {
    return static_cast<unsigned>(row * kWidth * 2 + ((chunk ^ (row & 7)) << 4));
  }
  // A of rows `row` on and columns 16 `step` on.
  __device__ __forceinline__ void a(int row, int step, unsigned (&r)[4]) const {
    const int lane = threadIdx.x & 31;
    ldmatrix_x4(start + offset(row + (lane & 15), 2 * step + (lane >> 4)), r);
  }
  // Two neighbouring B whose columns are rows `row` to `row` + 15 here, and whose rows are columns 16 `step` on.
  __device__ __forceinline__ void b(int row, int step, unsigned (&r)[4]) const {
    const int lane = threadIdx.x & 31;
    ldmatrix_x4(start + offset(row + (lane & 7) + (lane >> 4) * 8, 2 * step + (lane >> 3 & 1)), r);
  }
  // Two neighbouring B whose rows are rows `row` to `row` + 15 here, and whose columns are chunks `chunk` and `chunk` +
  // 1.
  __device__ __forceinline__ void b_transposed(int row, int chunk, unsigned (&r)[4]) const {
    const int lane = threadIdx.x & 31;
    ldmatrix_x4_trans(start + offset(row + (lane & 15), chunk + (lane >> 4)), r);
  }
  // Bring kRows rows by kThreads threads; `at(row)` is null for a row of zeros, and features from `width` on are zeros.
  template <int kRows, int kThreads, typename T, typename At>
  __device__ __forceinline__ void fetch(const T* any, int width, At at) const {
    static_assert(kThreads % kChunks == 0 && kRows % (kThreads / kChunks) == 0, "whole rows at a time");
    const int chunk = threadIdx.x % kChunks, first = threadIdx.x / kChunks;
#pragma unroll
    for (int row = 0; row < kRows; row += kThreads / kChunks) {
      const T* p = at(row + first);
      const bool valid = p && chunk * 8 < width;
      cp_async_cg(start + offset(row + first, chunk), valid ? p + chunk * 8 : any, valid);
    }
  }
};

// What `value` depends on is computed before the next wait. The assembler moves waits up across arithmetic, but not
// across a barrier that follows a store. `marks` has a place for every thread of the block.
__device__ __forceinline__ void finish_before_wait(volatile float* marks, float value) {
  marks[threadIdx.x] = value;
  bar_sync<128>(1 + static_cast<int>(threadIdx.x) / 128);
}

// 64-element panels of kRows rows: where they begin, and what the instructions are told of them.
template <int kRows, int kWidth>
struct Panels {
  static constexpr int kChunks = kWidth / 8;
  static constexpr unsigned kBytes = kRows * kWidth * 2, kOne = kRows * 128;
  unsigned start;

  static __device__ __forceinline__ unsigned offset(int row, int chunk) {
    return chunk / 8 * kOne + row * 128 + ((chunk % 8 ^ (row & 7)) << 4);
  }
  // Rows `row` on as rows of A or columns of B, features 16 `step` on.
  __device__ __forceinline__ unsigned long long across(int row, int step) const {
    const unsigned at = start + step / 4 * kOne + row * 128 + step % 4 * 32;
    return static_cast<unsigned long long>(at >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
  }
  // All features as columns of B, rows 16 `step` on as its rows.
  __device__ __forceinline__ unsigned long long down(int step) const {
    const unsigned at = start + step * 2048;
    return static_cast<unsigned long long>(at >> 4) | static_cast<unsigned long long>(kOne >> 4) << 16 | 64ull << 32 |
           1ull << 62;
  }
  // Rows `step` apart from `origin` on, of which there are `rows`; zeros behind them and from `width` on.
  template <int kThreads, typename T>
  __device__ __forceinline__ void fetch(const T* any, const T* origin, long long step, long long rows,
                                        int width) const {
    constexpr int kAtOnce = kThreads / kChunks;
    static_assert(kThreads % kChunks == 0 && kAtOnce % 8 == 0, "whole rows, eight at a time");
    const int chunk = threadIdx.x % kChunks, first = threadIdx.x / kChunks;
    const int left = chunk * 8 < width ? static_cast<int>(rows < kRows ? rows : kRows) - first : 0;
    const T* p = origin + first * step + chunk * 8;
    const unsigned target = start + offset(first, chunk);
#pragma unroll
    for (int row = 0; row < kRows; row += kAtOnce, p += kAtOnce * step) {
      if (kRows % kAtOnce != 0 && row + first >= kRows) break;
      cp_async_cg(target + row * 128, row < left ? p : any, row < left);
    }
  }
  // As Panel::fetch.
  template <int kThreads, typename T, typename At>
  __device__ __forceinline__ void fetch(const T* any, int width, At at) const {
    static_assert(kThreads % kChunks == 0, "whole rows at a time");
    const int chunk = threadIdx.x % kChunks, first = threadIdx.x / kChunks;
#pragma unroll
    for (int row = 0; row < kRows; row += kThreads / kChunks) {
      if (kRows % (kThreads / kChunks) != 0 && row + first >= kRows) break;
      const T* p = at(row + first);
      const bool valid = p && chunk * 8 < width;
      cp_async_cg(start + offset(row + first, chunk), valid ? p + chunk * 8 : any, valid);
    }
  }
};

}  // namespace dnnarray
