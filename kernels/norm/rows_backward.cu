// dx[r, :] = rstd * (h - average(h) - u * average(h * u)) (+ the gradient of the sum) with h = grad * weight, u = (s - mean) * rstd;
// rms norm leaves average(h) out. Beside it each block's share of dweight = sum(grad * u) and dbias = sum(grad) over the rows.
//
// Layout:  rows of contiguous columns. Blocks stay and take every gridDim.x-th group of kThreads / kLanes rows; kLanes threads hold a row
//          in registers, thread l the vectors l, l + kLanes, ..., and for the same columns the running sums of dweight and dbias. The next
//          row is on its way from memory while one is worked on.
//          All blocks are at work at once, kResident to a multiprocessor: one more round of blocks would take as long as the first.
//          Block b writes its sums to partial[b, :]; kernels/norm/fold.cu adds them up in a fixed order.
// Needs:   columns a multiple of kVector and at most kLanes * kVectors * kVector; pointers aligned to kVector elements.
// Bound:   memory: grad and x read once, dx written once.

#include "dnnarray/norm.cuh"
#include "dnnarray/vec.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Weight = float;
  using Mean = float;
  using Rstd = float;
  static constexpr bool kCentred = true;
  static constexpr bool kAdd = false;
  static constexpr bool kParameters = true;
  static constexpr int kVector = 4;
  static constexpr int kVectors = 4;
  static constexpr int kLanes = 256;
  static constexpr int kThreads = 256;
  static constexpr int kResident = 2;
};
#define DNNARRAY_ENTRY norm_rows_backward_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kVector = Config::kVector, kVectors = Config::kVectors, kLanes = Config::kLanes, kThreads = Config::kThreads;
constexpr int kRows = kThreads / kLanes, kValues = kVectors * kVector;

struct Registers {
  A at[kVectors][kVector] = {};
};

__device__ __forceinline__ long long column(int k) { return static_cast<long long>(k * kLanes + threadIdx.x % kLanes) * kVector; }

__device__ __forceinline__ void sum_over_row(A& first, A& second, A* smem) {
  if constexpr (kLanes <= kWarp) {
    first = warp_sum<kLanes>(first);
    second = warp_sum<kLanes>(second);
  } else {
    block_reduce<kThreads>(first, Sum(), second, Sum(), smem);
  }
}

// A row as it comes from memory, with its statistics where they were saved.
struct Row {
  A mean, rstd;
  Vec<T, kVector> grad[kVectors], x[kVectors], residual[Config::kAdd ? kVectors : 1];
};

struct Arrays {
  const T *grad, *x, *residual;
  const Config::Mean* mean;
  const Config::Rstd* rstd;
};

__device__ __forceinline__ void fetch(Row& row, const Arrays& from, long long index, long long columns) {
  row.mean = from.mean != nullptr ? A(widen(from.mean[index])) : A(0);
  row.rstd = from.rstd != nullptr ? A(widen(from.rstd[index])) : A(0);
  const long long start = index * columns;
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    const long long j = column(k);
    if (j >= columns) continue;
    row.grad[k] = load<T, kVector>(from.grad + start + j);
    row.x[k] = load<T, kVector>(from.x + start + j);
    if constexpr (Config::kAdd) row.residual[k] = load<T, kVector>(from.residual + start + j);
  }
}

// The row in the arithmetic type, 0 past its end.
__device__ __forceinline__ void unpack(const Row& row, Registers& grad, Registers& x, long long columns) {
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    const bool inside = column(k) < columns;
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      grad.at[k][v] = inside ? widen(row.grad[k].at[v]) : A(0);
      x.at[k][v] = inside ? widen(row.x[k].at[v]) : A(0);
      if (Config::kAdd && inside) x.at[k][v] += widen(row.residual[k].at[v]);
    }
  }
}

// The statistics that the forward did not save.
__device__ __forceinline__ void find_statistics(const Registers& x, long long columns, A share, A eps, A& mean, A& rstd, A* smem) {
  A sum = A(0), unused = A(0), distance = A(0), square = A(0);
  if constexpr (Config::kCentred) {
#pragma unroll
    for (int k = 0; k < kVectors; ++k)
#pragma unroll
      for (int v = 0; v < kVector; ++v) sum += x.at[k][v];
    sum_over_row(sum, unused, smem);
  }
  mean = sum * share;
#pragma unroll
  for (int k = 0; k < kVectors; ++k)
    if (column(k) < columns) {
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        const A d = x.at[k][v] - mean;
        distance += d;
        square += d * d;
      }
    }
  sum_over_row(distance, square, smem);
  const A delta = Config::kCentred ? distance * share : A(0);
  rstd = rstd_for<T>(square * share - delta * delta, eps);
  mean += delta;
}

__device__ __forceinline__ void weights(A (&to)[kVector], const Config::Weight* weight, long long j) {
  constexpr int kPiece = kVector * sizeof(Config::Weight) > 16 ? 16 / sizeof(Config::Weight) : kVector;
#pragma unroll
  for (int start = 0; start < kVector; start += kPiece) {
    const auto piece = load<Config::Weight, kPiece>(weight + j + start);
#pragma unroll
    for (int v = 0; v < kPiece; ++v) to[start + v] = widen(piece.at[v]);
  }
}

// The sums of the block's kRows groups of threads, then the share of the block.
__device__ __forceinline__ void write_share(A* partial, const Registers& sums, long long columns) {
  A* mine = partial + static_cast<long long>(blockIdx.x) * columns;
  if constexpr (kRows > 1) {
    __shared__ A smem_sums[kRows][kLanes * kValues];
    const int lane = threadIdx.x % kLanes;
#pragma unroll
    for (int k = 0; k < kVectors; ++k)
#pragma unroll
      for (int v = 0; v < kVector; ++v) smem_sums[threadIdx.x / kLanes][(k * kVector + v) * kLanes + lane] = sums.at[k][v];
    __syncthreads();
    for (int i = threadIdx.x; i < kLanes * kValues; i += kThreads) {
      const int value = i / kLanes, j = (value / kVector * kLanes + i % kLanes) * kVector + value % kVector;
      A total = smem_sums[0][i];
#pragma unroll
      for (int row = 1; row < kRows; ++row) total += smem_sums[row][i];
      if (j < columns) mine[j] = total;
    }
    __syncthreads();
  } else {
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      const long long j = column(k);
      if (j < columns) {
#pragma unroll
        for (int v = 0; v < kVector; ++v) mine[j + v] = sums.at[k][v];
      }
    }
  }
}

// The row of this thread in a group of kRows; past the end the last one, for company.
__device__ __forceinline__ long long row_of(long long group, long long rows) {
  return min(group * kRows + threadIdx.x / kLanes, rows - 1);
}

// Null: grad_sum, residual, weight, mean_of, rstd_of_row, dresidual, dweight and dbias where absent.
extern "C" __global__ void __launch_bounds__(kThreads, Config::kResident)
    DNNARRAY_ENTRY(const T* __restrict__ grad, const T* __restrict__ grad_sum, const T* __restrict__ x, const T* __restrict__ residual,
                   const Config::Weight* __restrict__ weight, const Config::Mean* __restrict__ mean_of,
                   const Config::Rstd* __restrict__ rstd_of_row, T* __restrict__ dx, T* __restrict__ dresidual, A* __restrict__ dweight,
                   A* __restrict__ dbias, long long rows, long long columns, double eps) {
  __shared__ A smem[2 * kThreads / kWarp];
  Registers of_weight, of_bias;
  const A share = A(1) / (columns > 0 ? A(columns) : A(1));
  const Arrays arrays = {grad, x, residual, mean_of, rstd_of_row};
  Row fetched;
  fetch(fetched, arrays, row_of(blockIdx.x, rows), columns);
  for (long long group = blockIdx.x; group * kRows < rows; group += gridDim.x) {
    const long long row = row_of(group, rows), start = row * columns;
    const bool mine = group * kRows + threadIdx.x / kLanes < rows;
    Registers u, h;
    unpack(fetched, h, u, columns);
    const A saved_mean = fetched.mean, saved_rstd = fetched.rstd;
    if ((group + gridDim.x) * kRows < rows) fetch(fetched, arrays, row_of(group + gridDim.x, rows), columns);
    A mean = A(0), rstd = A(0);
    if ((Config::kCentred && mean_of == nullptr) || rstd_of_row == nullptr) find_statistics(u, columns, share, A(eps), mean, rstd, smem);
    if (Config::kCentred && mean_of != nullptr) mean = saved_mean;
    if (rstd_of_row != nullptr) rstd = saved_rstd;
    A average = A(0), projection = A(0);
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      const long long j = column(k);
      if (j >= columns) break;
      A w[kVector];
      if (weight != nullptr) weights(w, weight, j);
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        u.at[k][v] = (u.at[k][v] - mean) * rstd;
        if (Config::kParameters && mine) {
          of_weight.at[k][v] += h.at[k][v] * u.at[k][v];
          of_bias.at[k][v] += h.at[k][v];
        }
        if (weight != nullptr) h.at[k][v] = rounded_product(h.at[k][v], w[v]);  // so that a row of one value gives 0
        average += h.at[k][v];
        projection += h.at[k][v] * u.at[k][v];
      }
    }
    sum_over_row(average, projection, smem);
    average = Config::kCentred ? average * share : A(0);
    projection *= share;
    if (!mine) continue;
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      const long long j = column(k);
      if (j >= columns) break;
      Vec<T, kVector> out, more;
      if (Config::kAdd && grad_sum != nullptr) more = load<T, kVector>(grad_sum + start + j);
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        A d = rstd * (h.at[k][v] - average - u.at[k][v] * projection);
        if (Config::kAdd && grad_sum != nullptr) d += widen(more.at[v]);
        out.at[v] = narrow<T>(d);
      }
      store(dx + start + j, out);
      if (Config::kAdd) store(dresidual + start + j, out);
    }
  }
  if constexpr (Config::kParameters) {
    if (dweight != nullptr) write_share(dweight, of_weight, columns);
    if (dbias != nullptr) write_share(dbias, of_bias, columns);
  }
}
