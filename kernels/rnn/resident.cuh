// Products of a matrix of weights that stays in shared memory with rows of float32 numbers in global memory, for
// persistent kernels.
//
// A block owns kGates * kUnits rows of weights (kUnits of each gate) and kBatch rows of numbers. Each warp takes one
// tile of 16 units with all gates and one of kSlices shares of the columns; the shares' sums go to shared memory as
// partial[slice][gate][batch][unit].
//
// Backward it is the other way round: the block multiplies what it has of its own gates with its rows of the weights,
// and so has something to give to each unit of the state.
#pragma once

#include "dnnarray/core/reduce.cuh"
#include "rnn/grid_barrier.cuh"
#include "rnn/split_mma.cuh"

namespace dnnarray {

// `Parts` is Halves, WideParts or FloatParts of split_mma.cuh.
template <typename T, typename Parts, int kGates, int kUnits, int kBatch, int kWarps>
struct TensorProducts {
  static constexpr int kUnitTiles = kUnits / 16, kSlices = kWarps / kUnitTiles, kColumns = kBatch / 8;
  static constexpr int kPitch = kUnits + 4;  // keeps the lanes of a warp on different banks
  static constexpr int kDepth =
      kColumns >= 2 ? 16 / kColumns : 8;  // tiles of columns whose loads are in flight at once
  static_assert(kWarps % kUnitTiles == 0, "whole slices");

  WeightFragment<T>* weights;
  float* partial;
  int tiles;  // of 16 columns

  __device__ __forceinline__ TensorProducts(char* shared, int columns)
      : weights(reinterpret_cast<WeightFragment<T>*>(shared)), tiles(columns / 16) {
    partial = reinterpret_cast<float*>(weights + kGates * kUnitTiles * tiles * 32);
  }

  // Row r of gate g, column k of the weights is weight(g, r, k), 0 where there is none.
  template <typename Weight>
  __device__ __forceinline__ void fill(Weight weight, int) const {
    const int count = kUnitTiles * kGates * tiles * 32;
    for (int i = threadIdx.x; i < count; i += kWarps * 32) {
      const int lane = i % 32, tile = i / 32 % tiles, gate = i / 32 / tiles % kGates,
                unit_tile = i / 32 / tiles / kGates;
      const int unit = unit_tile * 16 + lane / 4, k = tile * 16 + lane % 4 * 4;
      WeightFragment<T> fragment;
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        fragment.set(w, weight(gate, unit + w % 2 * 8, k + w / 2 * 2),
                     weight(gate, unit + w % 2 * 8, k + w / 2 * 2 + 1));
      }
      weights[i] = fragment;
    }
  }

  // `numbers` has rows `row` elements apart, of which the first `rows` exist.
  __device__ __forceinline__ void multiply(const float* numbers, long long row, int rows) const {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, unit_tile = warp % kUnitTiles,
              slice = warp / kUnitTiles;
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
          if (first + t * kSlices < tiles) v[t][c] = ld_cg_v4(from[c] + (first + t * kSlices) * 16);
        }
      }
#pragma unroll
      for (int t = 0; t < kDepth; ++t) {
        if (first + t * kSlices < tiles)
          add(sums, v[t], weights + (unit_tile * kGates * tiles + first + t * kSlices) * 32 + lane);
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
  __device__ __forceinline__ void add(float (&sums)[kGates][kColumns][4], const float4 (&v)[kColumns],
                                      const WeightFragment<T>* fragments) const {
    WeightFragment<T> w[kGates];
#pragma unroll
    for (int g = 0; g < kGates; ++g) w[g] = fragments[g * tiles * 32];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const Parts parts(v[c]);
#pragma unroll
      for (int stage = 0; stage < Parts::kStages; ++stage) {
#pragma unroll
        for (int g = 0; g < kGates; ++g) parts.add_product(stage, sums[g][c], typename Parts::Weights(w[g]));
      }
    }
  }
  __device__ __forceinline__ void put(const float (&sums)[kGates][kColumns][4], int unit_tile, int slice,
                                      int lane) const {
#pragma unroll
    for (int g = 0; g < kGates; ++g) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        float* to =
            partial + ((slice * kGates + g) * kBatch + c * 8 + lane % 4 * 2) * kPitch + unit_tile * 16 + lane / 4;
        to[0] = sums[g][c][0], to[kPitch] = sums[g][c][1], to[8] = sums[g][c][2], to[kPitch + 8] = sums[g][c][3];
      }
    }
  }
};

// Weights as tiles of 16 units of the state by 16 rows of one gate; what is multiplied stands in
// taken[gate][batch][unit of the block]. With kScaled they are brought near 2^14 by a common power of two, since the
// magnitude of gradients may be beyond the range of float16.
template <typename T, typename Parts, bool kScaled, int kGates, int kUnits, int kBatch, int kWarps>
struct TensorShares {
  static constexpr int kColumnTiles = kGates * kUnits / 16, kBatchTiles = kBatch / 8,
                       kRowTiles = kBatchTiles > 2 ? 2 : 4;
  static constexpr int kPitch =
      kUnits % 32 == 0 ? kUnits + 16 : kUnits;  // keeps the lanes of a warp on different banks

  WeightFragment<T>* weights;
  float* taken;
  int units;

  __device__ __forceinline__ TensorShares(char* shared, int all)
      : weights(reinterpret_cast<WeightFragment<T>*>(shared)), units(all) {
    taken = reinterpret_cast<float*>(weights + all / 16 * kColumnTiles * 32);
  }

  // Row r of gate g of the block, unit j of the state is weight(g, r, j), 0 where there is none.
  template <typename Weight>
  __device__ __forceinline__ void fill(Weight weight) const {
    const int count = units / 16 * kColumnTiles * 32;
    for (int i = threadIdx.x; i < count; i += kWarps * 32) {
      const int lane = i % 32, tile = i / 32 % kColumnTiles, unit = i / 32 / kColumnTiles * 16 + lane / 4;
      const int gate = tile / (kUnits / 16), row = tile % (kUnits / 16) * 16 + lane % 4 * 4;
      WeightFragment<T> fragment;
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        fragment.set(w, weight(gate, row + w / 2 * 2, unit + w % 2 * 8),
                     weight(gate, row + w / 2 * 2 + 1, unit + w % 2 * 8));
      }
      weights[i] = fragment;
    }
  }
  __device__ __forceinline__ void take(int gate, int batch, int unit, float value) const {
    taken[(gate * kBatch + batch) * kPitch + unit] = value;
  }

  // exchange[batch][unit of the state]. All threads come with the largest magnitude among the values that they have
  // taken.
  __device__ __forceinline__ void multiply(float* exchange, float largest) const {
    const int lane = threadIdx.x % 32, tiles = units / 16;
    const Scale scale = common_scale(largest);
    for (int first = threadIdx.x / 32; first < tiles; first += kWarps * kRowTiles) {
      float sums[kRowTiles][kBatchTiles][4] = {};
#pragma unroll
      for (int column = 0; column < kColumnTiles; ++column) add(sums, first, column, lane, scale.up);
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        if (first + r * kWarps >= tiles) continue;
#pragma unroll
        for (int b = 0; b < kBatchTiles; ++b) {
          float* to =
              exchange + static_cast<long long>(b * 8 + lane % 4 * 2) * units + (first + r * kWarps) * 16 + lane / 4;
          to[0] = sums[r][b][0] * scale.down, to[units] = sums[r][b][1] * scale.down;
          to[8] = sums[r][b][2] * scale.down, to[units + 8] = sums[r][b][3] * scale.down;
        }
      }
    }
  }

 private:
  struct Scale {
    float up, down;
  };
  // The same for all threads of the block, which meet here.
  __device__ __forceinline__ Scale common_scale(float largest) const {
    if constexpr (!kScaled) {
      __syncthreads();
      return {1, 1};
    } else {
      float* peaks = taken + kGates * kBatch * kPitch;
      largest = warp_max(largest);
      if (threadIdx.x % 32 == 0) peaks[threadIdx.x / 32] = largest;
      __syncthreads();
#pragma unroll
      for (int w = 0; w < kWarps; ++w) largest = fmaxf(largest, peaks[w]);
      const int wanted = 127 + 13 + 127 - static_cast<int>(__float_as_uint(largest) >> 23),
                exponent = min(max(wanted, 1), 253);
      return {__uint_as_float(exponent << 23), __uint_as_float((254 - exponent) << 23)};
    }
  }
  __device__ __forceinline__ void add(float (&sums)[kRowTiles][kBatchTiles][4], int first, int column, int lane,
                                      float up) const {
    constexpr int kTiles = kUnits / 16;
    WeightFragment<T> w[kRowTiles];
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      if (first + r * kWarps < units / 16) w[r] = weights[((first + r * kWarps) * kColumnTiles + column) * 32 + lane];
    }
#pragma unroll
    for (int b = 0; b < kBatchTiles; ++b) {
      const float* from =
          taken + (column / kTiles * kBatch + b * 8 + lane / 4) * kPitch + column % kTiles * 16 + lane % 4 * 4;
      const float4 v = *reinterpret_cast<const float4*>(from);
      const Parts parts(float4{v.x * up, v.y * up, v.z * up, v.w * up});
#pragma unroll
      for (int stage = 0; stage < Parts::kStages; ++stage) {
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
          if (first + r * kWarps < units / 16) parts.add_product(stage, sums[r][b], typename Parts::Weights(w[r]));
        }
      }
    }
  }
};

}  // namespace dnnarray
