#include "tests/test_cache_models.hpp"

#include <cstring>
#include <limits>

#include "reference/inputs.hpp"

namespace kvroof::test_cache {
namespace {

float element(Token token, int side, std::int64_t head, std::int64_t column) {
  const auto i = static_cast<std::uint64_t>(head * 4096 + column * 2 + side);
  return 3.0f * reference::uniform(token + 1000, i);
}

void require_stored(Storage storage, const std::byte* at, const float* scale, const std::vector<float>& expected,
                    const std::string& what) {
  std::byte bytes[256];
  float expected_scale = 0.0f;
  store_row(storage, expected.data(), expected.size(), bytes, &expected_scale, default_isa());
  require(std::memcmp(at, bytes, expected.size() * storage_bytes(storage)) == 0,
          what + " differs from what was appended");
  if (storage == Storage::int8) {
    require(scale != nullptr && std::memcmp(scale, &expected_scale, sizeof(float)) == 0, what + ": another int8 scale");
  } else {
    require(scale == nullptr, what + " has a scale though it is not int8");
  }
}

}  // namespace

std::vector<float> token_row(Token token, int side, std::int64_t head, std::int64_t dim) {
  std::vector<float> row(static_cast<std::size_t>(dim));
  for (std::int64_t d = 0; d < dim; ++d) row[static_cast<std::size_t>(d)] = element(token, side, head, d);
  return row;
}

std::uint64_t SeededOps::next(std::uint64_t bound) {
  return reference::mix64(reference::mix64(seed_) ^ ++count_) % bound;
}

TokenRows::TokenRows(const CacheShape& shape, std::span<const Token> tokens, std::int64_t gap) {
  rows_ = packed_rows(shape, static_cast<std::int64_t>(tokens.size()), nullptr, nullptr);
  rows_.k_head_stride += gap;
  rows_.v_head_stride += gap;
  rows_.k_row_stride = rows_.k_head_stride * shape.kv_heads + gap;
  rows_.v_row_stride = rows_.v_head_stride * shape.kv_heads + gap;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  k_.assign(static_cast<std::size_t>(rows_.n * rows_.k_row_stride + 1), nan);
  v_.assign(static_cast<std::size_t>(rows_.n * rows_.v_row_stride + 1), nan);
  for (std::int64_t r = 0; r < rows_.n; ++r) {
    for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
      const Token token = tokens[static_cast<std::size_t>(r)];
      const std::vector<float> k = token_row(token, 0, h, shape.key_dim), v = token_row(token, 1, h, shape.value_dim);
      std::memcpy(k_.data() + r * rows_.k_row_stride + h * rows_.k_head_stride, k.data(), k.size() * sizeof(float));
      std::memcpy(v_.data() + r * rows_.v_row_stride + h * rows_.v_head_stride, v.data(), v.size() * sizeof(float));
    }
  }
  rows_.k = k_.data();
  rows_.v = v_.data();
}

CacheShape random_shape(OpSource& ops) {
  if (ops.next(6) == 0) {  // a latent of one group or, rarely, of two
    const std::int64_t latent = ops.next(8) == 0 ? 130 : ops.between(1, 5);
    return latent_shape(latent, ops.between(0, 3), kStorages[ops.next(4)]);
  }
  CacheShape shape;
  shape.kv_heads = ops.between(1, 3);
  shape.key_dim = ops.between(1, 5);
  shape.value_dim = ops.between(1, 5);
  shape.k_storage = kStorages[ops.next(4)];
  shape.v_storage = kStorages[ops.next(4)];
  return shape;
}

namespace {

// The bytes of one row of multi-head latent attention, from the definition: the latent's integers, one scale for every
// 128 of them, the rotated key in bf16; other storages plainly side by side.
std::vector<std::byte> latent_bytes(const CacheShape& shape, const std::vector<float>& row) {
  const Isa isa = default_isa();
  const auto latent = static_cast<std::size_t>(shape.latent_dim), all = static_cast<std::size_t>(shape.key_dim);
  if (shape.k_storage != Storage::int8) {
    std::vector<std::byte> bytes(all * storage_bytes(shape.k_storage));
    store_row(shape.k_storage, row.data(), all, bytes.data(), nullptr, isa);
    return bytes;
  }
  const std::size_t groups = (latent + 127) / 128;
  std::vector<std::byte> bytes(latent + 4 * groups + 2 * (all - latent));
  for (std::size_t g = 0; g < groups; ++g) {
    const std::size_t first = 128 * g, count = first + 128 < latent ? 128 : latent - first;
    float scale = 0.0f;
    store_row(Storage::int8, row.data() + first, count, bytes.data() + first, &scale, isa);
    std::memcpy(bytes.data() + latent + 4 * g, &scale, 4);
  }
  std::vector<std::uint16_t> key(all - latent);
  convert_to_bf16(row.data() + latent, key.data(), key.size(), isa);
  if (!key.empty()) std::memcpy(bytes.data() + latent + 4 * groups, key.data(), 2 * key.size());
  return bytes;
}

}  // namespace

void require(bool condition, const std::string& what) {
  if (!condition) throw ModelMismatch(what);
}

void require_row(const KvView& view, const CacheShape& shape, const RowRun& run, std::int64_t row, Token token) {
  const std::string at = " at position " + std::to_string(run.first_position + row);
  require(view.latent_dim == shape.latent_dim, "the view's latent_dim");
  if (shape.latent_dim > 0) {
    const std::vector<std::byte> expected = latent_bytes(shape, token_row(token, 0, 0, shape.key_dim));
    require(run.v == run.k && view.v_row_stride == view.k_row_stride, "V of a latent row is not in its K row");
    require(run.k_scale == nullptr && run.v_scale == nullptr, "a latent row has no scales outside");
    require(std::memcmp(run.k + row * view.k_row_stride, expected.data(), expected.size()) == 0,
            "latent row" + at + " differs from what was appended");
    require(bytes_per_token(shape) == static_cast<std::int64_t>(expected.size()), "bytes of a latent row");
    return;
  }
  for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
    const float* k_scale =
        run.k_scale ? run.k_scale + row * view.k_scale_row_stride + h * view.k_scale_head_stride : nullptr;
    const float* v_scale =
        run.v_scale ? run.v_scale + row * view.v_scale_row_stride + h * view.v_scale_head_stride : nullptr;
    require_stored(view.k_storage, run.k + row * view.k_row_stride + h * view.k_head_stride, k_scale,
                   token_row(token, 0, h, shape.key_dim), "K" + at);
    require_stored(view.v_storage, run.v + row * view.v_row_stride + h * view.v_head_stride, v_scale,
                   token_row(token, 1, h, shape.value_dim), "V" + at);
  }
}

void require_view(const KvView& view, const CacheShape& shape, const std::vector<PlacedToken>& expected,
                  std::int64_t end, std::int64_t most_runs) {
  require(view.end_position == end,
          "end_position is " + std::to_string(view.end_position) + ", expected " + std::to_string(end));
  require(view.k_storage == shape.k_storage && view.v_storage == shape.v_storage, "the view names another storage");
  require(view.run_count <= most_runs, std::to_string(view.run_count) + " runs, at most " + std::to_string(most_runs));
  std::size_t next = 0;
  for (std::int64_t i = 0; i < view.run_count; ++i) {
    const RowRun& run = view.runs[i];
    require(run.rows > 0, "an empty run");
    for (std::int64_t row = 0; row < run.rows; ++row, ++next) {
      const std::int64_t position = run.first_position + row;
      require(next < expected.size(), "a row too many, position " + std::to_string(position));
      require(position == expected[next].first,
              "a row of position " + std::to_string(position) + ", expected " + std::to_string(expected[next].first));
      require_row(view, shape, run, row, expected[next].second);
    }
  }
  require(next == expected.size(), std::to_string(next) + " rows in view, expected " + std::to_string(expected.size()));
}

}  // namespace kvroof::test_cache
