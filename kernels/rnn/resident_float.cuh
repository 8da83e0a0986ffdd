// The products of resident.cuh in float32 throughout: fused multiply-adds, no rounding of the operands.
#pragma once

#include "dnnarray/core/vec.cuh"
#include "rnn/grid_barrier.cuh"

namespace dnnarray {

// Rows of weights and columns (sequences) of a product by the lanes of a warp: a lane owns groups of four rows and of
// up to four columns.
template <int kRows, int kBatch>
struct LaneTile {
  static constexpr int kRowLanes = kRows % 32 == 0 ? 8 : 4, kColumnLanes = 32 / kRowLanes;
  static constexpr int kRowGroups = kRows / (4 * kRowLanes);
  static constexpr int kWidth = kBatch / kColumnLanes < 4 ? kBatch / kColumnLanes : 4,
                       kColumnGroups = kBatch / kColumnLanes / kWidth;
  static_assert(kRows % (4 * kRowLanes) == 0 && kBatch % kColumnLanes == 0, "whole groups");

  float sums[kRowGroups * 4][kColumnGroups * kWidth] = {};
  int row_lane = threadIdx.x % 32 / kColumnLanes, column_lane = threadIdx.x % 32 % kColumnLanes;

  __device__ __forceinline__ int row(int group) const { return (group * kRowLanes + row_lane) * 4; }
  __device__ __forceinline__ int column(int group) const { return (group * kColumnLanes + column_lane) * kWidth; }

  // Adds weights[row] * numbers[column].
  __device__ __forceinline__ void add(const float* weights, const float* numbers) {
    Vec<float, 4> w[kRowGroups];
    Vec<float, kWidth> v[kColumnGroups];
#pragma unroll
    for (int r = 0; r < kRowGroups; ++r) w[r] = load<float, 4>(weights + row(r));
#pragma unroll
    for (int c = 0; c < kColumnGroups; ++c) v[c] = load<float, kWidth>(numbers + column(c));
#pragma unroll
    for (int r = 0; r < kRowGroups * 4; ++r) {
#pragma unroll
      for (int c = 0; c < kColumnGroups * kWidth; ++c) sums[r][c] += w[r / 4].at[r % 4] * v[c / kWidth].at[c % kWidth];
    }
  }
  // Four rows of one column.
  __device__ __forceinline__ Vec<float, 4> rows_of(int group, int column) const {
    return {{sums[group * 4][column], sums[group * 4 + 1][column], sums[group * 4 + 2][column],
             sums[group * 4 + 3][column]}};
  }
};

// As TensorProducts; each warp takes a share of the columns of the weights with all rows, and brings the numbers of its
// share into shared memory itself. The partial sums take the place of the numbers.
template <int kGates, int kUnits, int kBatch, int kWarps>
struct FloatProducts {
  static constexpr int kRows = kGates * kUnits, kPitch = kUnits + 4, kStage = kBatch + 4, kQuads = 32 / kBatch,
                       kDepth = 8;
  float *weights, *partial;
  int first, last;  // columns of this warp's share

  __device__ __forceinline__ FloatProducts(char* shared, int columns) : weights(reinterpret_cast<float*>(shared)) {
    const int warp = threadIdx.x / 32, quads = columns / 4;
    partial = weights + columns * kRows;
    first = quads * warp / kWarps * 4;
    last = quads * (warp + 1) / kWarps * 4;
  }

  template <typename Weight>
  __device__ __forceinline__ void fill(Weight weight, int columns) const {
    for (int i = threadIdx.x; i < kRows * columns; i += kWarps * 32) {
      const int k = i % columns, m = i / columns;
      weights[k * kRows + m] = weight(m / kUnits, m % kUnits, k);
    }
  }

  __device__ __forceinline__ void multiply(const float* numbers, long long row, int rows) const {
    float* stage = partial + first * kStage;
    bring(stage, numbers, row, rows);
    __syncwarp();
    LaneTile<kRows, kBatch> tile;
#pragma unroll 4
    for (int k = first; k < last; ++k) tile.add(weights + k * kRows, stage + (k - first) * kStage);
    __syncthreads();
    put(tile);
  }

  __device__ __forceinline__ float sum(int gate, int batch, int unit) const {
    float total = 0;
#pragma unroll
    for (int s = 0; s < kWarps; ++s) total += partial[((s * kGates + gate) * kBatch + batch) * kPitch + unit];
    return total;
  }

 private:
  // stage[column][batch] = numbers[batch][column]; a lane takes four columns of one row at once.
  __device__ __forceinline__ void bring(float* stage, const float* numbers, long long row, int rows) const {
    const int lane = threadIdx.x % 32, batch = lane % kBatch, quad = lane / kBatch;
    const float* from = numbers + min(batch, rows - 1) * row;
    for (int k = first; k < last; k += kDepth * kQuads * 4) {
      float4 v[kDepth];
#pragma unroll
      for (int i = 0; i < kDepth; ++i) {
        const int at = k + (i * kQuads + quad) * 4;
        if (at < last) v[i] = ld_cg_v4(from + at);
      }
#pragma unroll
      for (int i = 0; i < kDepth; ++i) {
        const int at = k + (i * kQuads + quad) * 4;
        float* to = stage + (at - first) * kStage + batch;
        if (at < last) to[0] = v[i].x, to[kStage] = v[i].y, to[2 * kStage] = v[i].z, to[3 * kStage] = v[i].w;
      }
    }
  }
  __device__ __forceinline__ void put(const LaneTile<kRows, kBatch>& tile) const {
    using Tile = LaneTile<kRows, kBatch>;
    const int warp = threadIdx.x / 32;
#pragma unroll
    for (int r = 0; r < Tile::kRowGroups; ++r) {
      const int gate = tile.row(r) / kUnits, unit = tile.row(r) % kUnits;
#pragma unroll
      for (int c = 0; c < Tile::kColumnGroups * Tile::kWidth; ++c) {
        const int batch = tile.column(c / Tile::kWidth) + c % Tile::kWidth;
        store(partial + ((warp * kGates + gate) * kBatch + batch) * kPitch + unit, tile.rows_of(r, c));
      }
    }
  }
};

// As TensorShares.
template <int kGates, int kUnits, int kBatch, int kWarps>
struct FloatShares {
  static constexpr int kColumns = kGates * kUnits, kStage = kBatch + 4, kRows = 64;
  float *weights, *taken;
  int units;

  __device__ __forceinline__ FloatShares(char* shared, int all)
      : weights(reinterpret_cast<float*>(shared)), units(all) {
    taken = weights + all * kColumns;
  }
  template <typename Weight>
  __device__ __forceinline__ void fill(Weight weight) const {
    for (int i = threadIdx.x; i < kColumns * units; i += kWarps * 32) {
      const int column = i / units;
      weights[i] = weight(column / kUnits, column % kUnits, i % units);
    }
  }
  __device__ __forceinline__ void take(int gate, int batch, int unit, float value) const {
    taken[(gate * kUnits + unit) * kStage + batch] = value;
  }

  __device__ __forceinline__ void multiply(float* exchange, float) const {
    __syncthreads();
    using Tile = LaneTile<kRows, kBatch>;
    for (int first = threadIdx.x / 32 * kRows; first < units; first += kWarps * kRows) {
      Tile tile;
      // Rows past the end read what stands behind the weights, and are not written.
#pragma unroll 4
      for (int k = 0; k < kColumns; ++k) tile.add(weights + k * units + first, taken + k * kStage);
#pragma unroll
      for (int r = 0; r < Tile::kRowGroups; ++r) {
        if (first + tile.row(r) >= units) continue;
#pragma unroll
        for (int c = 0; c < Tile::kColumnGroups * Tile::kWidth; ++c) {
          const long long batch = tile.column(c / Tile::kWidth) + c % Tile::kWidth;
          store(exchange + batch * units + first + tile.row(r), tile.rows_of(r, c));
        }
      }
    }
  }
};

}  // namespace dnnarray
