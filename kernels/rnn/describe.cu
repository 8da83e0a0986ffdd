// Writes the description of a layer (rnn.cuh), which the kernels of its many steps read: their own arguments stay few.
//
// Layout:  one thread writes one word after the other; the arguments behind `out` have the order of `struct Layer`.
// Bound:   latency.

#ifndef DNNARRAY_CONFIG
struct Arguments {
  void* b_ih;
  void* b_ih_reversed;
  void* b_hh;
  void* b_hh_reversed;
  void* peephole;
  void* peephole_reversed;
  void* gates;
  void* state;
  void* cell;
  void* extra;
  void* product;
  void* before;
  void* projected;
  void* d_state;
  void* d_cell;
  void* output;
  long long output_strides[3];
  void* lengths;
  long long steps;
  long long batch;
  long long hidden;
  long long width;
  long long directions;
  long long reversed;
  long long kept;
  double clip;
  long long dropped;
  unsigned long long seed;
  unsigned long long offset;
  long long threshold;
  double scale;
  long long first;
};
#define DNNARRAY_ENTRY rnn_describe_default
#endif

extern "C" __global__ void DNNARRAY_ENTRY(long long* __restrict__ out, const __grid_constant__ Arguments a) {
  const long long* const words = reinterpret_cast<const long long*>(&a);
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof a / sizeof *words); ++i) out[i] = words[i];
}
