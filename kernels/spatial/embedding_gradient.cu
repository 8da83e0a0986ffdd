// dweight[r, :] = the sum of grad[i, :] over the i with indices[i] = r, in the order of i: the same bits from run to run.
//
// Stages:  0 clears the counts, 1 counts the entries of each row, 2 turns counts into starts, 3 lists the entries of each row (in the order
//          the threads came), 4 sorts each list and adds up. A row with more entries than kList walks over all indices instead.
// Layout:  indices (count), grad (count, length) in C order; dweight by its strides. In stage 4 a block owns one row and kThreads vectors of
//          it; a thread owns one vector of kVector elements. `heads` holds counts, then starts, then cursors, of `rows` each.
// Needs:   pointers and the length aligned to kVector elements; count and rows below 2^31. An index that is no row is left out.
// Bound:   memory: grad read once, dweight written once; rows with more than kList entries cost a walk over the indices each.

#include "dnnarray/window.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Index = long long;
  static constexpr int kStage = 4;
  static constexpr int kVector = 4;
  static constexpr int kThreads = 128;
};
#define DNNARRAY_ENTRY spatial_embedding_gradient_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
using Index = Config::Index;
using V = Vec<T, Config::kVector>;
constexpr int kVector = Config::kVector, kThreads = Config::kThreads, kList = 1024;

__shared__ int smem_list[kList], smem_sorted[kList], smem_counts[kThreads];

// Sum of what the threads before this one have; smem_counts ends with the sums up to each thread.
__device__ __forceinline__ int sum_before(int own, int& total) {
  const int tid = threadIdx.x;
  smem_counts[tid] = own;
  __syncthreads();
  for (int step = 1; step < kThreads; step *= 2) {
    const int other = tid >= step ? smem_counts[tid - step] : 0;
    __syncthreads();
    smem_counts[tid] += other;
    __syncthreads();
  }
  total = smem_counts[kThreads - 1];
  const int before = smem_counts[tid] - own;
  __syncthreads();
  return before;
}

// Stage 2, one block: starts[r] = counts[0] + ... + counts[r - 1], and the cursors are set to 0.
__device__ __forceinline__ void scan(int* heads, int rows) {
  const int each = (rows + kThreads - 1) / kThreads, first = threadIdx.x * each, last = min(first + each, rows);
  int own = 0, total;
  for (int r = first; r < last; ++r) own += heads[r];
  int start = sum_before(own, total);
  for (int r = first; r < last; ++r) {
    heads[rows + r] = start;
    heads[2 * static_cast<long long>(rows) + r] = 0;
    start += heads[r];
  }
}

// sum += grad[list[k], :] for k in order.
__device__ __forceinline__ void add(A (&sum)[kVector], const T* grad, const int* list, int count, long long length) {
#pragma unroll 4
  for (int k = 0; k < count; ++k) {
    const V g = load<T, kVector>(grad + list[k] * length);
#pragma unroll
    for (int j = 0; j < kVector; ++j) sum[j] += widen(g.at[j]);
  }
}

// A list that fits: every entry counts how many are smaller, which is where it belongs.
__device__ __forceinline__ void sort(const int* entries, int count) {
  for (int k = threadIdx.x; k < count; k += kThreads) smem_list[k] = entries[k];
  __syncthreads();
  for (int k = threadIdx.x; k < count; k += kThreads) {
    const int own = smem_list[k];
    int smaller = 0;
    for (int other = 0; other < count; ++other) smaller += smem_list[other] < own;
    smem_sorted[smaller] = own;
  }
  __syncthreads();
}

// Lists the entries of a row among indices [first, first + kList) in order; gives how many there are.
__device__ __forceinline__ int list_part(const Index* indices, int first, int count, long long row) {
  constexpr int kEach = kList / kThreads;
  int own = 0, total;
  bool found[kEach];
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int i = first + threadIdx.x * kEach + k;
    found[k] = i < count && i >= first && static_cast<long long>(indices[i]) == row;
    own += found[k];
  }
  int at = sum_before(own, total);
#pragma unroll
  for (int k = 0; k < kEach; ++k)
    if (found[k]) smem_sorted[at++] = first + threadIdx.x * kEach + k;
  __syncthreads();
  return total;
}

__device__ __forceinline__ void add_row(const T* grad, const Index* indices, T* dweight, const int* heads, const int* entries, int count,
                                        int rows, long long length, long long padding, long long row_step, long long column_step) {
  const int row = blockIdx.x, entries_here = row == padding ? 0 : heads[row];
  const long long column = (static_cast<long long>(blockIdx.y) * kThreads + threadIdx.x) * kVector;
  const bool inside = column < length;
  A sum[kVector] = {};
  if (entries_here <= kList) {
    sort(entries + heads[rows + row], entries_here);
    if (inside) add(sum, grad + column, smem_sorted, entries_here, length);
  } else {
    for (long long first = 0; first < count; first += kList) {
      const int listed = list_part(indices, static_cast<int>(first), count, row);
      if (inside) add(sum, grad + column, smem_sorted, listed, length);
      __syncthreads();
    }
  }
  if (!inside) return;
  V reg_y;
#pragma unroll
  for (int j = 0; j < kVector; ++j) reg_y.at[j] = narrow<T>(sum[j]);
  T* y = dweight + row * row_step + column * column_step;
  if (column_step == 1) {
    store(y, reg_y);
  } else {
    for (int j = 0; j < kVector; ++j) y[j * column_step] = reg_y.at[j];
  }
}

extern "C" __global__ void __launch_bounds__(kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ gmem_grad, const Index* __restrict__ gmem_indices, T* __restrict__ gmem_dweight,
                   int* __restrict__ gmem_heads, int* __restrict__ gmem_entries, long long count, long long rows, long long length,
                   long long padding, long long row_step, long long column_step) {
  const long long i = static_cast<long long>(blockIdx.x) * kThreads + threadIdx.x;
  if constexpr (Config::kStage == 0) {
    if (i < rows) gmem_heads[i] = 0;
  } else if constexpr (Config::kStage == 1) {
    const long long row = i < count ? static_cast<long long>(gmem_indices[i]) : -1;
    if (row >= 0 && row < rows) atomicAdd(gmem_heads + row, 1);
  } else if constexpr (Config::kStage == 2) {
    scan(gmem_heads, static_cast<int>(rows));
  } else if constexpr (Config::kStage == 3) {
    const long long row = i < count ? static_cast<long long>(gmem_indices[i]) : -1;
    if (row >= 0 && row < rows) gmem_entries[gmem_heads[rows + row] + atomicAdd(gmem_heads + 2 * rows + row, 1)] = static_cast<int>(i);
  } else {
    add_row(gmem_grad, gmem_indices, gmem_dweight, gmem_heads, gmem_entries, static_cast<int>(count), static_cast<int>(rows), length, padding,
            row_step, column_step);
  }
}
