#include "kernels/cache/page_table.hpp"

#include <algorithm>
#include <string>

namespace kvroof {

KvView page_table_view(const PageGeometry& pages, std::span<const std::int32_t> table, std::int64_t length,
                       std::span<RowRun> runs) {
  if (pages.page_rows < 1 || length < 0) {
    throw Error(ErrorCode::bad_shape, "page table: page_rows is " + std::to_string(pages.page_rows) + ", length is " +
                                          std::to_string(length) + "; must be at least 1 and at least 0");
  }
  const std::int64_t used = pages_of(length, pages.page_rows);
  if (static_cast<std::int64_t>(table.size()) < used) {
    throw Error(ErrorCode::bad_view, "page table: " + std::to_string(table.size()) + " entries, length " +
                                         std::to_string(length) + " needs " + std::to_string(used));
  }
  if (static_cast<std::int64_t>(runs.size()) < used) {
    throw Error(ErrorCode::bad_workspace,
                "page table: room for " + std::to_string(runs.size()) + " runs, needs " + std::to_string(used));
  }
  for (std::int64_t i = 0; i < used; ++i) {
    const std::int64_t page = table[static_cast<std::size_t>(i)];
    if (page < 0 || page >= pages.page_count) {
      throw Error(ErrorCode::bad_view, "page table: entry " + std::to_string(i) + " is page " + std::to_string(page) +
                                           ", must be from 0 to " + std::to_string(pages.page_count - 1));
    }
  }
  for (std::int64_t i = 0; i < used; ++i) {
    const std::int64_t page = table[static_cast<std::size_t>(i)];
    RowRun& run = runs[static_cast<std::size_t>(i)];
    run.k = pages.k + page * pages.k_page_stride;
    run.v = pages.v + page * pages.v_page_stride;
    run.k_scale = pages.k_scale == nullptr ? nullptr : pages.k_scale + page * pages.k_scale_page_stride;
    run.v_scale = pages.v_scale == nullptr ? nullptr : pages.v_scale + page * pages.v_scale_page_stride;
    run.first_position = i * pages.page_rows;
    run.rows = std::min(pages.page_rows, length - run.first_position);
  }
  KvView view = pages.strides;
  view.runs = runs.data();
  view.run_count = used;
  view.end_position = length;
  return view;
}

}  // namespace kvroof
