// Products of a matrix of weights that stays in shared memory with rows of float32 numbers in global memory, for persistent kernels.
//
// A block owns kGates * kUnits rows of weights (kUnits of each gate) and kBatch rows of numbers. Each warp takes one tile of 16 units with
// all gates and one of kSlices shares of the columns; the shares' sums go to shared memory as partial[slice][gate][batch][unit].
#pragma once

#include "dnnarray/grid_barrier.cuh"
#include "dnnarray/split_mma.cuh"

namespace dnnarray {

// `Parts` is Halves or WideParts of split_mma.cuh.
template <typename T, typename Parts, int kGates, int kUnits, int kBatch, int kWarps>
struct TensorProducts {
  static constexpr int kUnitTiles = kUnits / 16, kSlices = kWarps / kUnitTiles, kColumns = kBatch / 8;
  static constexpr int kPitch = kUnits + 4;  // keeps the lanes of a warp on different banks
  static constexpr int kDepth = kColumns >= 4 ? 16 / kColumns : 4;  // tiles of columns whose loads are in flight at once
  static_assert(kWarps % kUnitTiles == 0, "whole slices");

  WeightFragment* weights;
  float* partial;
  int tiles;  // of 16 columns

  __device__ __forceinline__ TensorProducts(char* shared, int columns)
      : weights(reinterpret_cast<WeightFragment*>(shared)), tiles(columns / 16) {
    partial = reinterpret_cast<float*>(weights + kGates * kUnitTiles * tiles * 32);
  }

  // Row r of gate g, column k of the weights is weight(g, r, k), 0 where there is none.
  template <typename Weight>
  __device__ __forceinline__ void fill(Weight weight) const {
    const int count = kUnitTiles * kGates * tiles * 32;
    for (int i = threadIdx.x; i < count; i += kWarps * 32) {
      const int lane = i % 32, tile = i / 32 % tiles, gate = i / 32 / tiles % kGates, unit_tile = i / 32 / tiles / kGates;
      const int unit = unit_tile * 16 + lane / 4, k = tile * 16 + lane % 4 * 4;
      WeightFragment fragment;
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const unsigned low = weight(gate, unit + w % 2 * 8, k + w / 2 * 2).bits, high = weight(gate, unit + w % 2 * 8, k + w / 2 * 2 + 1).bits;
        fragment.at[w] = low | high << 16;
      }
      weights[i] = fragment;
    }
  }

  // `numbers` has rows `row` elements apart, of which the first `rows` exist.
  __device__ __forceinline__ void multiply(const float* numbers, long long row, int rows) const {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, unit_tile = warp % kUnitTiles, slice = warp / kUnitTiles;
    float sums[kGates][kColumns][4] = {};
    const float* from[kColumns];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) from[c] = numbers + min(c * 8 + lane / 4, rows - 1) * row + lane % 4 * 4;
    for (int first = slice; first < tiles; first += kDepth * kSlices) {
      float4 v[kDepth][kColumns];
#pragma unroll
      for (int t = 0; t < kDepth; ++t) {
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          if (first + t * kSlices < tiles) v[t][c] = load_shared_between_blocks(from[c] + (first + t * kSlices) * 16);
        }
      }
#pragma unroll
      for (int t = 0; t < kDepth; ++t) {
        if (first + t * kSlices < tiles) add(sums, v[t], weights + (unit_tile * kGates * tiles + first + t * kSlices) * 32 + lane);
      }
    }
    put(sums, unit_tile, slice, lane);
  }

  // The sum over all shares.
  __device__ __forceinline__ float sum(int gate, int batch, int unit) const {
    float total = 0;
#pragma unroll
    for (int s = 0; s < kSlices; ++s) total += partial[((s * kGates + gate) * kBatch + batch) * kPitch + unit];
    return total;
  }

 private:
  __device__ __forceinline__ void add(float (&sums)[kGates][kColumns][4], const float4 (&v)[kColumns], const WeightFragment* fragments) const {
    WeightFragment w[kGates];
#pragma unroll
    for (int g = 0; g < kGates; ++g) w[g] = fragments[g * tiles * 32];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const Parts parts(v[c]);
#pragma unroll
      for (int g = 0; g < kGates; ++g) parts.add_product(sums[g][c], typename Parts::Weights(w[g]));
    }
  }
  __device__ __forceinline__ void put(const float (&sums)[kGates][kColumns][4], int unit_tile, int slice, int lane) const {
#pragma unroll
    for (int g = 0; g < kGates; ++g) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        float* to = partial + ((slice * kGates + g) * kBatch + c * 8 + lane % 4 * 2) * kPitch + unit_tile * 16 + lane / 4;
        to[0] = sums[g][c][0], to[kPitch] = sums[g][c][1], to[8] = sums[g][c][2], to[kPitch + 8] = sums[g][c][3];
      }
    }
  }
};

}  // namespace dnnarray
