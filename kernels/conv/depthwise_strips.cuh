// What a block of depthwise convolution by strips (conv/depthwise_strip.cu) computes, whoever brings its rows of
// inputs. C is the Config of a kernel.
#pragma once

#include "dnnarray/core/division.cuh"
#include "conv/depthwise_stream.cuh"

namespace dnnarray {

template <typename C>
struct DepthwiseStrips {
  using T = typename C::Element;
  static constexpr int kSide = C::kSide, kStride = C::kStride, kLanes = C::kLanes, kStrip = C::kStrip,
                       kStages = C::kStages;
  static constexpr int kIn = C::kReads, kOut = C::kWrites,
                       kMaps = kIn > kOut ? kIn : kOut;  // channels that a thread reads, writes, has weights of
  static constexpr int kChannels = kLanes * kIn, kPixel = kChannels * sizeof(T);
  static constexpr int kDepth = C::kDepth, kPlanes = C::kPlanes, kTaps = kDepth * kSide * kSide;
  static constexpr int kLines = C::kLines,
                       kWide = (kStrip - 1) * kStride + kSide;  // rows of inputs in a step; inputs of a strip in a row
  static constexpr int kAlive = (kSide - 1) / kStride + 1;      // outputs that a row meets
  static constexpr int kRows = kLines / kStride;                // of outputs, in a step

  static __device__ __forceinline__ Quotient split(int a, const Divisor& by) {
    const int q = static_cast<int>(by.quotient(a));
    return {q, a - q * static_cast<int>(by.n)};
  }

  using PlaneSums = float[kAlive][kStrip][kOut];
  using Sums = PlaneSums[kPlanes];
  using Weights = float[kDepth][kSide][kSide][kMaps];

  // What row kPhase of each kStride rows adds to the outputs of a plane that it meets. In the first one of the first
  // plane of a window they move on and new ones begin with the bias: the oldest first, so that each takes the place of
  // the one before.
  template <int kPhase>
  static __device__ __forceinline__ void add_row(PlaneSums& sum, const float (&x)[kWide][kIn],
                                                 const float (&w)[kSide][kSide][kMaps], const float (&bias)[kOut],
                                                 bool first) {
#pragma unroll
    for (int j = kAlive - 1; j >= 0; --j) {
#pragma unroll
      for (int t = 0; t < kStrip; ++t) {
#pragma unroll
        for (int v = 0; v < kMaps; ++v) {
          const int in = v * kIn / kMaps, out = v * kOut / kMaps;
          if (kPhase == 0 && first && v * kOut % kMaps == 0)
            sum[j][t][out] = j > 0 ? sum[j > 0 ? j - 1 : 0][t][out] : bias[out];
#pragma unroll
          for (int s = 0; s < kSide; ++s) {
            if (j * kStride + kPhase < kSide) sum[j][t][out] += x[t * kStride + s][in] * w[j * kStride + kPhase][s][v];
          }
        }
      }
    }
  }

  // The same for a row of all planes, `apart` elements from each other.
  template <int kPhase>
  static __device__ __forceinline__ void add_rows(Sums& sum, const Weights& w, const T* smem, int apart,
                                                  const float (&bias)[kOut]) {
#pragma unroll
    for (int o = 0; o < kDepth + kPlanes - 1; ++o) {
      float x[kWide][kIn];
#pragma unroll
      for (int k = 0; k < kWide; ++k) widen_all(x[k], load<T, kIn>(smem + o * apart + k * kChannels));
#pragma unroll
      for (int plane = 0; plane < kPlanes; ++plane) {
        if (o >= plane && o - plane < kDepth)
          add_row<kPhase>(sum[plane], x, w[o >= plane ? o - plane : 0], bias, o == plane);
      }
    }
  }

  // The weights of kLanes * kMaps channels from `first` on, in memory (channel, tap).
  struct WeightSource {
    static constexpr int kPiece = 16 / sizeof(T), kPieces = kLanes * kMaps * kTaps / kPiece, kOwn = kMaps * kTaps;
    const T* gmem;
    int first, channels;
    bool flip;

    // Those of this thread, by way of shared memory; zeros behind the last channel.
    __device__ __forceinline__ void load(Weights& w, uint4* smem) const {
      bring(smem);
      __syncthreads();
      float own[kOwn];
      read(own, reinterpret_cast<const T*>(smem) + threadIdx.x % kLanes * kOwn);
      __syncthreads();
#pragma unroll
      for (int v = 0; v < kMaps; ++v) {
#pragma unroll
        for (int tap = 0; tap < kTaps; ++tap) {
          w[tap / (kSide * kSide)][tap / kSide % kSide][tap % kSide][v] =
              flip ? own[v * kTaps + kTaps - 1 - tap] : own[v * kTaps + tap];
        }
      }
    }

   private:
    // In whole vectors, all of them on their way at once.
    __device__ __forceinline__ void bring(uint4* smem) const {
      constexpr int kTimes = (kPieces - 1) / C::kThreads + 1;
      const T* from = gmem + static_cast<long long>(first) * kTaps;
      const int there = (channels - first) * kTaps;
      uint4 pieces[kTimes];
#pragma unroll
      for (int k = 0; k < kTimes; ++k) {
        const int i = threadIdx.x + k * C::kThreads;
        pieces[k] = ld_global_nc_v4_if(from + i * kPiece, i < kPieces && i * kPiece < there);
      }
#pragma unroll
      for (int k = 0; k < kTimes; ++k) {
        const int i = threadIdx.x + k * C::kThreads;
        if (i < kPieces) smem[i] = pieces[k];
      }
    }
    // Half types by two where a thread's weights are whole words.
    static __device__ __forceinline__ void read(float (&own)[kOwn], const T* smem) {
      constexpr int kTogether = sizeof(T) == 2 && kOwn % 2 == 0 ? 2 : 1;
#pragma unroll
      for (int i = 0; i < kOwn; i += kTogether) {
        float values[kTogether];
        widen_all(values, dnnarray::load<T, kTogether>(smem + i));
#pragma unroll
        for (int j = 0; j < kTogether; ++j) own[i + j] = values[j];
      }
    }
  };

  // Where a thread stores.
  struct Target {
    const T* residual;
    T* y;
    long long d, h, w;
    int columns, planes;

    __device__ __forceinline__ void put(const float (&sum)[kStrip][kOut], long long at) const {
      const DepthwiseFinish<T, kOut, C::kAdded, C::kRelu> finish{residual, y};
      if (columns == kStrip) {
#pragma unroll
        for (int t = 0; t < kStrip; ++t) finish.put(sum[t], at + t * w);
      } else {
#pragma unroll
        for (int t = 0; t < kStrip; ++t) {
          if (t < columns) finish.put(sum[t], at + t * w);
        }
      }
    }
    __device__ __forceinline__ void next_row() {
      y += h;
      if (C::kAdded) residual += h;
    }
  };

  // Rows of outputs p to `end`, which read `groups` groups of kStride rows of the image from `row` on; `skipped` such
  // groups stand above it.
  struct Range {
    int p, end, row, groups, skipped;

    __device__ __forceinline__ Range(int first, int last, int before, int height) : p(first), end(last) {
      const int top = first * kStride - before;
      skipped = min(max(-top, 0) / kStride, kAlive - 1);
      row = top + skipped * kStride;
      const int inside = (min((last - 1) * kStride - before + kSide, height) - row + kStride - 1) / kStride;
      groups = max(inside, last - first - skipped);  // behind the last one, kAlive - 1 rows of outputs are under way
    }
  };

  // What a launch is told. Pairs hold (output, input) extents and (stride, before) of the axis of depth; divisors are
  // of chunks of channels, parts of the rows, tiles beside each other, groups of planes, strips beside each other,
  // columns that a tile reads.
  struct Problem {
    const T *w, *bias, *residual;
    T* y;
    int batch, channels;
    bool flip;
    Divisor chunks, parts, tiles, depth_groups, across, pitch;
    int rows;
    long long x_n, x_h, x_w, y_n, y_h, y_w;
    int height, width, out_height, out_width, before_h, before_w;
    long long x_d, y_d;
    int depth, out_depth, stride_d, before_d;
  };

  // As the arguments of a kernel say.
  template <typename Arguments>
  static __device__ __forceinline__ Problem problem_of(const T* w, const T* bias, const T* residual, T* y,
                                                       const Arguments& a) {
    const PixelStrides &of_x = a.x_strides, &of_y = a.y_strides;
    const ConvAxis &deep = a.axes.d, &down = a.axes.h, &across = a.axes.w;
    return {w,
            bias,
            residual,
            y,
            a.batch,
            a.channels,
            a.flip != 0,
            Divisor(a.chunks, a.by_chunks),
            Divisor(a.parts, a.by_parts),
            Divisor(a.tiles, a.by_tiles),
            Divisor(a.depth_groups, a.by_depth_groups),
            Divisor(a.across, a.by_across),
            Divisor(a.pitch, a.by_pitch),
            a.rows,
            of_x.n,
            of_x.h,
            of_x.w,
            of_y.n,
            of_y.h,
            of_y.w,
            down.space,
            across.space,
            down.out,
            across.out,
            down.before,
            across.before,
            of_x.d,
            of_y.d,
            deep.space,
            deep.out,
            deep.stride,
            deep.before};
  }

  // What a block works on: `rows` rows of `across` strips of each of its images, or of planes of one. Neighbouring
  // blocks have the same pixels of other channels.
  struct Block {
    int groups, p, q, image, plane,
        first;       // images beside each other; the first output, image, plane of inputs and channel
    Quotient strip;  // of this thread

    __device__ __forceinline__ explicit Block(const Problem& a) {
      const int across = static_cast<int>(a.across.n);
      groups = kDepth > 1 ? 1 : C::kThreads / kLanes / across;
      const Quotient by_chunk = split(blockIdx.x, a.chunks), by_part = split(by_chunk.quotient, a.parts),
                     by_tile = split(by_part.quotient, a.tiles);
      const Quotient by_depth =
          kDepth > 1 ? split(by_tile.quotient, a.depth_groups) : Quotient{by_tile.quotient * groups, 0};
      p = by_part.rest * a.rows, q = by_tile.rest * across * kStrip, image = by_depth.quotient,
      plane = by_depth.rest * kPlanes;
      first = by_chunk.rest * kChannels;
      strip = split(threadIdx.x / kLanes, a.across);
    }
    // The first column of inputs; how many planes or images a step has; the first plane of inputs.
    __device__ __forceinline__ int left(const Problem& a) const { return q * kStride - a.before_w; }
    __device__ __forceinline__ int seen() const { return kDepth > 1 ? kDepth + kPlanes - 1 : groups; }
    __device__ __forceinline__ int top_plane(const Problem& a) const {
      return kDepth > 1 ? plane * a.stride_d - a.before_d : 0;
    }
    __device__ __forceinline__ Range range(const Problem& a) const {
      return Range(p, min(p + a.rows, a.out_height), a.before_h, a.height);
    }
  };

  // Walks down a block's rows. `rows` brings them: begin(steps) asks for the first ones, weights_read() says that the
  // last place of its ring has been read, ahead(step) asks for those that belong to a later step; its `stage` is the
  // bytes of a step.
  template <typename Rows>
  static __device__ __forceinline__ void walk(const Problem& a, const Block& block, const Range& range, Rows& rows,
                                              uint4* smem) {
    const int own = block.q + block.strip.rest * kStrip, channel = block.first + threadIdx.x % kLanes * kIn,
              to = channel * kOut / kIn;
    const int image = block.image + block.strip.quotient;
    const bool there =
        channel < a.channels && own < a.out_width && block.strip.quotient < block.groups && image < a.batch;
    float bias[kOut];
#pragma unroll
    for (int v = 0; v < kOut; ++v) bias[v] = a.bias && there ? widen(a.bias[to + v]) : 0.0f;
    const long long at = image * a.y_n + block.plane * a.y_d + block.p * a.y_h + own * a.y_w + to;
    Target target{a.residual + at,
                  a.y + at,
                  a.y_d,
                  a.y_h,
                  a.y_w,
                  there ? min(a.out_width - own, kStrip) : 0,
                  kDepth > 1 ? a.out_depth - block.plane : 1};
    const int pitch = static_cast<int>(a.pitch.n), steps = (range.groups + kRows - 1) / kRows;
    rows.begin(steps);
    Weights w;
    const WeightSource of_w{a.w, block.first * kMaps / kIn, a.channels * kMaps / kIn, a.flip};
    of_w.load(w, smem + (kStages - 1) * (rows.stage / 16));  // the last place to be filled
    rows.weights_read();
    const int place_of_strip =
        min(block.strip.quotient, block.groups - 1) * kLines * pitch + block.strip.rest * kStrip * kStride;
    const T* from = reinterpret_cast<const T*>(smem) + place_of_strip * kChannels + threadIdx.x % kLanes * kIn;
    Sums sum;
#pragma unroll
    for (int plane = 0; plane < kPlanes; ++plane) {
#pragma unroll
      for (int j = 0; j < kAlive; ++j) {
#pragma unroll
        for (int t = 0; t < kStrip; ++t) {
#pragma unroll
          for (int v = 0; v < kOut; ++v) sum[plane][j][t][v] = bias[v];
        }
      }
    }
    int coming = range.p - (kAlive - 1) + range.skipped, left = range.groups, place = 0;
    unsigned parity = 0;
    const auto emit = [&](int j) {
      if (coming >= range.p && coming < range.end) {
#pragma unroll
        for (int plane = 0; plane < kPlanes; ++plane) {
          if (plane < target.planes) target.put(sum[plane][j], plane * target.d);
        }
        target.next_row();
      }
      ++coming;
    };
    for (int step = 0; step < steps; ++step, left -= kRows) {
      rows.ahead(step, steps);
      rows.ring.wait_for_inputs(place, parity);
      const int apart = kLines * pitch * kChannels;
      const T* line = from + place * (rows.stage / static_cast<int>(sizeof(T)));
#pragma unroll 1
      for (int i = 0; i < min(kRows, left); ++i, line += kStride * pitch * kChannels) {
        add_rows<0>(sum, w, line, apart, bias);
        if constexpr (kStride == 2) add_rows<1>(sum, w, line + pitch * kChannels, apart, bias);
        emit(kAlive - 1);
      }
      rows.ring.leave(place);
      if (rows.next(place)) parity ^= 1;
    }
#pragma unroll
    for (int j = kAlive - 2; j >= 0; --j) emit(j);  // those that end below the image
  }
};

// The ring of a block's steps: where the next one comes, and which place has to be free for it.
template <int kStages>
struct StepTurns {
  StepRing<kStages> ring;
  int coming = StepRing<kStages>::kAhead, last = kStages - 2;
  unsigned last_parity = 1;

  static __device__ __forceinline__ bool next(int& at) { return (at = at == kStages - 1 ? 0 : at + 1) == 0; }
  __device__ __forceinline__ void wait_for_place(int step) const {
    if (step >= 2) ring.wait_for_all(last, last_parity);
  }
  __device__ __forceinline__ void turn() {
    next(coming);
    if (next(last)) last_parity ^= 1;
  }
};

}  // namespace dnnarray
