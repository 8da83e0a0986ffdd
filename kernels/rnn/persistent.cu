// All time steps of a layer in one launch, the recurrent weights resident in shared memory.
//
// Maths:   the cells of rnn.cuh without peepholes and projection; the state is float32. With kTensor the products are
//          on tensor cores, the state split into parts (resident.cuh), else they are float32 throughout
//          (resident_float.cuh).
// Layout:  block (x, y, z) owns kUnits hidden units of direction z with all their gates and kBatch sequences; a thread
//          kBatch * kUnits / kThreads elements of the state, which it keeps in registers. In every step a block reads
//          the state of all units of its sequences, which the blocks of the same (y, z) have written, through the L2; a
//          barrier among these blocks ends a step.
// Needs:   all blocks resident at once: a cooperative launch of no more of them than multiprocessors. hidden a multiple
//          of 16; layer.gates holds the input's products, `counters` zeros, 32 for each group of blocks.
// Bound:   latency: a barrier, the way of the state through the L2, and the weights read once from shared memory for
//          each step.

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
#define DNNARRAY_ENTRY rnn_persistent_default
#endif

using namespace dnnarray;
using T = Config::Element;
using M = math_t<T>;
constexpr int kKind = Config::kKind, kThreads = Config::kThreads, kUnits = Config::kUnits, kBatch = Config::kBatch;
constexpr int kGates = kKind == kLstm ? 4 : kKind == kGru ? 3 : 1;
constexpr int kCount = kUnits * kBatch / kThreads,
              kStride = kThreads / kUnits;  // elements of a thread, and sequences between them
template <typename E>
struct ProductsOf {  // a relu's state may leave the range of float16
  template <typename P>
  using Tensor = TensorProducts<E, P, kGates, kUnits, kBatch, kThreads / 32>;
  using type = typename Either<kKind == kReluCell, Tensor<WideParts<E>>, Tensor<Halves<E>>>::type;
};
template <>
struct ProductsOf<float> {
  using Tensor = TensorProducts<float, FloatParts, kGates, kUnits, kBatch, kThreads / 32>;
  using type = typename Either<Config::kTensor, Tensor, FloatProducts<kGates, kUnits, kBatch, kThreads / 32>>::type;
};
using Products = ProductsOf<T>::type;

// What a thread keeps of its units from step to step.
struct Mine {
  float bias[kGates], bias_n;  // bias_n stays beside the state in the n gate of a GRU
  float h[kCount], c[kCount], gates[kCount][kGates], extra[kCount];
};

__device__ __forceinline__ void read_inputs(const Layer<T, float>& layer, int d, long long n, long long j,
                                            long long step, float (&inputs)[kGates]) {
  const Place p(layer, d, n, j, step);
  const float* gates = Access<T, float>{layer, p}.of_steps(layer.gates, kGates * layer.hidden);
#pragma unroll
  for (int g = 0; g < kGates; ++g) inputs[g] = gates[g * layer.hidden];
}

// The gates come with their inputs and leave activated; returns the new state.
__device__ __forceinline__ float cell(float (&gates)[kGates], float extra, float h, float& c, float clip) {
  if constexpr (kKind == kLstm) {
    return lstm_forward<M>(gates[0], gates[1], gates[2], gates[3], c, clip, 0.0f, 0.0f, 0.0f);
  } else if constexpr (kKind == kGru) {
    gates[0] = SigmoidOf<M>::value(gates[0]);
    gates[1] = SigmoidOf<M>::value(gates[1]);
    gates[2] = M::tanh(gates[2] + gates[0] * extra);
    return gru_mix(gates[1], gates[2], h);
  } else {
    gates[0] = kKind == kTanhCell ? M::tanh(gates[0]) : Relu::forward(gates[0], 0.0f, 0.0f);
    return gates[0];
  }
}

// The new state of element e of a thread; `batch` and `unit` are its place within the block. The gates stay for what
// others do not wait for.
__device__ __forceinline__ void advance(const Layer<T, float>& layer, const Products& products, const Place& p,
                                        int batch, int unit, Mine& my, int e) {
  float c = my.c[e];
  my.extra[e] = 0;
#pragma unroll
  for (int g = 0; g < kGates; ++g) {
    const float sum = products.sum(g, batch, unit);
    const bool beside = kKind == kGru && g == 2;
    my.gates[e][g] += my.bias[g] + (beside ? 0 : sum);
    if (beside) my.extra[e] = sum + my.bias_n;
  }
  const float h = cell(my.gates[e], my.extra[e], my.h[e], c, static_cast<float>(layer.clip));
  if (p.running) my.h[e] = h, my.c[e] = c;
  *Access<T, float>{layer, p}.slab(layer.state, layer.hidden, true) = my.h[e];
}

// What is left to write of the step.
__device__ __forceinline__ void finish(const Layer<T, float>& layer, const Place& p, const Mine& my, int e) {
  const Access<T, float> at = {layer, p};
  const long long H = layer.hidden;
  write_output<Config::Output>(layer, p, my.h[e]);
  if (kKind == kLstm && (layer.kept || p.step == layer.steps - 1)) *at.slab(layer.cell, H, true) = my.c[e];
  if (!layer.kept) return;
  float* kept = at.of_steps(layer.gates, kGates * H);
#pragma unroll
  for (int g = 0; g < kGates; ++g) kept[g * H] = my.gates[e][g];
  if (kKind == kGru) *at.of_steps(layer.extra, H) = my.extra[e];
}

__device__ __forceinline__ void begin(const Layer<T, float>& layer, int d, long long n, long long j, Mine& my, int e) {
  const Place p(layer, d, n, j, 0);
  const Access<T, float> at = {layer, p};
  my.h[e] = *at.slab(layer.state, layer.hidden, false);
  if (kKind == kLstm) my.c[e] = *at.slab(layer.cell, layer.hidden, false);
#pragma unroll
  for (int g = 0; g < kGates; ++g) my.bias[g] = kKind == kGru && g == 2 ? at.bias(layer.b_ih, g) : at.biases(g);
  my.bias_n = kKind == kGru ? at.bias(layer.b_hh, 2) : 0.0f;
  read_inputs(layer, d, n, j, 0, my.gates[e]);
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    DNNARRAY_ENTRY(const Layer<T, float>* __restrict__ description, const T* __restrict__ weights,
                   const T* __restrict__ weights_reversed, unsigned* counters, const __grid_constant__ Arguments a) {
  extern __shared__ __align__(16) char shared[];
  const Layer<T, float> layer = *description;
  const int d = blockIdx.z, unit = threadIdx.x % kUnits, batch = threadIdx.x / kUnits,
            H = static_cast<int>(layer.hidden);
  const int first_unit = blockIdx.x * kUnits, j = first_unit + unit;
  const long long n0 = a.first_batch + blockIdx.y * kBatch;
  const int rows = static_cast<int>(min(static_cast<long long>(kBatch), layer.batch - n0));
  const Products products(shared, H);
  const T* w = d ? weights_reversed : weights;
  products.fill(
      [&](int gate, int r, int k) {
        return first_unit + r < H ? w[(static_cast<long long>(gate) * H + first_unit + r) * H + k] : T{};
      },
      H);
  GridBarrier barrier = {counters + (blockIdx.z * gridDim.y + blockIdx.y) * 32, gridDim.x, 0};
  Mine my = {};
#pragma unroll
  for (int e = 0; e < kCount; ++e) {
    if (j < H && batch + e * kStride < rows) begin(layer, d, n0 + batch + e * kStride, j, my, e);
  }
  __syncthreads();
  for (long long step = 0; step < layer.steps; ++step) {
    if (step > 0) barrier.wait();
    const Place first(layer, d, n0, 0, step);
    products.multiply(Access<T, float>{layer, first}.slab(layer.state, H, false), H, rows);
    __syncthreads();
#pragma unroll
    for (int e = 0; e < kCount; ++e) {
      const int b = batch + e * kStride;
      if (j < H && b < rows) advance(layer, products, Place(layer, d, n0 + b, j, step), b, unit, my, e);
    }
    barrier.arrive();
#pragma unroll
    for (int e = 0; e < kCount; ++e) {
      const long long n = n0 + batch + e * kStride;
      if (j >= H || n - n0 >= rows) continue;
      finish(layer, Place(layer, d, n, j, step), my, e);
      if (step + 1 < layer.steps) read_inputs(layer, d, n, j, step + 1, my.gates[e]);
    }
  }
}
