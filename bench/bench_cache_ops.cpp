// What the caches themselves cost: appending one token, forking a sequence. Contiguous, ring and paged in one tuple.
#include "bench/cgroup.hpp"
#include "bench/clock.hpp"
#include "bench/kernel_run.hpp"
#include "bench/result_rows.hpp"
#include "bench/sweep.hpp"
#include "kernels/cache/contiguous.hpp"
#include "kernels/cache/paged.hpp"
#include "kernels/cache/ring.hpp"

namespace kvroof::bench {
namespace {

constexpr std::int64_t kPageRows = 16;

struct OpCases {
  DecodeCase contiguous, ring, paged;  // ring unused by fork
};

Json op_row(const DecodeCase& c, const std::string& tuple, std::int64_t bytes) {
  Json row = decode_row(c, "kvroof", tuple);
  row["bytes"] = bytes;
  row["flops"] = 0;
  row["intensity"] = nullptr;
  for (const char* field : {"intensity", "read_roof_gb_per_s", "compute_roof_gflops", "attainable_gflops",
                            "read_fraction", "attainable_fraction", "gflops"})
    row[std::string(field) + "_reason"] = "this row writes rows, it reads no cache";
  row["checked_reason"] = row["output_hash_reason"] = "no attention is computed; the tests hold the caches to a model";
  return row;
}

std::vector<Json> measure(Sweep& sweep, const std::vector<Contender>& contenders, const std::vector<DecodeCase>& cases,
                          const std::vector<std::int64_t>& bytes, double seconds) {
  const std::string tuple = row_name(cases.back(), "kvroof");
  Conditions conditions;
  conditions.mhz_before = measured_mhz();
  const auto throttled = cgroup_throttled();
  const PairingResult paired = run_paired(contenders, sweep.pairing(seconds, 1));
  conditions.mhz_after = measured_mhz();
  const auto throttled_after = cgroup_throttled();
  if (throttled && throttled_after) conditions.throttled = *throttled_after - *throttled;
  std::vector<Json> rows;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    Json row = op_row(cases[i], tuple, bytes[i]);
    Timed timed;
    timed.time_ns = &paired.time_ns[i];
    timed.calls = paired.calls[i];
    set_times(row, timed);
    set_conditions(row, conditions);
    if (i > 0)
      add_time_ratio(row, row_name(cases[0], "kvroof"), std::string(cases[i].layout) + "/contiguous",
                     summarize(pair_ratios(paired.time_ns[i], paired.time_ns[0])));
    rows.push_back(row);
  }
  return rows;
}

std::vector<Json> not_run(const std::vector<DecodeCase>& cases, const std::string& reason) {
  std::vector<Json> rows;
  for (const DecodeCase& c : cases) {
    rows.push_back(op_row(c, row_name(cases.back(), "kvroof"), 0));
    set_not_run(rows.back(), "not_measured", reason);
  }
  return rows;
}

// `n` tokens with the same values.
NewRows same_token(const CacheShape& shape, std::int64_t n, const std::vector<float>& values) {
  NewRows rows = packed_rows(shape, n, values.data(), values.data() + shape.kv_heads * shape.key_dim);
  rows.k_row_stride = rows.v_row_stride = 0;
  return rows;
}

std::vector<float> token_values(const CacheShape& shape) {
  return query_values(static_cast<std::size_t>(shape.kv_heads * (shape.key_dim + shape.value_dim)));
}

// One token after another into caches with room for T rows, begun anew when full: more memory than the last-level cache
// holds, so every append finds its lines cold, as a decode step does that has just read the whole cache.
std::vector<Json> run_append(Sweep& sweep, const OpCases& c, double seconds) {
  const std::int64_t T = c.contiguous.T;
  const CacheShape shape = cache_shape(c.contiguous);
  const RingOptions ring_options{.capacity = T, .window = T};
  const PagedOptions paged_options{.page_rows = kPageRows, .page_count = T / kPageRows};
  const std::int64_t sizes[3] = {ContiguousCache::bytes_needed(shape, RowOrder::head_major, T),
                                 RingCache::bytes_needed(shape, ring_options),
                                 PagedCache::bytes_needed(shape, paged_options)};
  const auto up = [](std::int64_t bytes) { return static_cast<std::size_t>((bytes + 63) / 64 * 64); };
  const std::vector<DecodeCase> cases = {c.contiguous, c.ring, c.paged};
  std::string reason;
  std::byte* const memory = sweep.arena.scratch(1, up(sizes[0]) + up(sizes[1]) + up(sizes[2]), reason);
  if (memory == nullptr) return not_run(cases, reason);
  ContiguousCache contiguous(shape, RowOrder::head_major, T, {memory, up(sizes[0])});
  RingCache ring(shape, ring_options, {memory + up(sizes[0]), up(sizes[1])});
  PagedCache paged(shape, paged_options, {memory + up(sizes[0]) + up(sizes[1]), up(sizes[2])});
  const SequenceId sequence = paged.create();
  const std::vector<float> values = token_values(shape);
  // All three are full before anything is timed. A first touch of memory costs up to twenty appends, and the layouts
  // pay it at different times: a head-major cache with its first token, which lies in every head, a pool page by page.
  const NewRows all = same_token(shape, T, values), token = same_token(shape, 1, values);
  contiguous.append(all);
  ring.append(all);
  paged.append(sequence, all);
  const std::vector<Contender> contenders = {
      {"contiguous",
       [&](std::int64_t) {
         if (contiguous.length() == T) contiguous.truncate_to(0);
         contiguous.append(token);
       }},
      {"ring", [&](std::int64_t) { ring.append(token); }},
      {"paged",
       [&](std::int64_t) {
         if (paged.length(sequence) == T) paged.truncate_to(sequence, 0);
         paged.append(sequence, token);
       }},
  };
  const std::int64_t bytes = bytes_per_token(shape);
  return measure(sweep, contenders, cases, {bytes, bytes, bytes}, seconds);
}

// A second sequence with the same T rows, and its end. Contiguous copies them, paged shares pages.
std::vector<Json> run_fork(Sweep& sweep, const OpCases& c, double seconds) {
  const std::int64_t T = c.contiguous.T;
  const CacheShape shape = cache_shape(c.contiguous);
  const PagedOptions paged_options{.page_rows = kPageRows, .page_count = T / kPageRows + 1};
  const std::vector<DecodeCase> cases = {c.contiguous, c.paged};
  const std::int64_t need = 2 * ContiguousCache::bytes_needed(shape, RowOrder::head_major, T) +
                            PagedCache::bytes_needed(shape, paged_options);
  if (const std::int64_t room = sweep.arena.room_bytes(); need > room) {
    const char* const of = sweep.options.memory_limit ? " MiB within the memory limit" : " MiB free";
    return not_run(cases, "needs " + std::to_string((need >> 20) + 1) + " MiB, " + std::to_string(room >> 20) + of);
  }
  ContiguousCache contiguous(shape, RowOrder::head_major, T);
  PagedCache paged(shape, paged_options);
  const SequenceId sequence = paged.create();
  const std::vector<float> values = token_values(shape);
  const NewRows tokens = same_token(shape, T, values);
  contiguous.append(tokens);
  paged.append(sequence, tokens);
  const std::vector<Contender> contenders = {
      {"contiguous", [&](std::int64_t) { const ContiguousCache copy = contiguous.fork(); }},
      {"paged", [&](std::int64_t) { paged.release(paged.fork(sequence)); }},
  };
  return measure(sweep, contenders, cases, {contiguous.bytes().used, 0}, seconds);
}

}  // namespace

std::vector<Entry> cache_op_entries(const Sweep& sweep) {
  std::vector<Entry> entries;
  const Preset preset = sweep.options.preset;
  if (preset == Preset::quick || preset == Preset::check) return entries;
  const bool full = preset == Preset::full || preset == Preset::layouts;
  for (const ShapeCase& shape : {ShapeCase{"MHA", 32, 32, 128, 128}, ShapeCase{"GQA", 32, 8, 128, 128}}) {
    if (!full && shape.name == "MHA") continue;
    for (const char* kernel : {"append", "fork"}) {
      const bool append = std::string(kernel) == "append";
      OpCases c;
      c.contiguous.kernel = kernel;
      c.contiguous.shape = shape;
      c.contiguous.storage = Storage::f16;
      c.contiguous.isa = sweep.isa;
      c.contiguous.T = 4096;
      if (append) {
        const std::int64_t per_token = bytes_per_token(cache_shape(c.contiguous));
        while (full && c.contiguous.T * per_token < 4 * sweep.last_level_bytes) c.contiguous.T *= 2;
      }
      c.ring = c.paged = c.contiguous;
      c.ring.layout = "ring";
      c.ring.window = c.ring.T;
      c.paged.layout = "paged";
      c.paged.page_size = kPageRows;
      c.paged.pages = "ordered";
      Entry entry;
      entry.row_names = {row_name(c.contiguous, "kvroof"), row_name(c.paged, "kvroof")};
      if (append) entry.row_names.push_back(row_name(c.ring, "kvroof"));
      entry.name = row_name(c.paged, "kvroof");
      entry.weight = 0.5;
      if (append)
        entry.run = [c](Sweep& s, double seconds) { return run_append(s, c, seconds); };
      else
        entry.run = [c](Sweep& s, double seconds) { return run_fork(s, c, seconds); };
      entries.push_back(std::move(entry));
    }
  }
  return entries;
}

}  // namespace kvroof::bench
