// The lengths of the sequences as 32-bit integers, within 0 and the number of steps.
//
// Layout:  flat, a thread owns one element.
// Bound:   latency.

#ifndef DNNARRAY_CONFIG
struct Config {
  using Source = long long;
  static constexpr int kThreads = 128;
};
#define DNNARRAY_ENTRY rnn_lengths_default
#endif

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const Config::Source* __restrict__ x, int* __restrict__ y, long long n, long long steps) {
  const long long i = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (i >= n) return;
  const Config::Source length = x[i];
  y[i] = length <= 0 ? 0 : static_cast<unsigned long long>(length) > static_cast<unsigned long long>(steps) ? static_cast<int>(steps)
                                                                                                            : static_cast<int>(length);
}
