// The bits of an output row are a matter of the query, the visible rows with their positions and the options alone:
// the claims that both modes make, for a case and a way to run it (`how` gives instruction set and mode).
#pragma once

#include <cstdint>
#include <vector>

#include "tests/support/attend.hpp"

namespace kvroof::test {

void expect_any_parts_alike(const CaseSpec& spec, How how);      // in any order
void expect_any_threads_alike(const CaseSpec& spec, How how);    // 1 to 8
void expect_any_workspace_alike(const CaseSpec& spec, How how);  // whatever it held before, and repeated
void expect_any_layout_alike(const CaseSpec& spec, How how);     // every kind, and page sizes
// A chunk, each of its queries alone, and the newest few as a chunk; rows lie in layouts that follow from `seed`.
void expect_chunk_as_single_tokens(const Case& c, std::uint64_t seed, How how);
// `size` sequences with lengths, chunks, layouts and data of their own in one call, at several places of the batch.
void expect_batch_as_alone(const CaseSpec& common, std::uint64_t seed, std::int64_t size, How how);

}  // namespace kvroof::test
