// A batch of matrices turned round, to bring images from channels-first to channels-last memory and back: out[b, j, i]
// = in[b, i, j], with zeros behind the last row of `in`.
//
// Layout:  in is rows x columns, out columns x width >= rows, each matrix dense but for its pitch. A block turns a tile
//          of 64 rows x kColumns in shared memory: a thread takes kVectorIn neighbours of two rows, so that it puts
//          down pairs as they go out, and moves kVectorOut neighbours on the way out.
// Needs:   columns and the pitch of in multiples of kVectorIn, width and the pitch of out of kVectorOut, pointers
//          aligned to them.
// Bound:   memory: in read once, out written once.

#include "dnnarray/core/overlap.cuh"
#include "dnnarray/core/vec.cuh"
#include "dnnarray/core/strides.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::bfloat16_t;
  static constexpr int kColumns = 64;
  static constexpr int kVectorIn = 8;
  static constexpr int kVectorOut = 8;
  static constexpr int kThreads = 256;
};
struct Arguments {
  long long rows;
  long long columns;
  long long width;
  long long in_pitch;
  long long out_pitch;
  long long in_batch;
  long long out_batch;
  int tiles_i;
  int tiles_j;
};
#define DNNARRAY_ENTRY conv_transpose_default
#endif

using namespace dnnarray;
using T = Config::Element;
constexpr int kTile = 64, kColumns = Config::kColumns, kIn = Config::kVectorIn, kOut = Config::kVectorOut;
constexpr int kChunk = 16 / sizeof(T);

// Where element (j, i) of a tile lies as it goes out; the 16-byte chunks of a row are exchanged so that a warp meets
// all banks both ways.
__device__ __forceinline__ int place(int j, int i) {
  return j * kTile + (i / kChunk ^ (j / 8 ^ j) % 8) * kChunk + i % kChunk;
}

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ source, T* __restrict__ out, const __grid_constant__ Arguments a) {
  let_next_kernel_begin();
  const long long rows = a.rows, columns = a.columns, width = a.width, in_pitch = a.in_pitch, out_pitch = a.out_pitch;
  __shared__ alignas(16) T smem_tile[kTile * kColumns];
  const Split by_i = split(blockIdx.x, a.tiles_i), by_j = split(by_i.quotient, a.tiles_j);
  const long long i0 = static_cast<long long>(by_i.rest) * kTile, j0 = static_cast<long long>(by_j.rest) * kColumns;
  source += by_j.quotient * a.in_batch;
  out += by_j.quotient * a.out_batch;
#pragma unroll
  for (int t = threadIdx.x; t < kTile / 2 * kColumns / kIn; t += Config::kThreads) {
    const int i = t / (kColumns / kIn) * 2, j = t % (kColumns / kIn) * kIn;
    Vec<T, kIn> low{}, high{};
    const T* from = source + (i0 + i) * in_pitch + j0 + j;
    if (i0 + i < rows && j0 + j < columns) low = load<T, kIn>(from);
    if (i0 + i + 1 < rows && j0 + j < columns) high = load<T, kIn>(from + in_pitch);
#pragma unroll
    for (int e = 0; e < kIn; ++e) store(smem_tile + place(j + e, i), Vec<T, 2>{{low.at[e], high.at[e]}});
  }
  __syncthreads();
#pragma unroll
  for (int t = threadIdx.x; t < kTile * kColumns / kOut; t += Config::kThreads) {
    const int j = t / (kTile / kOut), i = t % (kTile / kOut) * kOut;
    if (j0 + j < columns && i0 + i < width)
      store(out + (j0 + j) * out_pitch + i0 + i, load<T, kOut>(smem_tile + place(j, i)));
  }
}
