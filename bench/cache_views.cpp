#include "bench/cache_views.hpp"

#include <algorithm>
#include <numeric>
#include <string_view>

#include "kernels/attention_split.hpp"
#include "kernels/cache/contiguous.hpp"
#include "reference/inputs.hpp"

namespace kvroof::bench {
namespace {

RowLayout layout_of(const DecodeCase& c, std::int64_t slots) { return row_layout(cache_shape(c), c.order, slots); }

CallViews one_sequence(const RowLayout& layout, std::vector<RowRun> runs, std::int64_t end) {
  CallViews call;
  KvView view = layout.strides;
  view.end_position = end;
  call.views = {view};
  call.runs = {std::move(runs)};
  return call;
}

std::int64_t page_count(const DecodeCase& c) { return (c.T + c.page_size - 1) / c.page_size; }

}  // namespace

std::int64_t measured_token_bytes(const DecodeCase& c) {
  ContiguousCache cache(cache_shape(c), c.order, 2);
  const CacheShape& shape = cache.shape();
  const std::vector<float> zeros(static_cast<std::size_t>(shape.kv_heads * (shape.key_dim + shape.value_dim)), 0.0f);
  const NewRows token = packed_rows(shape, 1, zeros.data(), zeros.data() + shape.kv_heads * shape.key_dim);
  cache.append(token);
  const std::int64_t one = cache.bytes().used;
  cache.append(token);
  return cache.bytes().used - one;
}

CallViews ring_views(const DecodeCase& c, const std::byte* base, std::int64_t wrap) {
  const RowLayout layout = layout_of(c, c.T);
  // Slot = position mod T: positions wrap .. T-1 lie behind slot `wrap`, positions T .. T+wrap-1 at the front.
  std::vector<RowRun> runs = {row_run(layout, base, wrap, wrap, c.T - wrap), row_run(layout, base, 0, c.T, wrap)};
  return one_sequence(layout, std::move(runs), c.T + wrap);
}

std::size_t paged_bytes(const DecodeCase& c) {
  return static_cast<std::size_t>(layout_of(c, c.page_size).bytes * page_count(c));
}

CallViews paged_views(const DecodeCase& c, const std::byte* base) {
  const RowLayout layout = layout_of(c, c.page_size);
  std::vector<std::int64_t> order(static_cast<std::size_t>(page_count(c)));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  if (std::string_view(c.pages) == "shuffled") {
    for (std::size_t i = order.size() - 1; i > 0; --i)  // Fisher-Yates on our own generator: the same everywhere
      std::swap(order[i], order[reference::mix64(7 + i) % (i + 1)]);
  }
  std::vector<RowRun> runs;
  runs.reserve(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::int64_t first = static_cast<std::int64_t>(i) * c.page_size;
    runs.push_back(row_run(layout, base + order[i] * layout.bytes, 0, first, std::min(c.page_size, c.T - first)));
  }
  return one_sequence(layout, std::move(runs), c.T);
}

CallViews windowed_views(const DecodeCase& c, const std::byte* base, std::int64_t capacity, std::int64_t end) {
  const RowLayout layout = layout_of(c, capacity);
  return one_sequence(layout, {row_run(layout, base, 0, 0, end)}, end);
}

std::vector<std::int64_t> batch_lengths(const DecodeCase& c) {
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(c.batch), c.T);
  if (std::string_view(c.lengths) != "skewed") return lengths;
  double shares = 0;
  for (std::int64_t i = 0; i < c.batch; ++i) shares += 1.0 / static_cast<double>(i + 1);
  std::int64_t left = c.batch * c.T;
  for (std::int64_t i = c.batch - 1; i > 0; --i) {
    const double share = static_cast<double>(c.batch * c.T) / (static_cast<double>(i + 1) * shares);
    lengths[static_cast<std::size_t>(i)] = std::max<std::int64_t>(1, static_cast<std::int64_t>(share));
    left -= lengths[static_cast<std::size_t>(i)];
  }
  lengths[0] = left;  // what rounding left over; the longest
  return lengths;
}

CallViews batch_views(const DecodeCase& c, const std::byte* base, const std::vector<std::int64_t>& lengths) {
  // One set of strides per sequence: each has its own layout.
  CallViews call;
  for (std::int64_t rows : lengths) {
    const RowLayout layout = layout_of(c, rows);
    CallViews one = one_sequence(layout, {row_run(layout, base, 0, 0, rows)}, rows);
    call.views.push_back(one.views[0]);
    call.runs.push_back(one.runs[0]);
    base += layout.bytes;
  }
  return call;
}

namespace {
std::int64_t own_pages(const DecodeCase& c) { return (c.T - c.prefix + c.page_size - 1) / c.page_size; }
}  // namespace

std::size_t shared_prefix_bytes(const DecodeCase& c) {
  return static_cast<std::size_t>(layout_of(c, 1).bytes * (c.prefix + c.batch * (c.T - c.prefix)));
}

CallViews shared_prefix_views(const DecodeCase& c, const std::byte* base) {
  const RowLayout layout = layout_of(c, c.page_size);
  const std::int64_t shared = c.prefix / c.page_size;
  CallViews call;
  for (std::int64_t b = 0; b < c.batch; ++b) {
    std::vector<RowRun> runs;
    for (std::int64_t i = 0; i < shared + own_pages(c); ++i) {
      const std::int64_t page = i < shared ? i : i + b * own_pages(c), first = i * c.page_size;
      runs.push_back(row_run(layout, base + page * layout.bytes, 0, first, std::min(c.page_size, c.T - first)));
    }
    CallViews one = one_sequence(layout, std::move(runs), c.T);
    call.views.push_back(one.views[0]);
    call.runs.push_back(std::move(one.runs[0]));
  }
  return call;
}

PieceWalk piece_walk(const AttentionArgs& args, int threads) {
  const KvView& view = args.sequences[0].kv;
  struct Side {
    std::int64_t row_bytes, row_stride, head_stride;
  };
  const Side sides[2] = {{args.shape.key_dim * static_cast<std::int64_t>(storage_bytes(view.k_storage)),
                          view.k_row_stride, view.k_head_stride},
                         {args.shape.value_dim * static_cast<std::int64_t>(storage_bytes(view.v_storage)),
                          view.v_row_stride, view.v_head_stride}};
  std::int64_t heads = 1;                            // of a piece
  const std::int64_t block = page_block_rows(view);  // > 0: a page is read through all heads of a run
  if (block > 0 || (sides[0].head_stride == sides[0].row_bytes && sides[1].head_stride == sides[1].row_bytes))
    heads = make_attention_split(args, threads).head_run;
  while (args.shape.kv_heads % heads != 0) --heads;  // the kernel's last run is shorter; here all are equal
  PieceWalk walk;
  walk.heads = args.shape.kv_heads / heads;
  walk.k_head_stride = heads * view.k_head_stride;
  walk.v_head_stride = heads * view.v_head_stride;
  const RowRun* const end_run = view.runs + view.run_count;
  const RowRun* first = view.runs;  // that of the segment's first row
  for (std::int64_t begin = 0; begin < view.end_position; begin += kSegmentRows) {
    walk.segments.push_back(walk.pieces.size());
    while (first != end_run && first->first_position + first->rows <= begin) ++first;
    for (const std::uint32_t value : {0u, 1u}) {
      const Side& side = sides[value];
      const std::int64_t bytes = block > 0 ? side.row_bytes : heads * side.row_bytes;
      for (const RowRun* run = first; run != end_run && run->first_position < begin + kSegmentRows; ++run) {
        const std::int64_t from = std::max<std::int64_t>(0, begin - run->first_position);
        const std::int64_t to = std::min(run->rows, begin + kSegmentRows - run->first_position);
        const std::int64_t rows = side.row_stride == bytes ? to - from : 1;  // of a piece
        const std::byte* const base = value == 0 ? run->k : run->v;
        if (block > 0 && side.row_stride == bytes) {  // a whole page is one piece, else every head has its own
          const bool whole = to - from == block;
          for (std::int64_t head = 0; head < (whole ? 1 : heads); ++head)
            walk.pieces.push_back({base + head * side.head_stride + from * bytes,
                                   static_cast<std::uint32_t>((whole ? heads : 1) * (to - from) * bytes), value});
          continue;
        }
        for (std::int64_t row = from; row < to; row += rows)
          walk.pieces.push_back({base + row * side.row_stride, static_cast<std::uint32_t>(rows * bytes), value});
      }
    }
  }
  walk.segments.push_back(walk.pieces.size());
  return walk;
}

}  // namespace kvroof::bench
