// Ends of tiles whose operands TMA brings: results leave and residuals come as panels of shared memory.
#pragma once

#include "conv/implicit_tma.cuh"
#include "dnnarray/mma/warp.cuh"
#include "dnnarray/core/ring.cuh"
#include "dnnarray/ptx/ldmatrix.cuh"

namespace dnnarray {

template <typename Config>
struct TmaResidual;

// A warpgroup's share of a tile as panels of 64 rows x 64 channels of half types in shared memory: its residual on the
// way in, its result on the way out; kSets of them, so that one tile is on its way while the next one ends. An epilogue
// thread, which belongs to the producer warpgroup, moves them by TMA, and the consumers wait neither for loads nor for
// stores: `ready` completes once the panels hold the residual, or are free where there is none; `done` once a warpgroup
// has no more to do with them; `free` once a result has left them and the thread that asks for operands may bring a
// residual (TmaResidual). `image.where(m)` is the place of row m in the image. Results that lie channels-first the
// warpgroup writes itself, from panels that are turned round: rows of 64 pixels of a channel.
template <typename Config>
struct TmaPanels {
  using C = TmaTile<Config>;
  using T = typename Config::Element;
  using R = typename Config::Result;
  static constexpr bool kStaged = sizeof(R) == 2, kResidual = Config::kResidual;
  static constexpr int kSets = Config::kSets, kPanels = C::kTileN / 64, kPanel = 64 * C::kRow,
                       kEach = C::kMmas * kPanels * kPanel;
  static constexpr int kSet = C::kConsumers * kEach, kBytes = kSets * kSet, kBarriers = 3 * C::kConsumers * kSets,
                       kWarps = C::kGroup / 32;

  const char* memory;
  unsigned address, barriers;
  int part;
  Ring<kSets> ring;

  __device__ __forceinline__ TmaPanels(const char* first, unsigned first_barrier, int group)
      : TmaPanels(first, first_barrier, group, group) {}

  // Of a warpgroup whose rows are another part of the tile.
  __device__ __forceinline__ TmaPanels(const char* first, unsigned first_barrier, int group, int rows)
      : memory(first + group * kEach),
        address(shared_address(memory)),
        barriers(first_barrier + group * kSets * 24),
        part(rows) {}

  // Of the warpgroup that is `further` than another.
  __device__ __forceinline__ TmaPanels(const TmaPanels& other, int further)
      : memory(other.memory + further * kEach),
        address(other.address + further * kEach),
        barriers(other.barriers + further * kSets * 24),
        part(other.part + further) {}

  static __device__ __forceinline__ void init(unsigned barriers) {
    for (int i = 0; i < kBarriers; ++i) mbarrier_init(barriers + i * 8, i % 3 == 1 ? kWarps : 1);
  }

  // --- by the epilogue thread
  // -------------------------------------------------------------------------------------------------

  // Loads the residuals, unless the producer does (`by_producer`, see TmaResidual), and, kResult, stores the results of
  // `count` tiles: `tile(i)` is one.
  template <bool kResult, typename Tile, typename Image>
  __device__ __forceinline__ void carry(const TensorMap& residual, const TensorMap& y, int count, Tile tile, int outs,
                                        const Image& image, bool by_producer = false) {
    for (int i = 0; kResidual && !by_producer && i < kSets && i < count; ++i) bring(residual, i, tile(i), outs, image);
    for (int i = 0; i < count; ++i, ring.next()) {
      mbarrier_wait(done(), ring.parity);
      if (kResult) {
        each(ring.stage, tile(i), outs, image,
             [&](unsigned panel, const WindowPlace& place) { tma_store_im2col<Config::kAxes>(panel, y, place); });
        tma_store_commit_group();
        tma_store_wait_group_read<0>();
      }
      if (!kResidual) {
        mbarrier_arrive(ready(ring.stage));
      } else if (by_producer) {
        mbarrier_arrive(free(ring.stage));
      } else if (i + kSets < count) {
        bring(residual, ring.stage, tile(i + kSets), outs, image);
      }
    }
  }

  // --- by the warpgroup
  // -----------------------------------------------------------------------------------------------

  // Panels of the result, rounded; a residual has been added, and these rows of the panels are then this warp's own.
  __device__ __forceinline__ void write(const Target<T, R>& target, const float (&sums)[C::kMmas][C::kTileN / 2],
                                        const TmaPlace& tile) {
    if (!kResidual) wait_ready();
#pragma unroll
    for (int i = 0; i < C::kMmas; ++i)
#pragma unroll
      for (int p = 0; p < kPanels; ++p) {
        if (tile.n + p * 64 < target.outs) fill(target, sums[i], i, p);
      }
    fence_proxy_async();
    let_go();
  }

  // The result to channels-first memory, `pixels` of an image; a thread moves kFirst of a channel at once.
  // `image.at(m)` is where channel 0 of row m lies, or -1.
  template <typename Image>
  __device__ __forceinline__ void write_first(const Target<T, R>& target, const float (&sums)[C::kMmas][C::kTileN / 2],
                                              const TmaPlace& tile, const Image& image, int pixels) const {
    const int group = 1 + static_cast<int>(threadIdx.x) / C::kGroup;
    bar_sync<128>(group);  // the last tile's panels have been read
#pragma unroll
    for (int i = 0; i < C::kMmas; ++i)
#pragma unroll
      for (int p = 0; p < kPanels; ++p) {
        if (tile.n + p * 64 < target.outs) fill_transposed(target, sums[i], i, p);
      }
    bar_sync<128>(group);
    constexpr int kVector = Config::kFirst, kAcross = 64 / kVector, kStep = C::kGroup / kAcross;
    const int thread = threadIdx.x % C::kGroup, across = thread % kAcross * kVector;
    for (int i = 0; i < C::kMmas; ++i) {
      const long long at = image.at(tile.m + (part * C::kMmas + i) * 64 + across);
      if (at < 0) continue;
      R* to = target.y + at + (tile.group * target.outs + tile.n) * static_cast<long long>(pixels);
#pragma unroll 4
      for (int n = thread / kAcross; n < C::kTileN && tile.n + n < target.outs; n += kStep) {
        const char* row = memory + i * kPanels * kPanel + n * C::kRow;
        store(to + n * static_cast<long long>(pixels),
              load<R, kVector>(reinterpret_cast<const R*>(row + (across / 8 ^ n % 8) * 16) + across % 8));
      }
    }
  }

  // How many of a tile's stages come before a warpgroup adds its residual, so that it waits for its products while
  // those of the others run on.
  static __device__ __forceinline__ int middle(int part, int stages) {
    return stages * (C::kConsumers + part) / (2 * C::kConsumers);
  }

  // Adds the residual to the sums. The panels stay this warpgroup's until it writes them or lets them go.
  __device__ __forceinline__ void add(float (&sums)[C::kMmas][C::kTileN / 2], const TmaPlace& tile, int outs) {
    wait_ready();
#pragma unroll
    for (int i = 0; i < C::kMmas; ++i)
#pragma unroll
      for (int p = 0; p < kPanels; ++p) {
        if (tile.n + p * 64 >= outs) continue;
        unsigned pieces[4][4];
        load_panel(pieces, i, p);
        add_panel(sums[i], p, pieces);
      }
  }

  // The same in two steps: to registers while products run, and to the sums behind them.
  struct Pieces {
    unsigned of[C::kMmas][kPanels][4][4];
  };

  __device__ __forceinline__ void take(Pieces& pieces, const TmaPlace& tile, int outs) const {
    wait_ready();
#pragma unroll
    for (int i = 0; i < C::kMmas; ++i)
#pragma unroll
      for (int p = 0; p < kPanels; ++p) {
        if (tile.n + p * 64 < outs) load_panel(pieces.of[i][p], i, p);
      }
  }

  static __device__ __forceinline__ void add(float (&sums)[C::kMmas][C::kTileN / 2], const Pieces& pieces,
                                             const TmaPlace& tile, int outs) {
#pragma unroll
    for (int i = 0; i < C::kMmas; ++i)
#pragma unroll
      for (int p = 0; p < kPanels; ++p) {
        if (tile.n + p * 64 < outs) add_panel(sums[i], p, pieces.of[i][p]);
      }
  }

  // Where the residual lies, once it is there.
  __device__ __forceinline__ unsigned brought() const {
    wait_ready();
    return slot(ring.stage, 0, 0);
  }

  __device__ __forceinline__ void let_go() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(done());
    ring.next();
  }

 private:
  friend struct TmaResidual<Config>;

  __device__ __forceinline__ unsigned ready(int set) const { return barriers + set * 24; }
  __device__ __forceinline__ unsigned done() const { return barriers + ring.stage * 24 + 8; }
  __device__ __forceinline__ unsigned free(int set) const { return barriers + set * 24 + 16; }
  __device__ __forceinline__ unsigned slot(int set, int mma, int p) const {
    return address + set * kSet + (mma * kPanels + p) * kPanel;
  }

  __device__ __forceinline__ void expect(int set, const TmaPlace& tile, int outs) const {
    const int there = tile.n + C::kTileN <= outs ? kPanels : (outs - tile.n + 63) / 64;
    mbarrier_arrive_expect_tx(ready(set), C::kMmas * there * kPanel);
  }

  // Asks for the residual of a tile.
  template <typename Image>
  __device__ __forceinline__ void bring(const TensorMap& residual, int set, const TmaPlace& tile, int outs,
                                        const Image& image) const {
    expect(set, tile, outs);
    each(set, tile, outs, image, [&](unsigned panel, const WindowPlace& place) {
      tma_load_im2col<Config::kAxes>(panel, residual, ready(set), place, TapPlace{0, 0, 0});
    });
  }

  // Calls `act(panel, place)` for each panel of the tile that is there.
  template <typename Image, typename Act>
  __device__ __forceinline__ void each(int set, const TmaPlace& tile, int outs, const Image& image, Act act) const {
    for (int i = 0; i < C::kMmas; ++i) {
      WindowPlace place = image.where(tile.m + (part * C::kMmas + i) * 64);
      for (int p = 0; p < kPanels && tile.n + p * 64 < outs; ++p) {
        place.c = tile.group * outs + tile.n + p * 64;
        act(slot(set, i, p), place);
      }
    }
  }

  // Without a residual the panels are free at first.
  __device__ __forceinline__ void wait_ready() const {
    mbarrier_wait(ready(ring.stage), kResidual ? ring.parity : ring.parity ^ 1);
  }

  // Where a lane's row of four matrices of 8 x 8 lies: chunks 2 j and 2 j + 1 of 16 rows. A row's chunks are exchanged
  // as in all panels.
  __device__ __forceinline__ unsigned matrices(int mma, int p, int j) const {
    const int lane = threadIdx.x % 32, row = threadIdx.x % C::kGroup / 32 * 16 + lane % 16;
    return slot(ring.stage, mma, p) + row * C::kRow + ((2 * j + lane / 16) ^ row % 8) * 16;
  }

  // Which sums the piece k of these matrices is.
  static __device__ __forceinline__ constexpr int pair(int p, int j, int k) {
    return (p * 8 + 2 * j + k / 2) * 4 + k % 2 * 2;
  }

  __device__ __forceinline__ void load_panel(unsigned (&pieces)[4][4], int mma, int p) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) ldmatrix_x4(matrices(mma, p, j), pieces[j]);
  }

  static __device__ __forceinline__ void add_panel(float (&sums)[C::kTileN / 2], int p,
                                                   const unsigned (&pieces)[4][4]) {
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        float* to = sums + pair(p, j, k);
        float residual[2];
        widen_pair(residual[0], residual[1], pieces[j][k], T());
        to[0] += residual[0], to[1] += residual[1];
      }
  }

  __device__ __forceinline__ void fill(const Target<T, R>& target, const float (&sums)[C::kTileN / 2], int mma,
                                       int p) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      unsigned pieces[4];
      finish(target, sums, p, j, pieces);
      stmatrix_x4(matrices(mma, p, j), pieces);
    }
  }

  // The same with pixels and channels exchanged.
  __device__ __forceinline__ void fill_transposed(const Target<T, R>& target, const float (&sums)[C::kTileN / 2],
                                                  int mma, int p) const {
    const int lane = threadIdx.x % 32, chunk = threadIdx.x % C::kGroup / 32 * 2 + lane / 8 % 2;
    const unsigned at = slot(0, mma, p) + (lane / 16 * 8 + lane % 8) * C::kRow + (chunk ^ lane % 8) * 16;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      unsigned pieces[4];
      finish(target, sums, p, j, pieces);
      stmatrix_x4_trans(at + j * 16 * C::kRow, pieces);
    }
  }

  // Four matrices of the result, rounded.
  static __device__ __forceinline__ void finish(const Target<T, R>& target, const float (&sums)[C::kTileN / 2], int p,
                                                int j, unsigned (&pieces)[4]) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float* v = sums + pair(p, j, k);
      pieces[k] = Finished<typename Config::Activation>::pair(v[0], v[1], target.p, target.q, R());
    }
  }
};

// A residual that is loaded between the operands of its tile: the producer thread brings it panel by panel, some stages
// apart, so that no stage waits behind many of them, and each warpgroup adds its own at another stage, while the
// products of the others run on. Tiles of few stages have no room for that (`apart` is 0): the epilogue threads bring
// all panels at once, and the warpgroups add them behind the products.
template <typename Config>
struct TmaResidual {
  using C = TmaTile<Config>;
  using Panels = TmaPanels<Config>;
  static constexpr bool kThere = Panels::kResidual && Panels::kStaged && Config::kFirst == 0;
  static constexpr int kOwn = C::kMmas * Panels::kPanels,
                       kAll = C::kConsumers * kOwn;  // panels of a warpgroup, and of the tile
  static constexpr int kLead = 6;  // stages before the first: until then the last tile's results have left

  Panels panels;  // of the first warpgroup
  int apart, next = kAll, due = 0;

  __device__ __forceinline__ TmaResidual(const Panels& first, int blocks)
      : panels(first), apart(stages_apart(blocks)) {}

  // Stages of a tile that come before a warpgroup adds its residual.
  static __device__ __forceinline__ int before(int part, int blocks) {
    return stages_apart(blocks) > 0 ? Panels::middle(part, blocks) : blocks;
  }

  // Such that all panels of a warpgroup are asked for before it waits for them: what it waits for must not stand behind
  // a stage that waits for it.
  static __device__ __forceinline__ int stages_apart(int blocks) {
    const int first = Panels::middle(0, blocks) - kLead, last = Panels::middle(C::kConsumers - 1, blocks) - kLead;
    return kThere ? max(min(first / kOwn, last / kAll), 0) : 0;
  }

  __device__ __forceinline__ void begin_tile() { next = apart > 0 ? 0 : kAll, due = kLead; }

  // After each stage that has been asked for.
  template <typename Image>
  __device__ __forceinline__ void stage_asked(const TensorMap& residual, const TmaPlace& tile, int outs,
                                              const Image& image) {
    if (next == kAll || --due > 0) return;
    bring(residual, next++, tile, outs, image);
    due = apart;
  }

  __device__ __forceinline__ void end_tile() { panels.ring.next(); }

 private:
  // Panel i of the tile.
  template <typename Image>
  __device__ __forceinline__ void bring(const TensorMap& residual, int i, const TmaPlace& tile, int outs,
                                        const Image& image) const {
    const int group = i / kOwn, row = i / Panels::kPanels, p = i % Panels::kPanels;
    const Panels own(panels, group);
    if (i % kOwn == 0) {
      mbarrier_wait(own.free(panels.ring.stage), panels.ring.parity ^ 1);
      own.expect(panels.ring.stage, tile, outs);
    }
    if (tile.n + p * 64 >= outs) return;
    WindowPlace place = image.where(tile.m + row * 64);
    place.c = tile.group * outs + tile.n + p * 64;
    tma_load_im2col<Config::kAxes>(own.slot(panels.ring.stage, row % C::kMmas, p), residual,
                                   own.ready(panels.ring.stage), place, TapPlace{0, 0, 0});
  }
};

}  // namespace dnnarray
