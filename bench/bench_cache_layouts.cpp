// What other layouts and shapes of work cost against the plain contiguous decode step, each in one tuple with it: ring
// and paged caches, a window inside a long cache, chunks of new tokens, batches of equal and skewed lengths.
#include <algorithm>
#include <functional>
#include <memory>

#include "bench/cache_views.hpp"
#include "bench/threads.hpp"
#include "bench/tuple.hpp"

namespace kvroof::bench {
namespace {

const ShapeCase kMha = {"MHA", 32, 32, 128, 128};
const ShapeCase kGqa = {"GQA", 32, 8, 128, 128};

// One variant of a tuple: a row, and what each cache of the rotation looks like to it.
struct Variant {
  DecodeCase c;
  std::function<CallViews(std::int64_t cache, const CacheSet& set)> views;
  double budget_share = 1.0;
};

// A tuple of variants over the same memory. The first one is the partner of all others; it is measured for the ratios
// and writes a row only if `partner_has_row`, since the decode entries hold that row already.
struct LayoutTuple {
  CacheSet set;  // sizes and count; the base comes from the arena
  std::vector<Variant> variants;
  bool partner_has_row = false;
  std::function<std::string(const DecodeCase&)> label;  // of a ratio: "paged P=16 shuffled/contiguous"
  int least_pairs = 0;
};

std::vector<Json> run_layouts(Sweep& sweep, const LayoutTuple& tuple, double seconds) {
  const DecodeCase& partner = tuple.variants[0].c;
  const std::string name = row_name(tuple.variants.back().c, "kvroof");
  omp_set_num_threads(partner.threads);
  CacheSet set = tuple.set;
  std::vector<Json> rows;
  for (std::size_t i = tuple.partner_has_row ? 0 : 1; i < tuple.variants.size(); ++i)
    rows.push_back(decode_row(tuple.variants[i].c, "kvroof", name));
  std::string reason = sweep.arena.prepare(partner.storage, set, partner.threads);
  if (!reason.empty()) {
    for (Json& row : rows) set_not_run(row, "not_measured", reason);
    return rows;
  }
  DecodeCase roof = partner;  // the compute roof of the largest chunk: the one that can reach it
  for (const Variant& variant : tuple.variants) roof.n = std::max(roof.n, variant.c.n);
  TupleRun run(sweep, set, roof);
  std::vector<std::unique_ptr<KernelRun>> kernels;
  std::vector<std::size_t> at, page_order_at;
  Json unused = decode_row(partner, "kvroof", name);
  for (std::size_t i = 0; i < tuple.variants.size(); ++i) {
    const Variant& variant = tuple.variants[i];
    Json& row = tuple.partner_has_row ? rows[i] : i == 0 ? unused : rows[i - 1];
    page_order_at.push_back(TupleRun::kNone);
    try {
      std::vector<CallViews> calls;
      for (std::int64_t cache = 0; cache < set.count; ++cache) calls.push_back(variant.views(cache, set));
      kernels.push_back(std::make_unique<KernelRun>(variant.c, std::move(calls)));
    } catch (const Error& error) {
      kernels.push_back(nullptr);
      at.push_back(TupleRun::kNone);
      set_not_run(row, "not_measured", error.what());
      continue;
    }
    at.push_back(run.add_kernel(*kernels.back(), kernels.back()->oracle_samples(), row, variant.budget_share));
    if (at.back() == TupleRun::kNone || variant.c.kernel != std::string("paged")) continue;
    std::vector<PieceWalk> walks;
    for (std::int64_t cache = 0; cache < set.count; ++cache)
      walks.push_back(piece_walk(kernels.back()->args(cache), variant.c.threads));
    page_order_at.back() = run.add_page_order(std::move(walks));
  }
  run.measure(seconds, tuple.least_pairs);
  for (std::size_t i = 0; i < tuple.variants.size(); ++i) {
    if (i == 0 && !tuple.partner_has_row) continue;
    Json& row = tuple.partner_has_row ? rows[i] : rows[i - 1];
    if (at[i] == TupleRun::kNone) continue;
    if (tuple.variants[i].c.prefix > 0) {
      row["bytes_rule"] = "every sequence's visible rows";
      row["unique_bytes"] = static_cast<std::int64_t>(shared_prefix_bytes(tuple.variants[i].c));
    }
    run.set_measured(row, at[i], TupleRun::kNone);
    if (page_order_at[i] != TupleRun::kNone) run.set_page_order(row, at[i], page_order_at[i]);
    if (i > 0)
      add_time_ratio(row, row_name(partner, "kvroof"), tuple.label(tuple.variants[i].c), run.ratio(at[i], at[0]));
  }
  return rows;
}

CacheSet cache_set(const Sweep& sweep, std::size_t k_bytes, std::size_t v_bytes) {
  CacheSet set;
  set.k_bytes = k_bytes;
  set.v_bytes = v_bytes;
  set.count = cache_copies(true, k_bytes + v_bytes, sweep.last_level_bytes);
  return set;
}

Variant contiguous(const DecodeCase& c) {
  return {c, [c](std::int64_t i, const CacheSet& set) { return contiguous_views(c, set, i); }};
}

// One layout against contiguous, a page size in both orders of pages. Few variants a tuple: the less time between the
// two sides of a pair, the less of the machine's drift is in their ratio.
LayoutTuple layout_tuple(const Sweep& sweep, const DecodeCase& plain) {
  LayoutTuple tuple;
  tuple.set = cache_set(sweep, plain.k_bytes(), plain.v_bytes());
  tuple.variants.push_back(contiguous(plain));
  tuple.label = [](const DecodeCase& c) {
    std::string text = c.layout;
    if (c.page_size > 0) text += " P=" + std::to_string(c.page_size) + " " + c.pages;
    return text + "/contiguous";
  };
  return tuple;
}

LayoutTuple paged_tuple(const Sweep& sweep, const DecodeCase& plain, std::int64_t page_size) {
  LayoutTuple tuple = layout_tuple(sweep, plain);
  for (const char* pages : {"ordered", "shuffled"}) {
    DecodeCase c = plain;
    c.kernel = c.layout = "paged";
    c.page_size = page_size;
    c.pages = pages;
    tuple.variants.push_back({c, [c](std::int64_t i, const CacheSet& set) { return paged_views(c, set.k(i)); }});
  }
  return tuple;
}

LayoutTuple ring_tuple(const Sweep& sweep, const DecodeCase& plain) {
  LayoutTuple tuple = layout_tuple(sweep, plain);
  DecodeCase c = plain;
  c.kernel = c.layout = "ring";
  c.window = c.T;
  // Wrapped a third of the way, off every block boundary.
  const std::int64_t wrap = plain.T / 3 + 5;
  tuple.variants.push_back(
      {c, [c, wrap](std::int64_t i, const CacheSet& set) { return ring_views(c, set.k(i), wrap); }});
  return tuple;
}

// W rows at the end of ever longer parts of one long cache, against a cache of W rows. The windows of a rotation are
// disjoint, so each is as cold as a cache of its own.
LayoutTuple window_tuple(const DecodeCase& plain, std::int64_t capacity) {
  LayoutTuple tuple;
  tuple.set.k_bytes = plain.k_bytes();
  tuple.set.v_bytes = plain.v_bytes();
  tuple.set.count = capacity / plain.T;  // the memory of the long cache, seen as that many short ones
  tuple.variants.push_back(contiguous(plain));
  DecodeCase c = plain;
  c.kernel = "window";
  c.window = plain.T;
  c.T = capacity;
  tuple.variants.push_back({c, [c, capacity](std::int64_t i, const CacheSet& set) {
                              return windowed_views(c, set.base, capacity, capacity - i * c.window);
                            }});
  tuple.label = [](const DecodeCase& w) {
    return "W=" + std::to_string(w.window) + " in T=" + std::to_string(w.T) + "/T=" + std::to_string(w.window);
  };
  return tuple;
}

LayoutTuple chunk_tuple(const Sweep& sweep, const DecodeCase& plain, const std::vector<std::int64_t>& chunks) {
  LayoutTuple tuple;
  tuple.set = cache_set(sweep, plain.k_bytes(), plain.v_bytes());
  tuple.variants.push_back(contiguous(plain));
  for (std::int64_t n : chunks) {
    DecodeCase c = plain;
    c.kernel = "chunk";
    c.n = n;
    Variant variant = contiguous(c);
    variant.budget_share = 0.3;
    tuple.variants.push_back(variant);
  }
  tuple.label = [](const DecodeCase& c) { return "n=" + std::to_string(c.n) + "/n=1"; };
  return tuple;
}

LayoutTuple batch_tuple(const Sweep& sweep, const DecodeCase& plain, const std::vector<const char*>& kinds) {
  LayoutTuple tuple;
  DecodeCase c = plain;
  c.kernel = "batch";
  tuple.set = cache_set(sweep, c.k_bytes(), c.v_bytes());
  for (const char* lengths : kinds) {
    c.lengths = lengths;
    tuple.variants.push_back(
        {c, [c](std::int64_t i, const CacheSet& set) { return batch_views(c, set.k(i), batch_lengths(c)); }});
  }
  tuple.partner_has_row = true;
  tuple.label = [](const DecodeCase&) { return std::string("skewed/equal"); };
  return tuple;
}

// Sequences that begin with the same pages, against as many with pages of their own; the probe reads the latter's
// bytes.
LayoutTuple prefix_tuple(const Sweep& sweep, const DecodeCase& plain, std::int64_t prefix) {
  LayoutTuple tuple;
  DecodeCase c = plain;
  c.kernel = "batch";
  c.layout = "paged";
  c.page_size = 64;
  c.pages = "ordered";
  c.lengths = "equal";
  tuple.set = cache_set(sweep, c.k_bytes(), c.v_bytes());
  tuple.variants.push_back({c, [c](std::int64_t i, const CacheSet& set) { return shared_prefix_views(c, set.k(i)); }});
  c.prefix = prefix;
  tuple.variants.push_back({c, [c](std::int64_t i, const CacheSet& set) { return shared_prefix_views(c, set.k(i)); }});
  tuple.partner_has_row = true;
  tuple.label = [](const DecodeCase& shared) { return "prefix " + std::to_string(shared.prefix) + "/none shared"; };
  return tuple;
}

}  // namespace

std::vector<Entry> layout_entries(const Sweep& sweep) {
  std::vector<Entry> entries;
  const Preset preset = sweep.options.preset;
  if (preset == Preset::quick) return entries;
  const bool full = preset == Preset::full || preset == Preset::layouts;
  const PresetSizes sizes = sweep.sizes();
  const auto add = [&](LayoutTuple tuple, double weight) {
    Entry entry;
    for (std::size_t i = tuple.partner_has_row ? 0 : 1; i < tuple.variants.size(); ++i)
      entry.row_names.push_back(row_name(tuple.variants[i].c, "kvroof"));
    entry.name = entry.row_names.back();
    entry.weight = weight;
    tuple.least_pairs = full ? 51 : 0;  // small differences are claimed
    entry.run = [tuple](Sweep& s, double seconds) { return run_layouts(s, tuple, seconds); };
    entries.push_back(std::move(entry));
  };
  for (bool all : {false, true}) {
    DecodeCase c;
    c.all_threads = all;
    c.threads = all ? sizes.threads_all : 1;
    c.isa = sizes.isa;
    c.storage = Storage::f16;
    if (preset == Preset::check) {  // a window that begins inside a segment, and a batch
      c.shape = kGqa;
      for (Storage storage : kStorages) {
        c.storage = storage;
        c.T = 1600;
        add(window_tuple(c, c.T * cache_copies(true, c.bytes(), sweep.last_level_bytes)), 1);
        c.batch = 4;
        c.T = 1536;
        add(batch_tuple(sweep, c, {"equal"}), 1);
        c.batch = 1;
      }
      continue;
    }
    if (!full && !all) continue;
    c.shape = kMha;
    c.T = full ? 65536 : 1024;  // f16: 1 GiB
    const auto add_layouts = [&](double weight) {
      for (std::int64_t page_size : {1, 16, 64, 256}) add(paged_tuple(sweep, c, page_size), weight);
      add(ring_tuple(sweep, c), weight);
    };
    add_layouts(full ? 3 : 0.3);
    if (full) {
      c.shape = kGqa;
      c.T = 262144;  // 1 GiB again
      add_layouts(3);
    }
    c.shape = kGqa;
    c.storage = Storage::f32;
    c.T = full ? 1024 : 128;
    add(window_tuple(c, full ? 131072 : 16384), 1);
    c.storage = Storage::f16;
    c.T = full ? 8192 : 512;
    add(chunk_tuple(sweep, c,
                    full ? std::vector<std::int64_t>{2, 4, 8, 16, 32, 64, 128} : std::vector<std::int64_t>{4, 32}),
        full ? 5 : 1);
    c.T = full ? 4096 : 256;
    for (std::int64_t batch : full ? std::vector<std::int64_t>{1, 2, 4, 8, 16, 32, 64} : std::vector<std::int64_t>{8}) {
      c.batch = batch;
      add(batch_tuple(sweep, c, {"equal", "skewed"}), full ? 1 + 0.1 * static_cast<double>(batch) : 1);
    }
    c.batch = 8;
    for (const ShapeCase& shape : {kMha, kGqa}) {
      c.shape = shape;
      add(prefix_tuple(sweep, c, full ? 3584 : 192), full ? 2 : 1);
    }
  }
  return entries;
}

}  // namespace kvroof::bench
