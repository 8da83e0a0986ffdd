// Depthwise convolution by strips: y[n, c, p] = f(sum over r of x[n, c, p * stride + r - before] * w[c, r] + bias[c] + residual). The input
// gradient of a stride of 1 is the same with the weights turned round.
//
// Layout:  channels innermost in memory, w (K, taps). A block walks down a range of columns of one image, kLines rows a step, which come to
//          shared memory kStages - 1 steps ahead. A thread owns kStrip neighbouring outputs of one channel, kLanes channels beside each other;
//          its weights stay in registers. A row of inputs is used once, for all outputs that it meets: their sums are alive in
//          registers and move on from row to row.
// Needs:   pointers aligned to 16 bytes, channels in whole vectors; a square window of kSide, kStride along both axes, no dilation; less
//          than 2^31 blocks; images of less than 2^31 elements.
// Bound:   memory for small windows: x and y once; float32 arithmetic for large ones. Sums in float32.

#include "dnnarray/depthwise_stream.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr bool kAdded = false;
  static constexpr bool kRelu = false;
  static constexpr int kSide = 7;
  static constexpr int kStride = 1;
  static constexpr int kLanes = 32;
  static constexpr int kStrip = 7;
  static constexpr int kShare = 5;
  static constexpr int kStages = 4;
  static constexpr int kThreads = 128;
  static constexpr int kBlocks = 3;
};
#define DNNARRAY_ENTRY conv_depthwise_strip_default
#endif

using namespace dnnarray;
using T = Config::Element;
constexpr int kSide = Config::kSide, kStride = Config::kStride, kLanes = Config::kLanes, kStrip = Config::kStrip, kStages = Config::kStages;
constexpr int kLines = 2, kPixel = kLanes * sizeof(T), kWide = (kStrip - 1) * kStride + kSide;  // inputs of a strip in a row
constexpr int kAlive = (kSide - 1) / kStride + 1;                                              // outputs that a row meets
constexpr int kRows = kLines / kStride;                                                        // of outputs, in a step

extern __shared__ uint4 smem_memory[];

using Sums = float[kAlive][kStrip];

// What row `kPhase` of each kStride rows adds to the outputs that it meets; new ones begin with the bias.
template <int kPhase>
__device__ __forceinline__ void add_row(Sums& sum, const float (&w)[kSide][kSide], const T* smem, float bias) {
  float x[kWide];
#pragma unroll
  for (int k = 0; k < kWide; ++k) x[k] = widen(smem[k * kLanes]);
#pragma unroll
  for (int j = kAlive - 1; j >= 0; --j) {  // the oldest first: the next ones move to where they were
#pragma unroll
    for (int t = 0; t < kStrip; ++t) {
      if (kPhase == 0) sum[j][t] = j > 0 ? sum[j > 0 ? j - 1 : 0][t] : bias;
#pragma unroll
      for (int s = 0; s < kSide; ++s) {
        if (j * kStride + kPhase < kSide) sum[j][t] += x[t * kStride + s] * w[j * kStride + kPhase][s];
      }
    }
  }
}

// Where a thread stores.
struct Target {
  const T* residual;
  T* y;
  long long h, w;
  int columns;

  __device__ __forceinline__ void put(const float (&sum)[kStrip]) const {
    const DepthwiseFinish<T, 1, Config::kAdded, Config::kRelu> finish{residual, y};
#pragma unroll
    for (int t = 0; t < kStrip; ++t) {
      const float one[1] = {sum[t]};
      if (t < columns) finish.put(one, t * w);
    }
  }
  __device__ __forceinline__ void next_row() {
    y += h;
    if (Config::kAdded) residual += h;
  }
};

struct Range {
  int p, end, q, out_width, before_h;
};

__device__ __forceinline__ void walk(const T* x, const float (&w)[kSide][kSide], float bias, const StreamSource& source, const StreamTile& tile,
                                     const Range& range, Target target, int strip) {
  const int steps = (range.end - range.p + kAlive - 2) / kRows + 1, stage = kLines * tile.pitch * kPixel;
  constexpr int kPass = Config::kThreads / (kPixel / 16);
  RowStream<T, kLines, Config::kShare> stream(x, source, tile, range.p * kStride - range.before_h, kPass);
  const unsigned base = shared_address(smem_memory);
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) {
    if (s < steps) stream.bring(base + s * stage, source, kPass * kPixel);
    copy_commit();
  }
  const T* from = reinterpret_cast<const T*>(smem_memory) + strip * kStrip * kStride * kLanes + threadIdx.x % kLanes;
  Sums sum{};
  int coming = range.p - (kAlive - 1);
  for (int step = 0, slot = 0; step < steps; ++step) {
    copy_wait<kStages - 2>();
    __syncthreads();  // the step is there, and nobody reads the one before any more
    if (step + kStages - 1 < steps) stream.bring(base + (slot == 0 ? kStages - 1 : slot - 1) * stage, source, kPass * kPixel);
    copy_commit();
    const T* row = from + slot * (stage / static_cast<int>(sizeof(T)));
    const auto emit = [&] {
      if (coming >= range.p && coming < range.end) {
        target.put(sum[kAlive - 1]);
        target.next_row();
      }
      ++coming;
    };
    add_row<0>(sum, w, row, bias);
    if constexpr (kStride == 1) emit();
    add_row<kStride - 1>(sum, w, row + tile.pitch * kLanes, bias);
    emit();
    slot = slot == kStages - 1 ? 0 : slot + 1;
  }
}

// Neighbouring blocks have the same pixels of other channels; each does `rows` rows of `across` strips.
extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kBlocks) DNNARRAY_ENTRY(
    const T* __restrict__ gmem_x, const T* __restrict__ gmem_w, const T* __restrict__ gmem_bias, const T* __restrict__ gmem_residual,
    T* __restrict__ gmem_y, long long batch, long long channels, long long flip, long long rows, long long x_n, long long x_h, long long x_w,
    long long y_n, long long y_h, long long y_w, long long height, long long width, long long out_height, long long out_width,
    long long before_h, long long before_w) {
  const auto i = [](long long value) { return static_cast<int>(value); };  // all of them fit
  constexpr int kAcross = Config::kThreads / kLanes, kColumns = kAcross * kStrip;
  const Quotient by_chunk = divide(blockIdx.x, (i(channels) - 1) / kLanes + 1);
  const Quotient by_part = divide(by_chunk.quotient, (i(out_height) - 1) / i(rows) + 1);
  const Quotient by_tile = divide(by_part.quotient, (i(out_width) - 1) / kColumns + 1);
  const int p = by_part.rest * i(rows), q = by_tile.rest * kColumns, strip = threadIdx.x / kLanes, own = q + strip * kStrip;
  const int first = by_chunk.rest * kLanes, channel = first + threadIdx.x % kLanes;
  const bool there = channel < channels && own < out_width;
  float w[kSide][kSide];
#pragma unroll
  for (int tap = 0; tap < kSide * kSide; ++tap) {
    const T* from = gmem_w + static_cast<long long>(channel) * (kSide * kSide) + (flip ? kSide * kSide - 1 - tap : tap);
    w[tap / kSide][tap % kSide] = there ? widen(*from) : 0.0f;
  }
  const float bias = gmem_bias && there ? widen(gmem_bias[channel]) : 0.0f;
  const long long at = by_tile.quotient * y_n + p * y_h + own * y_w + channel;
  const Target target{gmem_residual + at, gmem_y + at, y_h, y_w, there ? min(i(out_width) - own, kStrip) : 0};
  const StreamTile tile{by_tile.quotient, i(batch), 1, q * kStride - i(before_w), (kColumns - 1) * kStride + kSide, first, kPixel / 16, kPixel};
  walk(gmem_x, w, bias, {x_n, x_h, x_w, i(height), i(width), i(channels)}, tile,
       {p, min(p + i(rows), i(out_height)), q, i(out_width), i(before_h)}, target, strip);
}
