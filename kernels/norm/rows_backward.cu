// dx[r, :] = rstd * (h - average(h) - u * average(h * u)) (+ the gradient of the sum) with h = grad * weight, u = (s -
// mean) * rstd; rms norm leaves average(h) out. Beside it each block's share of dweight = sum(grad * u) and dbias =
// sum(grad) over the rows.
//
// Layout:  rows of contiguous columns. Blocks stay and take every gridDim.x-th group of kThreads / kLanes rows; kLanes
//          threads hold a row in registers, thread l the vectors l, l + kLanes, ..., and for the same columns the
//          running sums of dweight and dbias. The next row is on its way from memory while one is worked on. All blocks
//          are at work at once, kResident to a multiprocessor: one more round of blocks would take as long as the
//          first. Block b writes its sums to partial[b, :]; kernels/norm/fold.cu adds them up in a fixed order. With
//          kOnce, for small arrays, a block has one group of rows. With kSide, for small arrays whose statistics were
//          saved, the first blocks are of columns in place of that: each adds up dweight and dbias of kSide vectors of
//          columns over all rows, which are read twice then, and nobody waits for anybody. Where they were not saved, a
//          launch of rows leaves them behind, and one of columns alone (kBehind) has its vectors on their way
//          meanwhile.
// Needs:   columns a multiple of kVector and at most kLanes * kVectors * kVector; pointers aligned to kVector elements.
// Bound:   memory: grad and x read once, dx written once.

#include "dnnarray/core/overlap.cuh"
#include "dnnarray/core/vec.cuh"
#include "norm/statistics.cuh"

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
  static constexpr bool kOnce = false;
  static constexpr int kSide = 0;
  static constexpr bool kBehind = false;
};
struct Arguments {
  const Config::Mean* mean_of;
  const Config::Rstd* rstd_of_row;
  void* dweight;
  void* dbias;
  dnnarray::arithmetic_t<Config::Element>* found_mean;
  dnnarray::arithmetic_t<Config::Element>* found_rstd;
  long long rows;
  long long columns;
  double eps;
  long long wide_weight;
  long long wide_bias;
};
#define DNNARRAY_ENTRY norm_rows_backward_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kVector = Config::kVector, kVectors = Config::kVectors, kLanes = Config::kLanes,
              kThreads = Config::kThreads;
constexpr int kRows = kThreads / kLanes, kValues = kVectors * kVector;
constexpr bool kOnce = Config::kOnce, kApart = Config::kSide > 0;
constexpr int kSide = kApart ? Config::kSide : 1;
static_assert(kApart || !Config::kBehind, "only columns wait for rows");
static_assert(!kApart || (kOnce && !Config::kParameters && !Config::kAdd),
              "sums of whole columns, or shares of the blocks");

struct Registers {
  A at[kVectors][kVector] = {};
};

__device__ __forceinline__ long long column(int k) {
  return static_cast<long long>(k * kLanes + threadIdx.x % kLanes) * kVector;
}

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
  Wordwise<T, kVector> grad[kVectors], x[kVectors], residual[Config::kAdd ? kVectors : 1];
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
    row.grad[k] = load_wordwise<T, kVector>(from.grad + start + j);
    row.x[k] = load_wordwise<T, kVector>(from.x + start + j);
    if constexpr (Config::kAdd) row.residual[k] = load_wordwise<T, kVector>(from.residual + start + j);
  }
}

// The row in the arithmetic type, 0 past its end.
__device__ __forceinline__ void unpack(const Row& row, Registers& grad, Registers& x, long long columns) {
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    const bool inside = column(k) < columns;
    A g[kVector], s[kVector], more[kVector] = {};
    widen_all(g, row.grad[k]);
    widen_all(s, row.x[k]);
    if constexpr (Config::kAdd) widen_all(more, row.residual[k]);
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      grad.at[k][v] = inside ? g[v] : A(0);
      x.at[k][v] = !inside ? A(0) : Config::kAdd ? s[v] + more[v] : s[v];
    }
  }
}

// The statistics that the forward did not save.
__device__ __forceinline__ void find_statistics(const Registers& x, long long columns, A share, A eps, A& mean, A& rstd,
                                                A* smem) {
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

// The weight of this thread's columns. Blocks that stay read it again for every row, from the L1; with kOnce it is on
// its way with the row.
struct Weights {
  static constexpr int kPiece = kVector * sizeof(Config::Weight) > 16 ? 16 / sizeof(Config::Weight) : kVector,
                       kPieces = kVector / kPiece;
  using Piece = Vec<Config::Weight, kPiece>;
  const Config::Weight* from;
  Piece kept[kOnce ? kVectors * kPieces : 1];

  __device__ __forceinline__ Weights(const Config::Weight* weight, long long columns) : from(weight) {
    if (!kOnce || weight == nullptr) return;
#pragma unroll
    for (int i = 0; i < kVectors * kPieces; ++i)
      if (column(i / kPieces) < columns) kept[i] = piece(i);
  }
  __device__ __forceinline__ Piece piece(int i) const {
    return load<Config::Weight, kPiece>(from + column(i / kPieces) + i % kPieces * kPiece);
  }
  __device__ __forceinline__ void read(A (&to)[kVector], int k) const {
#pragma unroll
    for (int part = 0; part < kPieces; ++part) {
      A values[kPiece];
      widen_all(values, kOnce ? kept[kOnce ? k * kPieces + part : 0] : piece(k * kPieces + part));
#pragma unroll
      for (int v = 0; v < kPiece; ++v) to[part * kPiece + v] = values[v];
    }
  }
};

// The sums of the block's kRows groups of threads, then the share of the block.
__device__ __forceinline__ void write_share(A* partial, const Registers& sums, long long columns) {
  A* mine = partial + static_cast<long long>(blockIdx.x) * columns;
  if constexpr (kRows > 1) {
    __shared__ A smem_sums[kRows][kLanes * kValues];
    const int lane = threadIdx.x % kLanes;
#pragma unroll
    for (int k = 0; k < kVectors; ++k)
#pragma unroll
      for (int v = 0; v < kVector; ++v)
        smem_sums[threadIdx.x / kLanes][(k * kVector + v) * kLanes + lane] = sums.at[k][v];
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

// dweight and dbias of the kSide vectors of columns of this block: kSide neighbouring threads take every kSlots-th row,
// and meet in shared memory.
__device__ __forceinline__ void add_columns(Arrays from, void* dweight, void* dbias, bool wide_weight, bool wide_bias,
                                            long long rows, long long columns) {
  constexpr int kSlots = kThreads / kSide, kColumns = kSide * kVector, kSums = 2 * kColumns;
  constexpr int kFlight = 4;  // that a thread has under way
  constexpr int kTogether = kThreads / kSums < 1       ? 1
                            : kThreads / kSums < kWarp ? kThreads / kSums
                                                       : kWarp;  // threads that add up one sum
  __shared__ __align__(16) A smem[kSlots][2][kColumns];
  const int own = threadIdx.x % kSide * kVector, slot = threadIdx.x / kSide;
  const long long first = static_cast<long long>(blockIdx.x) * kColumns;
  A of_weight[kVector] = {}, of_bias[kVector] = {};
  if (first + own < columns) {
    for (int r = slot; r < rows; r += kSlots * kFlight) {
      Wordwise<T, kVector> grad[kFlight] = {}, x[kFlight] = {};
      A mean[kFlight] = {}, rstd[kFlight] = {};
#pragma unroll
      for (int k = 0; k < kFlight; ++k) {
        const int row = r + k * kSlots;
        if (row >= rows) break;
        const long long at = row * columns + first + own;
        grad[k] = load_wordwise<T, kVector>(from.grad + at), x[k] = load_wordwise<T, kVector>(from.x + at);
      }
      if constexpr (Config::kBehind)
        from.rstd = after_previous_kernel(from.rstd), from.mean = after_previous_kernel(from.mean);
#pragma unroll
      for (int k = 0; k < kFlight; ++k) {
        const int row = r + k * kSlots;
        if (row >= rows) break;
        rstd[k] = widen(from.rstd[row]);
        if constexpr (Config::kCentred) mean[k] = widen(from.mean[row]);
      }
#pragma unroll
      for (int k = 0; k < kFlight; ++k) {
        if (r + k * kSlots >= rows) break;
        A g[kVector], s[kVector];
        widen_all(g, grad[k]);
        widen_all(s, x[k]);
#pragma unroll
        for (int v = 0; v < kVector; ++v) {
          of_weight[v] += g[v] * ((s[v] - mean[k]) * rstd[k]);
          of_bias[v] += g[v];
        }
      }
    }
  }
#pragma unroll
  for (int v = 0; v < kVector; ++v) smem[slot][0][own + v] = of_weight[v], smem[slot][1][own + v] = of_bias[v];
  __syncthreads();
  for (int i = threadIdx.x / kTogether; i < kSums; i += kThreads / kTogether) {
    A total = A(0);
#pragma unroll
    for (int k = threadIdx.x % kTogether; k < kSlots; k += kTogether) total += smem[k][i / kColumns][i % kColumns];
    total = warp_sum<kTogether>(total);
    const long long j = first + i % kColumns;
    if (threadIdx.x % kTogether != 0 || j >= columns) continue;
    if (i < kColumns && dweight != nullptr) put<T>(dweight, wide_weight, j, total);
    if (i >= kColumns && dbias != nullptr) put<T>(dbias, wide_bias, j, total);
  }
}

// The row of this thread in a group of kRows; past the end the last one, for company.
__device__ __forceinline__ long long row_of(long long group, long long rows) {
  return min(group * kRows + threadIdx.x / kLanes, rows - 1);
}

// dweight and dbias are the blocks' shares, in the arithmetic dtype, or with kSide the results; found_mean and
// found_rstd take the statistics for a launch behind this one. Null: grad_sum, residual, weight, mean_of, rstd_of_row,
// dresidual, dweight, dbias, found_mean and found_rstd where absent.
extern "C" __global__ void __launch_bounds__(kThreads, Config::kResident)
    DNNARRAY_ENTRY(const T* __restrict__ grad, const T* __restrict__ grad_sum, const T* __restrict__ x,
                   const T* __restrict__ residual, const Config::Weight* __restrict__ weight, T* __restrict__ dx,
                   T* __restrict__ dresidual, const __grid_constant__ Arguments a) {
  const Config::Mean* const mean_of = a.mean_of;
  const Config::Rstd* const rstd_of_row = a.rstd_of_row;
  void *const dweight = a.dweight, *const dbias = a.dbias;
  A *const found_mean = a.found_mean, *const found_rstd = a.found_rstd;
  const long long rows = a.rows, columns = a.columns, wide_weight = a.wide_weight, wide_bias = a.wide_bias;
  const double eps = a.eps;
  __shared__ A smem[2 * kThreads / kWarp];
  let_next_kernel_begin();
  Registers of_weight, of_bias;
  const A share = A(1) / (columns > 0 ? A(columns) : A(1));
  const Arrays arrays = {grad, x, residual, mean_of, rstd_of_row};
  long long first = blockIdx.x, step = gridDim.x;
  if constexpr (kApart) {
    const unsigned sums =
        (static_cast<unsigned>(columns) + kSide * kVector - 1) / (kSide * kVector);  // blocks of columns
    if (Config::kBehind || blockIdx.x < sums) {
      add_columns(arrays, dweight, dbias, wide_weight != 0, wide_bias != 0, rows, columns);
      return;
    }
    first -= sums, step -= sums;
  }
  Row fetched;
  fetch(fetched, arrays, row_of(first, rows), columns);
  const Weights weights(weight, columns);
  for (long long group = first; group * kRows < rows; group += step) {
    const long long row = row_of(group, rows), start = row * columns;
    const bool mine = group * kRows + threadIdx.x / kLanes < rows;
    Registers u, h;
    unpack(fetched, h, u, columns);
    const A saved_mean = fetched.mean, saved_rstd = fetched.rstd;
    if (!kOnce && (group + step) * kRows < rows) fetch(fetched, arrays, row_of(group + step, rows), columns);
    A mean = A(0), rstd = A(0);
    if (!kApart && ((Config::kCentred && mean_of == nullptr) || rstd_of_row == nullptr))
      find_statistics(u, columns, share, A(eps), mean, rstd, smem);
    if (Config::kCentred && mean_of != nullptr) mean = saved_mean;
    if (rstd_of_row != nullptr) rstd = saved_rstd;
    if (found_rstd != nullptr && mine && threadIdx.x % kLanes == 0) {
      found_rstd[row] = rstd;
      if (Config::kCentred) found_mean[row] = mean;
    }
    A average = A(0), projection = A(0);
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      const long long j = column(k);
      if (j >= columns) break;
      A w[kVector];
      if (weight != nullptr) weights.read(w, k);
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
    if (!mine) break;  // of the last group
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      const long long j = column(k);
      if (j >= columns) break;
      A d[kVector], more[kVector] = {};
      if (Config::kAdd && grad_sum != nullptr) widen_all(more, load<T, kVector>(grad_sum + start + j));
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        d[v] = rstd * (h.at[k][v] - average - u.at[k][v] * projection);
        if constexpr (Config::kAdd) d[v] += more[v];
      }
      const auto out = narrow_all<T, kVector>(d);
      store(dx + start + j, out);
      if (Config::kAdd) store(dresidual + start + j, out);
    }
    if constexpr (kOnce) break;
  }
  if constexpr (Config::kParameters) {
    if (dweight != nullptr) write_share(static_cast<A*>(dweight), of_weight, columns);
    if (dbias != nullptr) write_share(static_cast<A*>(dbias), of_bias, columns);
  }
}
