// All time steps of a layer back in one launch, the recurrent weights resident in shared memory.
//
// Maths:   the derivatives of the cells of rnn.cuh without peepholes and projection. The gradients are float32, and
//          split for the tensor cores where the weights are of half types: see resident.cuh.
// Layout:  block (x, y, z) owns kUnits hidden units of direction z with all their gates and kBatch sequences; a thread
//          kBatch * kUnits / kThreads elements of the state's gradient. In every step a block multiplies its gates'
//          gradients with its rows of the weights; what it has to give to each unit goes to exchange[step %
//          2][block][batch][unit], and after a barrier among the blocks of the same (y, z) each unit's owner adds up
//          what it got from all of them, in their order.
// Needs:   all blocks resident at once: a cooperative launch of no more of them than multiprocessors. hidden a multiple
//          of 16; layer.gates and layer.cell as the forward has kept them, `counters` zeros, 32 for each group of
//          blocks.
// Bound:   latency: a barrier and the exchange through the L2, and the weights read once from shared memory for each
//          step.

#include "rnn/resident.cuh"
#include "rnn/resident_float.cuh"
#include "rnn/rnn.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::float16_t;
  using Output = dnnarray::float16_t;
  static constexpr int kKind = dnnarray::kLstm;
  static constexpr int kUnits = 32;
  static constexpr int kBatch = 16;
  static constexpr bool kTensor = true;
  static constexpr int kThreads = 256;
};
struct Arguments {
  long long first_batch;
};
#define DNNARRAY_ENTRY rnn_persistent_backward_default
#endif

using namespace dnnarray;
using T = Config::Element;
using M = math_t<T>;
constexpr int kKind = Config::kKind, kThreads = Config::kThreads, kUnits = Config::kUnits, kBatch = Config::kBatch;
constexpr int kGates = kKind == kLstm ? 4 : kKind == kGru ? 3 : 1;
constexpr int kCount = kUnits * kBatch / kThreads,
              kStride = kThreads / kUnits;  // elements of a thread, and sequences between them
template <typename E>
struct SharesOf {
  using type = TensorShares<E, Halves<E>, true, kGates, kUnits, kBatch, kThreads / 32>;
};
template <>
struct SharesOf<bfloat16_t> {
  using type = TensorShares<bfloat16_t, Halves<bfloat16_t>, false, kGates, kUnits, kBatch, kThreads / 32>;
};
template <>
struct SharesOf<float> {
  using Tensor = TensorShares<float, FloatParts, false, kGates, kUnits, kBatch, kThreads / 32>;
  using type = typename Either<Config::kTensor, Tensor, FloatShares<kGates, kUnits, kBatch, kThreads / 32>>::type;
};
using Shares = SharesOf<T>::type;

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

// Gradients of the gates' inputs, in `gates`, and those that the products take, in `taken`; `dh` is the gradient of the
// new state.
__device__ __forceinline__ void differentiate(const Layer<T, float>& layer, const Place& p, Element& my, float dh,
                                              float (&taken)[kGates]) {
  if (!p.running) {
    my.later = dh;
#pragma unroll
    for (int g = 0; g < kGates; ++g) my.gates[g] = taken[g] = 0;
    return;
  }
  dh += my.d_output;
  my.later = 0;
  if constexpr (kKind == kLstm) {
    lstm_backward<M>(my.gates[0], my.gates[1], my.gates[2], my.gates[3], my.before, my.after, dh, my.d_cell,
                     static_cast<float>(layer.clip), 0.0f, 0.0f, 0.0f);
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

__device__ __forceinline__ void write(const Layer<T, float>& layer, const Place& p, const Element& my,
                                      const float (&taken)[kGates]) {
  const Access<T, float> at = {layer, p};
  float* gates = at.of_steps(layer.gates, kGates * layer.hidden);
#pragma unroll
  for (int g = 0; g < kGates; ++g) gates[g * layer.hidden] = my.gates[g];
  if constexpr (kKind == kGru) *at.of_steps(layer.extra, layer.hidden) = taken[2];
}

// What the blocks have given to the thread's elements, added up in their order. Many loads are under way at once: each
// takes long.
__device__ __forceinline__ void receive(const float* from, long long part, int H, const bool (&mine)[kCount],
                                        float (&sums)[kCount]) {
  constexpr int kAtOnce = 32 / kCount;
  for (unsigned first = 0; first < gridDim.x; first += kAtOnce) {
    float values[kAtOnce][kCount];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
      for (int e = 0; e < kCount; ++e) {
        values[i][e] = first + i < gridDim.x && mine[e] ? ld_cg(from + (first + i) * part + e * kStride * H) : 0;
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
      for (int e = 0; e < kCount; ++e) sums[e] += values[i][e];
    }
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    DNNARRAY_ENTRY(const Layer<T, float>* __restrict__ description, const T* __restrict__ weights,
                   const T* __restrict__ weights_reversed, unsigned* counters, float* exchange,
                   const __grid_constant__ Arguments a) {
  extern __shared__ __align__(16) char shared[];
  const Layer<T, float> layer = *description;
  const int d = blockIdx.z, unit = threadIdx.x % kUnits, batch = threadIdx.x / kUnits,
            H = static_cast<int>(layer.hidden);
  const int first_unit = blockIdx.x * kUnits, j = first_unit + unit, group = blockIdx.z * gridDim.y + blockIdx.y;
  const long long n0 = a.first_batch + blockIdx.y * kBatch, part = static_cast<long long>(kBatch) * H;
  const Shares shares(shared, H);
  const T* w = d ? weights_reversed : weights;
  shares.fill([&](int gate, int r, int k) {
    return first_unit + r < H ? w[(static_cast<long long>(gate) * H + first_unit + r) * H + k] : T{};
  });
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
    float largest = 0, received[kCount] = {};
    if (!first)
      receive(exchange + (step + 1) % 2 * gridDim.x * part + static_cast<long long>(batch) * H + j, part, H, mine,
              received);
#pragma unroll
    for (int e = 0; e < kCount; ++e) {
      const int b = batch + e * kStride;
      const float dh = my[e].later + received[e];
      float given[kGates] = {};
      if (mine[e]) {
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
      for (int g = 0; g < kGates; ++g) {
        shares.take(g, b, unit, given[g]);
        const float size = absolute(given[g]);
        if (size < infinity(0.0f))
          largest = fmaxf(largest, size);  // an infinite one would scale the other sequences to nothing
      }
    }
    if (step < 0) break;
    shares.multiply(exchange + (step % 2 * gridDim.x + blockIdx.x) * part, largest);
    barrier.arrive();
  }
}
