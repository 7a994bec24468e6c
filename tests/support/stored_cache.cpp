#include "tests/support/stored_cache.hpp"

#include <algorithm>
#include <cstring>

namespace kvroof::test {
namespace {

std::int64_t bytes_of(Storage storage) { return static_cast<std::int64_t>(storage_bytes(storage)); }

std::uint32_t poison_bits(Storage storage, Poison poison) {
  switch (storage) {
    case Storage::f32: {
      constexpr std::uint32_t bits[] = {0x7fc12345u, 0x7f800000u, 0xff800000u, 0x7149f2cau};
      return bits[static_cast<int>(poison)];
    }
    case Storage::f16: {
      constexpr std::uint32_t bits[] = {0x7e01u, 0x7c00u, 0xfc00u, 0x7bffu};
      return bits[static_cast<int>(poison)];
    }
    case Storage::bf16: {
      constexpr std::uint32_t bits[] = {0x7fc1u, 0x7f80u, 0xff80u, 0x7149u};
      return bits[static_cast<int>(poison)];
    }
    case Storage::int8: return 0x7f;  // its scale carries the poison
  }
  return 0;
}

void put(std::byte* at, Storage storage, std::uint32_t bits) {
  std::memcpy(at, &bits, storage_bytes(storage));  // little-endian, as every machine this runs on
}

void poison_all(GuardedBuffer& buffer, Storage storage, Poison poison) {
  const std::uint32_t bits = poison_bits(storage, poison);
  const std::size_t step = storage_bytes(storage);
  for (std::size_t at = 0; at + step <= buffer.size(); at += step) put(buffer.data() + at, storage, bits);
}

// Elements a block spans when its last row ends where the row's data end: no padding after it, so that the array's end
// is the data's end.
std::int64_t block_span(std::int64_t rows, std::int64_t heads, std::int64_t row_stride, std::int64_t head_stride,
                        std::int64_t d) {
  return rows == 0 ? 0 : (rows - 1) * row_stride + (heads - 1) * head_stride + d;
}

}  // namespace

const char* poison_name(Poison poison) {
  constexpr const char* names[] = {"nan", "+inf", "-inf", "huge"};
  return names[static_cast<int>(poison)];
}

std::string describe(const Layout& layout) {
  constexpr const char* names[] = {"head_major", "token_major", "interleaved", "wrapped", "paged", "shredded"};
  std::string text = std::string("layout:") + names[static_cast<int>(layout.kind)];
  if (layout.kind == LayoutKind::paged) text += "/P:" + std::to_string(layout.page_rows);
  text += "/layout_seed:" + std::to_string(layout.seed) + "/poison:" + poison_name(layout.poison);
  text += layout.edge == Edge::end ? "/edge:end" : "/edge:start";
  if (layout.drop_invisible) text += "/gaps";
  return text;
}

Layout random_layout(std::uint64_t seed) {
  constexpr std::int64_t pages[] = {1, 2, 3, 7, 16, 33, 64, 256, 700};
  Choices choose(seed ^ 0x4c41594f5554ull);
  Layout layout;
  layout.kind = choose.pick(kLayoutKinds);
  layout.page_rows = choose.pick(pages);
  layout.seed = seed;
  layout.poison = choose.pick(kPoisons);
  layout.edge = choose.one_in(2) ? Edge::end : Edge::start;
  layout.drop_invisible = choose.one_in(2);
  return layout;
}

std::vector<Layout> poisoned_layouts(std::uint64_t seed) {
  std::vector<Layout> list;
  for (const Poison poison : kPoisons) {
    for (const LayoutKind kind : kLayoutKinds) list.push_back({kind, 4, seed + 4, poison, Edge::end});
    list.push_back({LayoutKind::paged, 16, seed + 16, poison, Edge::start});
  }
  return list;
}

std::vector<Layout> edge_layouts() {
  std::vector<Layout> list;
  for (const Edge edge : {Edge::end, Edge::start}) {
    for (const LayoutKind kind : {LayoutKind::head_major, LayoutKind::paged})
      list.push_back({.kind = kind, .page_rows = 3, .edge = edge});
  }
  return list;
}

std::vector<char> visible_rows(const reference::AttentionProblem& p) {
  std::vector<char> seen(static_cast<std::size_t>(p.T), 0);
  for (std::int64_t i = p.T - p.n; i < p.T; ++i) {
    for (std::int64_t j = 0; j <= i; ++j) {
      if (p.visible(i, j)) seen[static_cast<std::size_t>(j)] = 1;
    }
  }
  return seen;
}

StoredCache::Slots StoredCache::choose_slots(const Case& c, const Layout& layout, Choices& choose,
                                             std::int64_t& block_rows) {
  const std::int64_t T = c.problem.T;
  Slots slots;
  block_rows = T + (choose.one_in(3) ? choose.below(9) : 0);
  switch (layout.kind) {
    case LayoutKind::head_major:
    case LayoutKind::token_major:
    case LayoutKind::interleaved: slots.runs.push_back({0, T, 0, 0}); break;
    case LayoutKind::shredded:
      for (std::int64_t t = 0; t < T;) {
        const std::int64_t rows = std::min(T - t, choose.one_in(4) ? 1 : choose.between(1, 70));
        slots.runs.push_back({t, rows, 0, t});
        t += rows;
      }
      break;
    case LayoutKind::wrapped: {
      // Rows that every query has left behind are gone from a ring; the kept tokens lie in front of it.
      const std::int64_t oldest = T - c.problem.n;
      const std::int64_t live = c.problem.window > oldest ? 0 : oldest - c.problem.window + 1;
      const std::int64_t kept = std::min(c.problem.kept_tokens, live);
      const std::int64_t ring = T - live + choose.below(40);
      const std::int64_t shift = choose.below(std::max<std::int64_t>(ring, 1));
      block_rows = kept + ring;
      if (kept > 0) slots.runs.push_back({0, kept, 0, 0});
      const std::int64_t begin = ring == 0 ? 0 : (live + shift) % ring;
      const std::int64_t first = std::min(T - live, ring - begin);
      if (first > 0) slots.runs.push_back({live, first, 0, kept + begin});
      if (T - live > first) slots.runs.push_back({live + first, T - live - first, 0, kept});
      break;
    }
    case LayoutKind::paged: {
      block_rows = layout.page_rows;
      const std::int64_t used = (T + block_rows - 1) / block_rows;
      slots.blocks = used + choose.between(0, 5);
      std::vector<std::int64_t> places(static_cast<std::size_t>(slots.blocks));
      for (std::size_t i = 0; i < places.size(); ++i) places[i] = static_cast<std::int64_t>(i);
      choose.shuffle(places);
      for (std::int64_t b = 0; b < used; ++b) {
        slots.runs.push_back(
            {b * block_rows, std::min(block_rows, T - b * block_rows), places[static_cast<std::size_t>(b)], 0});
      }
      break;
    }
  }
  return slots;
}

StoredCache::Place StoredCache::choose_place(const Case& c, const Layout& layout, Choices& choose,
                                             std::int64_t block_rows) {
  const std::int64_t heads = c.problem.kv_heads, dk = c.problem.key_dim, dv = c.problem.value_dim;
  const auto pad = [&choose] { return choose.one_in(2) ? 0 : choose.between(1, 19); };
  const bool token_major = layout.kind == LayoutKind::token_major || layout.kind == LayoutKind::interleaved ||
                           (layout.kind >= LayoutKind::wrapped && choose.one_in(2));
  Place p;
  p.block_rows = block_rows;
  const auto strides = [&](std::int64_t d, std::int64_t& row, std::int64_t& head) {
    if (token_major) {
      head = d + pad();
      row = heads * head + pad();
    } else {
      row = d + pad();
      head = block_rows * row + pad();
    }
  };
  strides(dk, p.k_row, p.k_head);
  strides(dv, p.v_row, p.v_head);
  strides(1, p.ks_row, p.ks_head);
  strides(1, p.vs_row, p.vs_head);
  if (layout.kind == LayoutKind::interleaved) {  // one byte-addressed array; choose strides that suit both elements
    const std::int64_t sk = bytes_of(c.spec.k_storage), sv = bytes_of(c.spec.v_storage), unit = std::max(sk, sv);
    const std::int64_t k_bytes = (dk * sk + unit - 1) / unit * unit, v_bytes = (dv * sv + unit - 1) / unit * unit;
    const std::int64_t head = k_bytes + v_bytes + unit * pad(), row = heads * head + unit * pad();
    p.k_head = head / sk;
    p.k_row = row / sk;
    p.v_head = head / sv;
    p.v_row = row / sv;
  }
  p.k_block = block_span(block_rows, heads, p.k_row, p.k_head, dk) + pad();
  p.v_block = block_span(block_rows, heads, p.v_row, p.v_head, dv) + pad();
  p.ks_block = block_span(block_rows, heads, p.ks_row, p.ks_head, 1) + pad();
  p.vs_block = block_span(block_rows, heads, p.vs_row, p.vs_head, 1) + pad();
  return p;
}

StoredCache::StoredCache(const Case& c, const Layout& layout) {
  const reference::AttentionProblem& p = c.problem;
  const Storage ks = c.spec.k_storage, vs = c.spec.v_storage;
  Choices choose(layout.seed);
  std::int64_t block_rows = 0;
  const Slots slots = choose_slots(c, layout, choose, block_rows);
  const Place place = choose_place(c, layout, choose, block_rows);

  const auto array = [&](Storage storage, std::int64_t block, std::int64_t row, std::int64_t head, std::int64_t d) {
    const std::int64_t span = block_span(block_rows, p.kv_heads, row, head, d);
    const std::int64_t elements = span == 0 || slots.blocks == 0 ? 0 : (slots.blocks - 1) * block + span;
    GuardedBuffer buffer(static_cast<std::size_t>(elements * bytes_of(storage)), layout.edge, storage_bytes(storage));
    poison_all(buffer, storage, layout.poison);
    return buffer;
  };
  shared_ = layout.kind == LayoutKind::interleaved;
  if (shared_) {
    const std::int64_t unit = std::max(bytes_of(ks), bytes_of(vs));
    v_offset_ = (p.key_dim * bytes_of(ks) + unit - 1) / unit * unit;
    const std::int64_t last = block_rows == 0 ? 0 : (block_rows - 1) * place.k_row + (p.kv_heads - 1) * place.k_head;
    const std::int64_t bytes = block_rows == 0 ? 0 : last * bytes_of(ks) + v_offset_ + p.value_dim * bytes_of(vs);
    k_ = GuardedBuffer(static_cast<std::size_t>(bytes), layout.edge, static_cast<std::size_t>(unit));
    // What lies between rows is poison in every type that could be read there; f32 NaN is NaN in bf16 and f16 halves.
    k_.fill(layout.poison == Poison::nan ? 0x7fff7fffu : poison_bits(Storage::f32, layout.poison));
  } else {
    k_ = array(ks, place.k_block, place.k_row, place.k_head, p.key_dim);
    v_ = array(vs, place.v_block, place.v_row, place.v_head, p.value_dim);
  }
  if (ks == Storage::int8) k_scale_ = array(Storage::f32, place.ks_block, place.ks_row, place.ks_head, 1);
  if (vs == Storage::int8) v_scale_ = array(Storage::f32, place.vs_block, place.vs_row, place.vs_head, 1);

  view_.end_position = p.T;
  view_.k_storage = ks;
  view_.v_storage = vs;
  view_.k_row_stride = place.k_row * bytes_of(ks);
  view_.k_head_stride = place.k_head * bytes_of(ks);
  view_.v_row_stride = place.v_row * bytes_of(vs);
  view_.v_head_stride = place.v_head * bytes_of(vs);
  if (ks == Storage::int8) {
    view_.k_scale_row_stride = place.ks_row;
    view_.k_scale_head_stride = place.ks_head;
  }
  if (vs == Storage::int8) {
    view_.v_scale_row_stride = place.vs_row;
    view_.v_scale_head_stride = place.vs_head;
  }

  const std::vector<char> visible = visible_rows(p);
  std::vector<RowRun> runs;
  for (const Slots::Run& run : slots.runs) {
    write_rows(c, run, place, visible);
    const auto seen = [&](std::int64_t t) { return visible[static_cast<std::size_t>(t)] != 0; };
    std::int64_t first = run.position, last = run.position + run.rows;
    if (layout.drop_invisible) {
      while (first < last && !seen(first)) ++first;
      while (last > first && !seen(last - 1)) --last;
    }
    if (first == last) continue;
    const std::int64_t row = run.row + first - run.position;
    RowRun r;
    r.k = k_.data() + (run.block * place.k_block + row * place.k_row) * bytes_of(ks);
    r.v =
        (shared_ ? k_.data() + v_offset_ : v_.data()) + (run.block * place.v_block + row * place.v_row) * bytes_of(vs);
    if (ks == Storage::int8) r.k_scale = k_scale_.as<float>() + run.block * place.ks_block + row * place.ks_row;
    if (vs == Storage::int8) r.v_scale = v_scale_.as<float>() + run.block * place.vs_block + row * place.vs_row;
    r.first_position = first;
    r.rows = last - first;
    runs.push_back(r);
  }
  // The list of runs is read to its last entry and no further.
  runs_ = GuardedBuffer(runs.size() * sizeof(RowRun), layout.edge, alignof(RowRun));
  if (!runs.empty()) std::memcpy(runs_.data(), runs.data(), runs.size() * sizeof(RowRun));
  view_.runs = runs_.as<RowRun>();
  view_.run_count = static_cast<std::int64_t>(runs.size());
}

void StoredCache::write_rows(const Case& c, const Slots::Run& run, const Place& place,
                             const std::vector<char>& visible) {
  const reference::AttentionProblem& p = c.problem;
  const Storage ks = c.spec.k_storage, vs = c.spec.v_storage;
  for (std::int64_t t = run.position; t < run.position + run.rows; ++t) {
    if (visible[static_cast<std::size_t>(t)] == 0) continue;  // stays poison
    const std::int64_t row = run.row + t - run.position;
    for (std::int64_t h = 0; h < p.kv_heads; ++h) {
      const std::int64_t i = t * p.kv_heads + h;
      std::byte* k = k_.data() + (run.block * place.k_block + row * place.k_row + h * place.k_head) * bytes_of(ks);
      std::byte* v = (shared_ ? k_.data() + v_offset_ : v_.data()) +
                     (run.block * place.v_block + row * place.v_row + h * place.v_head) * bytes_of(vs);
      encode_row(ks, p.k.data() + i * p.key_dim, p.key_dim, k);
      encode_row(vs, p.v.data() + i * p.value_dim, p.value_dim, v);
      const auto set = [&](GuardedBuffer& scales, std::int64_t block, std::int64_t rs, std::int64_t hs, float value) {
        scales.as<float>()[run.block * block + row * rs + h * hs] = value;
      };
      if (ks == Storage::int8) {
        set(k_scale_, place.ks_block, place.ks_row, place.ks_head, p.k_scale[static_cast<std::size_t>(i)]);
      }
      if (vs == Storage::int8) {
        set(v_scale_, place.vs_block, place.vs_row, place.vs_head, p.v_scale[static_cast<std::size_t>(i)]);
      }
    }
  }
}

std::uint64_t StoredCache::hash() const {
  std::uint64_t h = 0;
  for (const GuardedBuffer* buffer : {&k_, &v_, &k_scale_, &v_scale_, &runs_}) {
    h = h * 0x100000001b3ull ^ (buffer->data() == nullptr ? 0 : buffer->hash());
  }
  return h;
}

bool StoredCache::intact() const {
  for (const GuardedBuffer* buffer : {&k_, &v_, &k_scale_, &v_scale_, &runs_}) {
    if (!buffer->intact()) return false;
  }
  return true;
}

}  // namespace kvroof::test
