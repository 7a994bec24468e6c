#include "bench/cases.hpp"

#include <algorithm>
#include <iterator>

#include "bench/probe.hpp"

namespace kvroof::bench {
namespace {

const ShapeCase kMha = {"MHA", 32, 32, 128, 128};
// Groups of 1, 4, 8 and 32 query heads.
const ShapeCase kShapes[] = {kMha, {"GQA", 32, 8, 128, 128}, {"GQA8", 32, 4, 128, 128}, {"MQA", 32, 1, 128, 128}};
// What DeepSeek-V3's latent attention is measured against: the cache that it replaces, and a grouped one.
const ShapeCase kMlaPeers[] = {
    {"MHA128", 128, 128, 128, 128},
    {"GQA128", 128, 8, 128, 128},
};

// Rows of a decode sweep that differ in context length and storage only.
struct Selection {
  ShapeCase shape;
  std::vector<std::int64_t> lengths;
  std::vector<Storage> storages;
  RowOrder order = RowOrder::head_major;
  bool cold = true, warm = true;
};

// So short that in f32 it fits the second-level cache of most machines (512 KiB), and the shortest that is measured.
constexpr std::int64_t kWarmRows = 16, kShortRows = 128;

std::vector<Selection> selections(Preset preset) {
  const std::vector<Storage> all(std::begin(kStorages), std::end(kStorages));
  std::vector<Selection> list;
  switch (preset) {
    case Preset::layouts: break;
    case Preset::check:
      for (const ShapeCase& shape :
           {kMha, kShapes[1], kShapes[3], ShapeCase{"GQA40", 40, 8, 128, 128}, ShapeCase{"GQA64", 64, 8, 64, 64}})
        list.push_back({shape, {1536, 6144, 24576}, all, RowOrder::head_major, true, false});
      break;
    case Preset::ci:
      for (const ShapeCase& shape : kShapes)
        if (shape.name != "GQA8") list.push_back({shape, {512, 2048}, {Storage::f32, Storage::f16, Storage::int8}});
      list.push_back({kMha, {512}, {Storage::bf16, Storage::int8}, RowOrder::token_major, true, false});
      break;
    case Preset::quick:
      for (const ShapeCase& shape : kShapes) {
        if (shape.name == "GQA8") continue;
        list.push_back({shape, {512, 4096, 32768}, all});
      }
      // The other order of rows; a larger group; and what a call costs before there is much to read.
      list.push_back({kMha, {32768}, {Storage::f32, Storage::f16}, RowOrder::token_major});
      list.push_back({kShapes[2], {32768}, {Storage::bf16}});
      list.push_back({kMha, {kShortRows}, {Storage::f16}, RowOrder::head_major, true, false});
      list.push_back({kMha, {kWarmRows}, {Storage::f32}, RowOrder::head_major, false, true});
      break;
    case Preset::full:
      std::vector<std::int64_t> lengths;
      for (std::int64_t T = kShortRows; T <= 131072; T *= 2) lengths.push_back(T);
      for (const ShapeCase& shape : kShapes) list.push_back({shape, lengths, all});
      for (const ShapeCase& shape : kMlaPeers) list.push_back({shape, lengths, all});
      list.push_back({kMha, lengths, all, RowOrder::token_major});
      list.push_back({kMha, {kWarmRows}, all, RowOrder::head_major, false, true});
      break;
  }
  return list;
}

const char* role(bool all_threads) { return all_threads ? "all" : "1"; }

std::string axis(const char* name, std::int64_t value) { return std::string("/") + name + ":" + std::to_string(value); }

// With one thread in all, the roles "1" and "all" are the same measurement; both names stay, so that the rows join with
// other machines.
constexpr bool kRoles[] = {false, true};

int convert_group(int group) {
  int lower = 1;
  for (int known : kConvertGroups)
    if (known <= group) lower = known;
  return lower;
}

}  // namespace

std::string ComputeOp::name() const {
  if (mode == Mode::native) return std::string(storage_name(storage)) + "_dot_G" + std::to_string(convert_group(group));
  if (storage == Storage::f32) return "fma_f32";
  return std::string(storage_name(storage)) + "_fma_G" + std::to_string(convert_group(group));
}

ComputeOp compute_op(const DecodeCase& c) {
  return {c.storage,
          static_cast<int>(std::min<std::int64_t>(c.group() * c.n, kConvertGroups[std::size(kConvertGroups) - 1])),
          c.mode};
}

const char* preset_name(Preset preset) {
  switch (preset) {
    case Preset::quick: return "quick";
    case Preset::full: return "full";
    case Preset::layouts: return "layouts";
    case Preset::check: return "check";
    case Preset::ci: break;
  }
  return "ci";
}

std::size_t DecodeCase::k_bytes() const {
  if (latent_dim > 0) return static_cast<std::size_t>(batch * T * latent_row_bytes(storage, latent_dim, rope_dim));
  return static_cast<std::size_t>(batch) * static_cast<std::size_t>(T) * static_cast<std::size_t>(shape.kv_heads) *
         static_cast<std::size_t>(shape.key_dim) * storage_bytes(storage);
}

std::size_t DecodeCase::v_bytes() const {
  if (latent_dim > 0) return 0;
  return static_cast<std::size_t>(batch) * static_cast<std::size_t>(T) * static_cast<std::size_t>(shape.kv_heads) *
         static_cast<std::size_t>(shape.value_dim) * storage_bytes(storage);
}

std::int64_t DecodeCase::flops() const {
  const std::int64_t visible = n * T - n * (n - 1) / 2;  // bottom-right causal
  return batch * shape.query_heads * visible * 2 * (shape.key_dim + shape.value_dim);
}

DecodeCase native_case(DecodeCase c) {
  c.mode = Mode::native;
  return c;
}

CacheShape cache_shape(const DecodeCase& c) {
  if (c.latent_dim > 0) return latent_shape(c.latent_dim, c.rope_dim, c.storage);
  return {c.shape.kv_heads, c.shape.key_dim, c.shape.value_dim, c.storage, c.storage};
}

std::string row_isa(const DecodeCase& c) {
  if (c.mode == Mode::reproducible) return isa_name(c.isa);
  if (*c.native_isa != '\0') return c.native_isa;
  return *native_isa_name(c.isa) != '\0' ? native_isa_name(c.isa) : isa_name(c.isa);
}

std::string row_name(const DecodeCase& c, const std::string& impl) {
  std::string name = std::string(c.kernel) + "/shape:" + c.shape.name + "/layout:" + c.layout +
                     "/order:" + row_order_name(c.order) + "/storage:" + storage_name(c.storage);
  name += axis("Hq", c.shape.query_heads) + axis("Hkv", c.shape.kv_heads) + axis("Dk", c.shape.key_dim) +
          axis("Dv", c.shape.value_dim) + axis("B", c.batch) + axis("n", c.n) + axis("T", c.T);
  name += c.window == 0 ? "/W:all" : axis("W", c.window);
  if (c.page_size > 0) name += axis("P", c.page_size) + "/pages:" + c.pages;
  if (*c.lengths != '\0') name += std::string("/lengths:") + c.lengths;
  if (c.prefix > 0) name += axis("prefix", c.prefix);
  name += std::string("/cache:") + (c.cold ? "cold" : "warm") + "/impl:" + impl;
  if (impl == "kvroof") name += std::string("/mode:") + mode_name(c.mode);
  name += std::string("/threads:") + role(c.all_threads) + "/isa:" + (impl == "kvroof" ? row_isa(c) : isa_name(c.isa));
  return name;
}

std::string row_name(const RoofCase& c) {
  std::string name;
  if (c.read) {
    name = "roof_read" + axis("bytes", static_cast<std::int64_t>(c.bytes)) + "/cache:" + (c.cold ? "cold" : "warm");
  } else {
    name = "roof_compute/op:" + ComputeOp{c.storage, c.group, c.mode}.name();
  }
  const bool native = c.mode == Mode::native && *native_isa_name(c.isa) != '\0';
  return name + "/threads:" + role(c.all_threads) + "/isa:" + (native ? native_isa_name(c.isa) : isa_name(c.isa));
}

std::string join_key(const std::string& row_name) {
  const auto at = row_name.rfind("/isa:");
  return at == std::string::npos ? row_name : row_name.substr(0, at);
}

std::vector<RoofCase> roof_cases(Preset preset, const PresetSizes& sizes) {
  std::vector<RoofCase> cases;
  if (preset == Preset::layouts || preset == Preset::check) return cases;
  const auto read = [&](std::size_t bytes, bool cold) {
    for (bool all : kRoles) {
      RoofCase c;
      c.bytes = bytes;
      c.cold = cold;
      c.all_threads = all;
      c.threads = all ? sizes.threads_all : 1;
      c.isa = sizes.isa;
      cases.push_back(c);
    }
  };
  constexpr std::size_t kKiB = 1024, kMiB = 1024 * 1024;
  if (preset == Preset::full) {
    for (std::size_t bytes = 16 * kKiB; bytes <= 64 * kMiB; bytes *= 4) read(bytes, false);
  } else {
    // Sizes are the same on every machine, so that the rows join; what they fit into is for the reader to see.
    read(256 * kKiB, false);
    if (preset == Preset::quick) read(4 * kMiB, false);
  }
  read(16 * kMiB, true);
  if (preset != Preset::ci) read(256 * kMiB, true);
  std::vector<int> groups = {1, 4, 32};
  for (bool all : kRoles) {
    RoofCase c;
    c.read = false;
    c.all_threads = all;
    c.threads = all ? sizes.threads_all : 1;
    c.isa = sizes.isa;
    cases.push_back(c);
    for (Storage storage : {Storage::f16, Storage::bf16, Storage::int8}) {
      for (int group : groups) {
        c.storage = storage;
        c.group = group;
        cases.push_back(c);
      }
    }
    // The instructions of native mode; where the CPU lacks them the row says so.
    if (*native_isa_name(sizes.isa) == '\0') continue;
    c.mode = Mode::native;
    c.storage = Storage::bf16;
    for (int group : groups) {
      c.group = group;
      cases.push_back(c);
    }
  }
  return cases;
}

std::vector<DecodeCase> decode_cases(Preset preset, const PresetSizes& sizes) {
  std::vector<DecodeCase> cases;
  for (const Selection& selection : selections(preset)) {
    for (std::int64_t T : selection.lengths) {
      for (bool all : kRoles) {
        for (Storage storage : selection.storages) {
          DecodeCase c;
          c.shape = selection.shape;
          c.T = T;
          c.storage = storage;
          c.order = selection.order;
          c.all_threads = all;
          c.threads = all ? sizes.threads_all : 1;
          c.isa = sizes.isa;
          if (selection.cold) cases.push_back(c);
          c.cold = false;
          if (selection.warm && 4 * c.bytes() <= 3 * static_cast<std::size_t>(sizes.last_level_bytes))
            cases.push_back(c);
        }
      }
    }
  }
  return cases;
}

}  // namespace kvroof::bench
