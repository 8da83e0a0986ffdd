// All time steps of a layer back in one launch, the recurrent weights resident in shared memory.
//
// Maths:   the derivatives of the cells of rnn.cuh without peepholes and projection. The gradients are float32, split for the tensor cores
//          (split_mma.cuh): for float16 weights as TensorFloat-32 parts, since a gradient may be of any magnitude.
// Layout:  block (x, y, z) owns kUnits hidden units of direction z with all their gates and kBatch sequences; a thread kBatch * kUnits /
//          kThreads elements of the state's gradient. In every step a block multiplies its gates' gradients with its rows of the weights;
//          what it has to give to each unit goes to exchange[step % 2][block][batch][unit], and after a barrier among the blocks of the
//          same (y, z) each unit's owner adds up what it got from all of them, in their order.
// Needs:   all blocks resident at once: no more of them than multiprocessors. hidden a multiple of 16; layer.gates and layer.cell as the
//          forward has kept them, `counters` zeros, 32 for each group of blocks.
// Bound:   latency: a barrier and the exchange through the L2, and the weights read once from shared memory for each step.

#include "dnnarray/grid_barrier.cuh"
#include "dnnarray/rnn.cuh"
#include "dnnarray/split_mma.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float16_t;
  using Output = float16_t;
  static constexpr int kKind = dnnarray::kLstm;
  static constexpr int kUnits = 32;
  static constexpr int kBatch = 16;
  static constexpr bool kWide = true;
  static constexpr int kThreads = 256;
};
#define DNNARRAY_ENTRY rnn_persistent_backward_default
#endif

using namespace dnnarray;
using T = Config::Element;
using M = math_t<T>;
constexpr int kKind = Config::kKind, kThreads = Config::kThreads, kUnits = Config::kUnits, kBatch = Config::kBatch;
constexpr int kGates = kKind == kLstm ? 4 : kKind == kGru ? 3 : 1;
constexpr int kCount = kUnits * kBatch / kThreads, kStride = kThreads / kUnits;  // elements of a thread, and sequences between them
constexpr int kColumnTiles = kGates * kUnits / 16, kBatchTiles = kBatch / 8, kRowTiles = kBatchTiles > 2 ? 2 : 4, kWarps = kThreads / 32;
constexpr int kPitch = kUnits % 32 == 0 ? kUnits + 16 : kUnits;  // keeps the lanes of a warp on different banks
template <bool kWide>
struct Splitting {
  using type = Halves<T>;
};
template <>
struct Splitting<true> {
  using type = WideParts<T>;
};
using Split = Splitting<Config::kWide>::type;

// What a thread keeps of an element from step to step, and what it has read of the next one.
struct Element {
  float later, d_cell;  // the part of the state's gradient that passes by the products
  float gates[kGates], after, before, extra, h, d_output;
};

__device__ __forceinline__ void read(const Layer<T, float>& layer, const Place& p, Element& my) {
  const Access<T, float> at = {layer, p};
  const long long H = layer.hidden;
  const float* gates = at.of_steps(layer.gates, kGates * H);
#pragma unroll
  for (int g = 0; g < kGates; ++g) my.gates[g] = gates[g * H];
  if (kKind == kLstm) my.before = *at.slab(layer.cell, H, false);
  if (kKind == kGru) my.h = *at.slab(layer.state, H, false), my.extra = *at.of_steps(layer.extra, H);
  my.d_output = 0;
  if (p.running && layer.output != nullptr) {
    my.d_output = widen(static_cast<const Config::Output*>(layer.output)[at.output_index()]) * at.factor();
  }
}

// Gradients of the gates' inputs, in `gates`, and those that the products take, in `taken`; `dh` is the gradient of the new state.
__device__ __forceinline__ void differentiate(const Layer<T, float>& layer, const Place& p, Element& my, float dh, float (&taken)[kGates]) {
  if (!p.running) {
    my.later = dh;
#pragma unroll
    for (int g = 0; g < kGates; ++g) my.gates[g] = taken[g] = 0;
    return;
  }
  dh += my.d_output;
  my.later = 0;
  if constexpr (kKind == kLstm) {
    lstm_backward<M>(my.gates[0], my.gates[1], my.gates[2], my.gates[3], my.before, my.after, dh, my.d_cell, static_cast<float>(layer.clip),
                     0.0f, 0.0f, 0.0f);
  } else if constexpr (kKind == kGru) {
    const float r = my.gates[0], z = my.gates[1];
    gru_mix_backward(z, my.gates[2], my.h, dh, my.gates[1], my.gates[2]);
    my.gates[0] = my.gates[2] * my.extra * r * (1 - r);
    taken[2] = my.gates[2] * r;
    my.later = dh * z;
  } else {
    const float h = my.gates[0];
    my.gates[0] = kKind == kTanhCell ? dh * (1 - h * h) : h > 0 ? dh : 0;
  }
#pragma unroll
  for (int g = 0; g < (kKind == kGru ? 2 : kGates); ++g) taken[g] = my.gates[g];
}

__device__ __forceinline__ void write(const Layer<T, float>& layer, const Place& p, const Element& my, const float (&taken)[kGates]) {
  const Access<T, float> at = {layer, p};
  float* gates = at.of_steps(layer.gates, kGates * layer.hidden);
#pragma unroll
  for (int g = 0; g < kGates; ++g) gates[g * layer.hidden] = my.gates[g];
  if constexpr (kKind == kGru) *at.of_steps(layer.extra, layer.hidden) = taken[2];
}

// Weights of the block's own gate rows as tiles: 16 units of the state by 16 rows of one gate.
__device__ __forceinline__ void fill(WeightFragment* weights, const T* w, int first_unit, int H) {
  const int count = H / 16 * kColumnTiles * 32;
  for (int i = threadIdx.x; i < count; i += kThreads) {
    const int lane = i % 32, tile = i / 32 % kColumnTiles, unit = i / 32 / kColumnTiles * 16 + lane / 4;
    const int gate = tile / (kUnits / 16), row = tile % (kUnits / 16) * 16 + lane % 4 * 4;
    WeightFragment fragment = {};
    if (first_unit + row < H) {
      const T* from = w + (static_cast<long long>(gate) * H + first_unit + row) * H + unit;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const T* pair = from + k / 2 * 2 * H + k % 2 * 8;
        fragment.at[k] = pair[0].bits | static_cast<unsigned>(pair[H].bits) << 16;
      }
    }
    weights[i] = fragment;
  }
}

// What the block gives to all units: exchange[batch][unit]. `taken` holds [gate][batch][unit of the block].
__device__ __forceinline__ void multiply(const WeightFragment* weights, const float* taken, float* exchange, int H) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, tiles = H / 16;
  for (int first = warp; first < tiles; first += kWarps * kRowTiles) {
    float sums[kRowTiles][kBatchTiles][4] = {};
#pragma unroll
    for (int column = 0; column < kColumnTiles; ++column) {
      constexpr int kTiles = kUnits / 16;
      WeightFragment w[kRowTiles];
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        if (first + r * kWarps < tiles) w[r] = weights[((first + r * kWarps) * kColumnTiles + column) * 32 + lane];
      }
#pragma unroll
      for (int b = 0; b < kBatchTiles; ++b) {
        const float* from = taken + (column / kTiles * kBatch + b * 8 + lane / 4) * kPitch + column % kTiles * 16 + lane % 4 * 4;
        const Split parts(*reinterpret_cast<const float4*>(from));
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
          if (first + r * kWarps < tiles) parts.add_product(sums[r][b], typename Split::Weights(w[r]));
        }
      }
    }
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      if (first + r * kWarps >= tiles) continue;
#pragma unroll
      for (int b = 0; b < kBatchTiles; ++b) {
        float* to = exchange + static_cast<long long>(b * 8 + lane % 4 * 2) * H + (first + r * kWarps) * 16 + lane / 4;
        to[0] = sums[r][b][0], to[H] = sums[r][b][1], to[8] = sums[r][b][2], to[H + 8] = sums[r][b][3];
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    DNNARRAY_ENTRY(const Layer<T, float>* __restrict__ description, const T* __restrict__ weights, const T* __restrict__ weights_reversed,
                   unsigned* counters, float* exchange, long long first_batch) {
  extern __shared__ __align__(16) char shared[];
  const Layer<T, float> layer = *description;
  const int d = blockIdx.z, unit = threadIdx.x % kUnits, batch = threadIdx.x / kUnits, H = static_cast<int>(layer.hidden);
  const int first_unit = blockIdx.x * kUnits, j = first_unit + unit, group = blockIdx.z * gridDim.y + blockIdx.y;
  const long long n0 = first_batch + blockIdx.y * kBatch, part = static_cast<long long>(kBatch) * H;
  WeightFragment* resident = reinterpret_cast<WeightFragment*>(shared);
  float* taken = reinterpret_cast<float*>(resident + H / 16 * kColumnTiles * 32);
  fill(resident, d ? weights_reversed : weights, first_unit, H);
  exchange += group * 2ll * gridDim.x * part;
  GridBarrier barrier = {counters + group * 32, gridDim.x, 0};
  Element my[kCount] = {};
  bool mine[kCount];
#pragma unroll
  for (int e = 0; e < kCount; ++e) {
    mine[e] = j < H && n0 + batch + e * kStride < layer.batch;
    if (!mine[e]) continue;
    const Place p(layer, d, n0 + batch + e * kStride, j, layer.steps - 1);
    const Access<T, float> at = {layer, p};
    my[e].later = *at.of_batch(layer.d_state, H);
    if (kKind == kLstm) my[e].d_cell = *at.of_batch(layer.d_cell, H), my[e].after = *at.slab(layer.cell, H, true);
    read(layer, p, my[e]);
  }
  for (long long step = layer.steps - 1; step >= -1; --step) {
    const bool first = step == layer.steps - 1;
    if (!first) barrier.wait();
    const float* got = exchange + (step + 1) % 2 * gridDim.x * part;
#pragma unroll
    for (int e = 0; e < kCount; ++e) {
      const int b = batch + e * kStride;
      float given[kGates] = {}, dh = my[e].later;
      if (mine[e]) {
        float sum = 0;
#pragma unroll 8
        for (unsigned block = 0; block < (first ? 0 : gridDim.x); ++block) {
          float value;
          asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(value) : "l"(got + block * part + static_cast<long long>(b) * H + j) : "memory");
          sum += value;
        }
        dh += sum;
        const Place p(layer, d, n0 + b, j, step < 0 ? 0 : step);
        if (step >= 0) {
          differentiate(layer, p, my[e], dh, given);
          write(layer, p, my[e], given);
          my[e].after = my[e].before;
          if (step > 0) read(layer, Place(layer, d, n0 + b, j, step - 1), my[e]);
        } else {
          const Access<T, float> at = {layer, p};
          *at.of_batch(layer.d_state, H) = dh;
          if (kKind == kLstm) *at.of_batch(layer.d_cell, H) = my[e].d_cell;
        }
      }
#pragma unroll
      for (int g = 0; g < kGates; ++g) taken[(g * kBatch + b) * kPitch + unit] = given[g];
    }
    if (step < 0) break;
    __syncthreads();
    multiply(resident, taken, exchange + (step % 2 * gridDim.x + blockIdx.x) * part, H);
    barrier.arrive();
  }
}
