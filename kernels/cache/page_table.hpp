// Views over pages that somebody else manages: an engine with its own pool and block tables needs only this, no cache
// of ours. (PagedCache is the pool for those who have none.)
#pragma once

#include <cstdint>
#include <span>

#include "kernels/kernels.hpp"

namespace kvroof {

// Page p, row r, KV head h of K lies at k + p*k_page_stride + r*k_row_stride + h*k_head_stride (bytes), likewise V;
// int8 scales the same with strides in floats. K and V may share one buffer or have one each. The row and head strides
// and the storages are those of `strides`, whose runs are ignored.
struct PageGeometry {
  const std::byte* k = nullptr;
  const std::byte* v = nullptr;
  const float* k_scale = nullptr;  // int8 K only, else null
  const float* v_scale = nullptr;  // int8 V only, else null
  std::int64_t k_page_stride = 0, v_page_stride = 0;
  std::int64_t k_scale_page_stride = 0, v_scale_page_stride = 0;
  std::int64_t page_rows = 0;   // P >= 1
  std::int64_t page_count = 0;  // ids are 0 ... page_count-1
  KvView strides;
};

constexpr std::int64_t pages_of(std::int64_t rows, std::int64_t page_rows) {
  return rows / page_rows + (rows % page_rows != 0 ? 1 : 0);
}

// The view of the first `length` rows of a sequence whose page i is table[i]: one run a page, written to `runs`, never
// merged (neighbours in the table need not be neighbours in memory; a page may even appear twice). Reads exactly
// pages_of(length, P) entries; what stands in the table after them is never looked at, nor are the unused slots of the
// last page. Throws Error(bad_view) for a page id out of range or a table too short, Error(bad_workspace) where `runs`
// is too short, Error(bad_shape) for page_rows < 1 or length < 0. The view points to `runs`.
KvView page_table_view(const PageGeometry& pages, std::span<const std::int32_t> table, std::int64_t length,
                       std::span<RowRun> runs);

}  // namespace kvroof
