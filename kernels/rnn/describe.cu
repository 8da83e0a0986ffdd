// Writes the description of a layer (rnn.cuh), which the kernels of its many steps read: their own arguments stay few.
//
// Layout:  one thread writes one word after the other, in the order of the arguments.
// Bound:   latency.

#ifndef DNNARRAY_CONFIG
#define DNNARRAY_ENTRY rnn_describe_default
#endif

#define FOUR(n) long long w##n##0, long long w##n##1, long long w##n##2, long long w##n##3

extern "C" __global__ void DNNARRAY_ENTRY(long long* __restrict__ out, FOUR(0), FOUR(1), FOUR(2), FOUR(3), FOUR(4), FOUR(5), FOUR(6), FOUR(7),
                                          FOUR(8)) {
#define WRITE(n) out[4 * n] = w##n##0, out[4 * n + 1] = w##n##1, out[4 * n + 2] = w##n##2, out[4 * n + 3] = w##n##3
  WRITE(0), WRITE(1), WRITE(2), WRITE(3), WRITE(4), WRITE(5), WRITE(6), WRITE(7), WRITE(8);
}
