// A weight brought from C order to what products take: out[k, t, c] = in[k, c, t], t counting the taps of the window.
//
// Layout:  both dense. A block has `each` channels of a k: their taps, which lie side by side, go to shared memory as
//          they stand, and out of it kVector channels of a tap at a time.
// Needs:   channels and `each` multiples of kVector, pointers aligned to as many; shared memory for `each` channels.
// Bound:   memory: in read once, out written once.

#include "dnnarray/core/overlap.cuh"
#include "dnnarray/core/vec.cuh"
#include "dnnarray/core/strides.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::bfloat16_t;
  static constexpr int kVector = 8;
  static constexpr int kThreads = 256;
};
struct Arguments {
  long long channels;
  long long taps;
  int each;
  int parts;
};
#define DNNARRAY_ENTRY conv_weight_order_default
#endif

using namespace dnnarray;
using T = Config::Element;
constexpr int kVector = Config::kVector, kThreads = Config::kThreads;

extern __shared__ uint4 smem_memory[];

extern "C" __global__ void __launch_bounds__(kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ source, T* __restrict__ out, const __grid_constant__ Arguments a) {
  let_next_kernel_begin();
  const long long channels = a.channels, taps = a.taps;
  T* smem = reinterpret_cast<T*>(smem_memory);
  const Split by_part = split(blockIdx.x, a.parts);
  const int first = by_part.rest * a.each,
            own = static_cast<int>(min(static_cast<long long>(a.each), channels - first)),
            window = static_cast<int>(taps);
  source += (by_part.quotient * channels + first) * taps;
  out += by_part.quotient * taps * channels + first;
  for (int i = threadIdx.x * kVector; i < own * window; i += kThreads * kVector)
    store(smem + i, load<T, kVector>(source + i));
  __syncthreads();
  const int vectors = own / kVector;
  for (int i = threadIdx.x; i < vectors * window; i += kThreads) {
    const int t = i / vectors, c = (i - t * vectors) * kVector;
    Vec<T, kVector> found;
#pragma unroll
    for (int j = 0; j < kVector; ++j) found.at[j] = smem[(c + j) * window + t];
    store(out + t * channels + c, found);
  }
}
