#include "bench/cases.hpp"

#include "bench/probe.hpp"

namespace kvroof::bench {
namespace {

const ShapeCase kShapes[] = {
    {"MHA", 32, 32, 128, 128},
    {"GQA", 32, 8, 128, 128},
    {"MQA", 32, 1, 128, 128},
};
// What DeepSeek-V3's latent attention is measured against: the cache that it replaces, and a grouped one.
const ShapeCase kMlaPeers[] = {
    {"MHA128", 128, 128, 128, 128},
    {"GQA128", 128, 8, 128, 128},
};

std::vector<ShapeCase> decode_shapes(Preset preset) {
  std::vector<ShapeCase> shapes(std::begin(kShapes), std::end(kShapes));
  if (preset == Preset::full) shapes.insert(shapes.end(), std::begin(kMlaPeers), std::end(kMlaPeers));
  return shapes;
}

// int8 in the quick preset: only where the cache is largest, for what a quarter of the bytes brings.
bool in_preset(Preset preset, const ShapeCase& shape, std::int64_t T, Storage storage) {
  switch (preset) {
    case Preset::quick: return storage != Storage::int8 || (shape.name == "MHA" && T == 32768);
    case Preset::ci: return storage != Storage::bf16;
    case Preset::full: break;
  }
  return true;
}

std::vector<std::int64_t> context_lengths(Preset preset) {
  switch (preset) {
    case Preset::quick: return {512, 4096, 32768};
    case Preset::ci: return {512, 2048};
    case Preset::full: break;
  }
  std::vector<std::int64_t> lengths;
  for (std::int64_t T = 128; T <= 131072; T *= 2) lengths.push_back(T);
  return lengths;
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
  if (storage == Storage::f32) return "fma_f32";
  return std::string(storage_name(storage)) + "_fma_G" + std::to_string(convert_group(group));
}

const char* preset_name(Preset preset) {
  return preset == Preset::quick ? "quick" : preset == Preset::full ? "full" : "ci";
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

std::string row_name(const DecodeCase& c, const std::string& impl) {
  std::string name = std::string(c.kernel) + "/shape:" + c.shape.name + "/layout:" + c.layout +
                     "/order:head/storage:" + storage_name(c.storage);
  name += axis("Hq", c.shape.query_heads) + axis("Hkv", c.shape.kv_heads) + axis("Dk", c.shape.key_dim) +
          axis("Dv", c.shape.value_dim) + axis("B", c.batch) + axis("n", c.n) + axis("T", c.T);
  name += c.window == 0 ? "/W:all" : axis("W", c.window);
  if (c.page_size > 0) name += axis("P", c.page_size) + "/pages:" + c.pages;
  if (*c.lengths != '\0') name += std::string("/lengths:") + c.lengths;
  if (c.prefix > 0) name += axis("prefix", c.prefix);
  name += std::string("/cache:") + (c.cold ? "cold" : "warm") + "/impl:" + impl;
  if (impl == "kvroof") name += "/mode:reproducible";
  name += std::string("/threads:") + role(c.all_threads) + "/isa:" + isa_name(c.isa);
  return name;
}

std::string row_name(const RoofCase& c) {
  std::string name;
  if (c.read) {
    name = "roof_read" + axis("bytes", static_cast<std::int64_t>(c.bytes)) + "/cache:" + (c.cold ? "cold" : "warm");
  } else {
    name = "roof_compute/op:" + ComputeOp{c.storage, c.group}.name();
  }
  return name + "/threads:" + role(c.all_threads) + "/isa:" + isa_name(c.isa);
}

std::string join_key(const std::string& row_name) {
  const auto at = row_name.rfind("/isa:");
  return at == std::string::npos ? row_name : row_name.substr(0, at);
}

std::vector<RoofCase> roof_cases(Preset preset, const PresetSizes& sizes) {
  std::vector<RoofCase> cases;
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
  }
  return cases;
}

std::vector<DecodeCase> decode_cases(Preset preset, const PresetSizes& sizes) {
  std::vector<DecodeCase> cases;
  for (const ShapeCase& shape : decode_shapes(preset)) {
    for (std::int64_t T : context_lengths(preset)) {
      for (bool all : kRoles) {
        for (Storage storage : kStorages) {
          if (!in_preset(preset, shape, T, storage)) continue;
          DecodeCase c;
          c.shape = shape;
          c.T = T;
          c.storage = storage;
          c.all_threads = all;
          c.threads = all ? sizes.threads_all : 1;
          c.isa = sizes.isa;
          cases.push_back(c);
          c.cold = false;
          if (4 * c.bytes() <= 3 * static_cast<std::size_t>(sizes.last_level_bytes)) cases.push_back(c);
        }
      }
    }
  }
  return cases;
}

}  // namespace kvroof::bench
