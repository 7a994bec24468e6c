// Where rows may lie: poisoned neighbours, repeated and reversed rows, offsets beyond 2^31 and 2^32, positions beyond
// 2^40, V inside the K row.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "tests/support/attend.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/each_isa.hpp"

namespace kvroof::test {
namespace {

class AttentionMemory : public EachIsa {
 protected:
  How how(int parts = 2, bool threads = false) const {
    How h;
    h.isa = isa();
    h.parts = parts;
    h.threads = threads;
    return h;
  }
};

TEST_P(AttentionMemory, PoisonOutsideTheVisibleRowsChangesNothing) {
  for (const Storage storage : kStorages) {
    for (const std::int64_t T : {1, 13, 15, 16, 17, 520}) {  // P = 4 and T = 13 leave 3 unused slots
      CaseSpec spec;
      spec.query_heads = 4;
      spec.kv_heads = 2;
      spec.key_dim = 20;
      spec.value_dim = 12;
      spec.T = T;
      spec.n = std::min<std::int64_t>(T, 3);
      spec.window = 7;
      spec.kept_tokens = 2;
      spec.k_storage = spec.v_storage = storage;
      const Case c = make_case(spec);
      const Attention expected = twin(c);
      for (const Layout& layout : poisoned_layouts(static_cast<std::uint64_t>(T)))
        expect_same_bits(attend(c, layout, how()), expected, describe(spec) + " " + describe(layout));
    }
  }
}

// Every head dim at both ends of every array against a guard page.
TEST_P(AttentionMemory, NoHeadDimReadsPastAnArray) {
  for (const std::int64_t d : {1, 8, 16, 24, 33, 40, 48, 64, 65, 72, 80, 96, 112, 120, 128, 160, 192, 256, 512, 576}) {
    for (const Storage storage : kStorages) {
      for (const std::int64_t T : {1, 5, 16, 33}) {
        CaseSpec spec;
        spec.query_heads = T == 5 ? 17 : 2;  // both ways of laying queries over lanes
        spec.key_dim = d;
        spec.value_dim = d;
        spec.T = T;
        spec.k_storage = spec.v_storage = storage;
        const Case c = make_case(spec);
        const Attention expected = twin(c);
        for (const Layout& layout : edge_layouts())
          expect_same_bits(attend(c, layout, how(1)), expected, describe(spec) + " " + describe(layout));
      }
    }
  }
}

// f32 rows of a case in a plain array, for views made by hand.
struct PlainRows {
  explicit PlainRows(const Case& c) : k(c.problem.k), v(c.problem.v) {
    const std::int64_t dk = c.problem.key_dim, dv = c.problem.value_dim, heads = c.problem.kv_heads;
    view.end_position = c.problem.T;
    view.k_row_stride = heads * dk * 4;
    view.k_head_stride = dk * 4;
    view.v_row_stride = heads * dv * 4;
    view.v_head_stride = dv * 4;
  }
  RowRun run(std::int64_t stored_row, std::int64_t first_position, std::int64_t rows) const {
    RowRun r;
    r.k = reinterpret_cast<const std::byte*>(k.data()) + stored_row * view.k_row_stride;
    r.v = reinterpret_cast<const std::byte*>(v.data()) + stored_row * view.v_row_stride;
    r.first_position = first_position;
    r.rows = rows;
    return r;
  }
  const KvView& with(std::vector<RowRun> list) {
    runs = std::move(list);
    view.runs = runs.data();
    view.run_count = static_cast<std::int64_t>(runs.size());
    return view;
  }
  std::vector<float> k, v;
  std::vector<RowRun> runs;
  KvView view;
};

CaseSpec plain_spec(std::int64_t T) {
  CaseSpec spec;
  spec.query_heads = 4;
  spec.kv_heads = 2;
  spec.key_dim = 24;
  spec.value_dim = 20;
  spec.T = T;
  return spec;
}

TEST_P(AttentionMemory, ReversedPagesAndReversedRows) {
  const Case c = make_case(plain_spec(600));
  const Attention expected = twin(c);
  PlainRows rows(c);
  const std::int64_t row = 2 * 24, value = 2 * 20;
  for (std::int64_t t = 0; t < 300; ++t) {  // memory holds the last position first
    std::swap_ranges(rows.k.begin() + t * row, rows.k.begin() + (t + 1) * row, rows.k.begin() + (599 - t) * row);
    std::swap_ranges(rows.v.begin() + t * value, rows.v.begin() + (t + 1) * value, rows.v.begin() + (599 - t) * value);
  }
  std::vector<RowRun> pages;
  for (std::int64_t t = 0; t < 600; ++t) pages.push_back(rows.run(599 - t, t, 1));
  expect_same_bits(attend_view(c, rows.with(pages), how()), expected, "pages of one row in reversed places");

  const RowRun whole = rows.run(599, 0, 600);
  rows.view.k_row_stride = -rows.view.k_row_stride;
  rows.view.v_row_stride = -rows.view.v_row_stride;
  expect_same_bits(attend_view(c, rows.with({whole}), how()), expected, "negative row strides");
}

TEST_P(AttentionMemory, NegativeHeadStride) {
  const Case c = make_case(plain_spec(530));
  PlainRows rows(c);
  for (std::int64_t t = 0; t < 530; ++t) {
    std::swap_ranges(rows.k.begin() + t * 48, rows.k.begin() + t * 48 + 24, rows.k.begin() + t * 48 + 24);
    std::swap_ranges(rows.v.begin() + t * 40, rows.v.begin() + t * 40 + 20, rows.v.begin() + t * 40 + 20);
  }
  RowRun run = rows.run(0, 0, 530);
  run.k += rows.view.k_head_stride;
  run.v += rows.view.v_head_stride;
  rows.view.k_head_stride = -rows.view.k_head_stride;
  rows.view.v_head_stride = -rows.view.v_head_stride;
  expect_same_bits(attend_view(c, rows.with({run}), how()), twin(c), "negative head strides");
}

TEST_P(AttentionMemory, OnePageAtSeveralPositions) {  // a shared prefix may be repeated inside one sequence
  Case c = make_case(plain_spec(600));
  for (std::int64_t t = 200; t < 600; ++t) {
    std::copy_n(c.problem.k.begin() + (t - 200) * 48, 48, c.problem.k.begin() + t * 48);
    std::copy_n(c.problem.v.begin() + (t - 200) * 40, 40, c.problem.v.begin() + t * 40);
  }
  PlainRows rows(c);
  const KvView& view = rows.with({rows.run(0, 0, 200), rows.run(0, 200, 200), rows.run(0, 400, 200)});
  expect_same_bits(attend_view(c, view, how()), twin(c), "one page three times");
}

// The tree of segments is laid over absolute positions; shifting all of them by a large power of two keeps its shape.
TEST_P(AttentionMemory, PositionsBeyond32Bits) {
  for (const std::int64_t offset : {std::int64_t{1} << 31, std::int64_t{1} << 32, std::int64_t{1} << 41}) {
    for (const std::int64_t kept : {0, 3}) {
      CaseSpec spec = plain_spec(2600);
      spec.window = 300;
      spec.kept_tokens = kept;
      spec.alibi = true;
      spec.n = 3;
      const Case c = make_case(spec);
      PlainRows rows(c);
      std::vector<RowRun> runs;
      if (kept > 0) runs.push_back(rows.run(0, 0, kept));
      runs.push_back(rows.run(2200, offset + 2200, 400));
      rows.view.end_position = offset + 2600;
      Attention shifted = attend_view(c, rows.with(runs), how());
      if (kept > 0) {  // the kept rows' distance grows with the shift, so only the twin without ALiBi can say more
        Case flat = c;
        flat.problem.alibi_slopes.clear();
        shifted = attend_view(flat, rows.with(runs), how());
        expect_same_bits(shifted, twin(flat), describe(spec) + " shifted by " + std::to_string(offset));
      } else {
        expect_same_bits(shifted, twin(c), describe(spec) + " shifted by " + std::to_string(offset));
      }
    }
  }
}

// ---- offsets beyond 2^31 and 2^32: sparse mappings, of which a few pages are touched
// ----------------------------------

class Sparse {
 public:
  explicit Sparse(std::size_t bytes) : bytes_(bytes) {
    void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    data_ = mapped == MAP_FAILED ? nullptr : static_cast<std::byte*>(mapped);
  }
  ~Sparse() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  Sparse(const Sparse&) = delete;
  Sparse& operator=(const Sparse&) = delete;
  std::byte* data() { return data_; }

 private:
  std::size_t bytes_;
  std::byte* data_ = nullptr;
};

// P rows a page, 8 heads, D = 128, bf16: page 131072 of 16 rows begins at element 2^31.
TEST_P(AttentionMemory, PageIdsBeyond2To31Elements) {
  for (const std::int64_t page_rows : {16, 1}) {
    const std::int64_t page_bytes = page_rows * 8 * 128 * 2;
    const std::int64_t pages = (std::int64_t{1} << 32) / page_bytes + 8;
    Sparse k(static_cast<std::size_t>(pages * page_bytes)), v(static_cast<std::size_t>(pages * page_bytes));
    if (k.data() == nullptr || v.data() == nullptr)
      GTEST_SKIP() << "this machine does not map 4 GiB without reserving it";
    CaseSpec spec;
    spec.query_heads = spec.kv_heads = 8;
    spec.key_dim = spec.value_dim = 128;
    spec.T = 4 * page_rows;
    spec.k_storage = spec.v_storage = Storage::bf16;
    const Case c = make_case(spec);
    KvView view;
    view.end_position = spec.T;
    view.k_storage = view.v_storage = Storage::bf16;
    view.k_head_stride = view.v_head_stride = page_rows * 128 * 2;
    view.k_row_stride = view.v_row_stride = 128 * 2;
    std::vector<RowRun> runs;
    const std::int64_t table[] = {0, pages - 9, pages - 8, pages - 1};
    for (std::int64_t p = 0; p < 4; ++p) {
      RowRun run;
      run.k = k.data() + table[p] * page_bytes;
      run.v = v.data() + table[p] * page_bytes;
      run.first_position = p * page_rows;
      run.rows = page_rows;
      runs.push_back(run);
      for (std::int64_t t = 0; t < page_rows; ++t) {
        for (std::int64_t h = 0; h < 8; ++h) {
          const std::int64_t at = table[p] * page_bytes + h * view.k_head_stride + t * view.k_row_stride;
          const std::int64_t row = ((p * page_rows + t) * 8 + h) * 128;
          encode_row(Storage::bf16, c.problem.k.data() + row, 128, k.data() + at);
          encode_row(Storage::bf16, c.problem.v.data() + row, 128, v.data() + at);
        }
      }
    }
    view.runs = runs.data();
    view.run_count = 4;
    expect_same_bits(attend_view(c, view, how()), twin(c), describe(spec));
  }
}

// One run of millions of rows, the last few of them seen through a window: row x stride passes 2^31 and 2^32. V is the
// first 512 columns of the K row.
TEST_P(AttentionMemory, ContiguousRowsBeyond2To32Bytes) {
  constexpr std::int64_t kRow = 576 * 2;
  for (const std::int64_t T : {3728270, 3728271, 7456541}) {  // 2^31 elements and one row more; 2^32 elements
    Sparse memory(static_cast<std::size_t>(T * kRow));
    if (memory.data() == nullptr) GTEST_SKIP() << "this machine does not map 8 GiB without reserving it";
    CaseSpec spec;
    spec.query_heads = 16;
    spec.key_dim = 576;
    spec.value_dim = 512;
    spec.T = 512 + T % 512;  // the same place in its segment
    spec.window = 8;
    spec.k_storage = spec.v_storage = Storage::bf16;
    Case c = make_case(spec);
    for (std::int64_t t = 0; t < spec.T; ++t) {
      std::copy_n(c.problem.k.begin() + t * 576, 512, c.problem.v.begin() + t * 512);
    }
    for (std::int64_t back = 1; back <= 8; ++back) {
      encode_row(Storage::bf16, c.problem.k.data() + (spec.T - back) * 576, 576, memory.data() + (T - back) * kRow);
    }
    RowRun run;
    run.k = run.v = memory.data();
    run.rows = T;
    KvView view;
    view.runs = &run;
    view.run_count = 1;
    view.end_position = T;
    view.k_storage = view.v_storage = Storage::bf16;
    view.k_row_stride = view.v_row_stride = kRow;
    view.k_head_stride = view.v_head_stride = T * kRow;
    for (const std::int64_t latent : {0, 512}) {  // as a plain V that overlaps K, and declared as a latent row
      view.latent_dim = latent;
      expect_same_bits(attend_view(c, view, how()), twin(c), describe(spec) + " at " + std::to_string(T));
      StoredSequence sequence(c, {});
      sequence.read_from(view);
      const StoredCall call(sequence);
      EXPECT_EQ(attention_bytes(call.args), latent == 0 ? 8 * (576 + 512) * 2 : 8 * kRow)
          << "a latent row is read once";
    }
  }
}

TEST_P(AttentionMemory, HeadStrideBeyond2To32Bytes) {
  for (const Storage storage : kStorages) {
    const std::int64_t stride = (std::int64_t{1} << 32) + 4096;
    const auto size = static_cast<std::int64_t>(storage_bytes(storage));
    Sparse k(static_cast<std::size_t>(2 * stride + (1 << 16))), v(static_cast<std::size_t>(2 * stride + (1 << 16)));
    if (k.data() == nullptr || v.data() == nullptr)
      GTEST_SKIP() << "this machine does not map 16 GiB without reserving it";
    std::vector<float> k_scale, v_scale;
    CaseSpec spec;
    spec.query_heads = spec.kv_heads = 3;
    spec.key_dim = 32;
    spec.value_dim = 16;
    spec.T = 20;
    spec.k_storage = spec.v_storage = storage;
    const Case c = make_case(spec);
    for (std::int64_t t = 0; t < 20; ++t) {
      for (std::int64_t h = 0; h < 3; ++h) {
        encode_row(storage, c.problem.k.data() + (t * 3 + h) * 32, 32, k.data() + h * stride + t * 32 * size);
        encode_row(storage, c.problem.v.data() + (t * 3 + h) * 16, 16, v.data() + h * stride + t * 16 * size);
      }
    }
    RowRun run;
    run.k = k.data();
    run.v = v.data();
    run.rows = 20;
    KvView view;
    if (storage == Storage::int8) {
      run.k_scale = c.problem.k_scale.data();
      run.v_scale = c.problem.v_scale.data();
      view.k_scale_row_stride = view.v_scale_row_stride = 3;
      view.k_scale_head_stride = view.v_scale_head_stride = 1;
    }
    view.runs = &run;
    view.run_count = 1;
    view.end_position = 20;
    view.k_storage = view.v_storage = storage;
    view.k_row_stride = 32 * size;
    view.v_row_stride = 16 * size;
    view.k_head_stride = view.v_head_stride = stride;
    expect_same_bits(attend_view(c, view, how()), twin(c), describe(spec));
  }
}

KVROOF_INSTANTIATE_EACH_ISA(AttentionMemory);

}  // namespace
}  // namespace kvroof::test
