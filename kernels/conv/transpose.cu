// A batch of matrices turned round, to bring images from channels-first to channels-last memory and back: out[b, j, i] = in[b, i, j], with
// zeros behind the last row of `in`.
//
// Layout:  in is rows x columns, out columns x width >= rows, each matrix dense but for its pitch. A block turns a tile of 64 x 64 in
//          shared memory; a thread moves kVectorIn neighbours on the way in and kVectorOut on the way out.
// Needs:   columns and the pitch of in multiples of kVectorIn, width and the pitch of out of kVectorOut, pointers aligned to them.
// Bound:   memory: in read once, out written once.

#include "dnnarray/vec.cuh"
#include "dnnarray/window.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::bfloat16_t;
  static constexpr int kVectorIn = 8;
  static constexpr int kVectorOut = 8;
  static constexpr int kThreads = 256;
};
#define DNNARRAY_ENTRY conv_transpose_default
#endif

using namespace dnnarray;
using T = Config::Element;
constexpr int kTile = 64, kIn = Config::kVectorIn, kOut = Config::kVectorOut;
constexpr int kPitch = kTile + 4 / sizeof(T);  // rows begin one bank further each

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ in, T* __restrict__ out, long long rows, long long columns, long long width, long long in_pitch,
                   long long out_pitch, long long in_batch, long long out_batch, long long tiles_i, long long tiles_j) {
  __shared__ T smem_tile[kTile][kPitch];  // as it goes out: row j, column i
  const Split by_i = split(blockIdx.x, static_cast<int>(tiles_i)), by_j = split(by_i.quotient, static_cast<int>(tiles_j));
  const long long i0 = static_cast<long long>(by_i.rest) * kTile, j0 = static_cast<long long>(by_j.rest) * kTile;
  in += by_j.quotient * in_batch;
  out += by_j.quotient * out_batch;
  for (int t = threadIdx.x; t < kTile * kTile / kIn; t += Config::kThreads) {
    const int i = t / (kTile / kIn), j = t % (kTile / kIn) * kIn;
    Vec<T, kIn> v{};
    if (i0 + i < rows && j0 + j < columns) v = load<T, kIn>(in + (i0 + i) * in_pitch + j0 + j);
#pragma unroll
    for (int e = 0; e < kIn; ++e) smem_tile[j + e][i] = v.at[e];
  }
  __syncthreads();
  for (int t = threadIdx.x; t < kTile * kTile / kOut; t += Config::kThreads) {
    const int j = t / (kTile / kOut), i = t % (kTile / kOut) * kOut;
    if (j0 + j >= columns || i0 + i >= width) continue;
    Vec<T, kOut> v;
#pragma unroll
    for (int e = 0; e < kOut; ++e) v.at[e] = smem_tile[j][i + e];
    store(out + (j0 + j) * out_pitch + i0 + i, v);
  }
}
