// The lengths of the sequences as 32-bit integers, within 0 and the number of steps.
//
// Layout:  flat, a thread owns one element.
// Bound:   latency.

#ifndef DNNARRAY_CONFIG
struct Config {
  using Source = long long;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long size;
  long long steps;
};
#define DNNARRAY_ENTRY rnn_lengths_default
#endif

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const Config::Source* __restrict__ x, int* __restrict__ y, const __grid_constant__ Arguments a) {
  const long long i = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (i >= a.size) return;
  const Config::Source length = x[i];
  y[i] = length <= 0 ? 0
         : static_cast<unsigned long long>(length) > static_cast<unsigned long long>(a.steps)
             ? static_cast<int>(a.steps)
             : static_cast<int>(length);
}
