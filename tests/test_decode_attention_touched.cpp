// Which rows are read: every row lies in a memory page of its own, and the pages of rows that no query sees cannot be
// read at all. With the bits of the twin, to which every visible row contributes, the rows read are exactly those.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>

#include "tests/support/attend.hpp"
#include "tests/support/each_isa.hpp"

namespace kvroof::test {
namespace {

constexpr std::int64_t kPage = 4096;

// `rows` memory pages.
class RowPages {
 public:
  explicit RowPages(std::int64_t rows)
      : bytes_(static_cast<std::size_t>(rows * kPage)),
        data_(static_cast<std::byte*>(
            ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {}
  ~RowPages() { ::munmap(data_, bytes_); }
  RowPages(const RowPages&) = delete;
  RowPages& operator=(const RowPages&) = delete;
  std::byte* row(std::int64_t t) const { return data_ + t * kPage; }
  void forbid(std::int64_t t) { ASSERT_EQ(::mprotect(row(t), static_cast<std::size_t>(kPage), PROT_NONE), 0); }

 private:
  std::size_t bytes_;
  std::byte* data_;
};

class AttentionTouched : public EachIsa {};

void expect_only_visible_rows_read(const CaseSpec& spec, Isa isa, int parts) {
  const Case c = make_case(spec);
  const reference::AttentionProblem& p = c.problem;
  RowPages k(p.T), v(p.T), k_scale(p.T), v_scale(p.T);
  const auto element = [](Storage s) { return static_cast<std::int64_t>(storage_bytes(s)); };
  const std::int64_t k_bytes = element(spec.k_storage), v_bytes = element(spec.v_storage);
  const std::vector<char> visible = visible_rows(p);
  for (std::int64_t t = 0; t < p.T; ++t) {
    if (visible[static_cast<std::size_t>(t)] == 0) {
      for (RowPages* pages : {&k, &v, &k_scale, &v_scale}) pages->forbid(t);
      continue;
    }
    for (std::int64_t h = 0; h < p.kv_heads; ++h) {
      const std::int64_t i = t * p.kv_heads + h;
      encode_row(spec.k_storage, p.k.data() + i * p.key_dim, p.key_dim, k.row(t) + h * p.key_dim * k_bytes);
      encode_row(spec.v_storage, p.v.data() + i * p.value_dim, p.value_dim, v.row(t) + h * p.value_dim * v_bytes);
      if (!p.k_scale.empty()) reinterpret_cast<float*>(k_scale.row(t))[h] = p.k_scale[static_cast<std::size_t>(i)];
      if (!p.v_scale.empty()) reinterpret_cast<float*>(v_scale.row(t))[h] = p.v_scale[static_cast<std::size_t>(i)];
    }
  }
  RowRun run;
  run.k = k.row(0);
  run.v = v.row(0);
  if (spec.k_storage == Storage::int8) run.k_scale = reinterpret_cast<const float*>(k_scale.row(0));
  if (spec.v_storage == Storage::int8) run.v_scale = reinterpret_cast<const float*>(v_scale.row(0));
  run.rows = p.T;
  KvView view;
  view.runs = &run;
  view.run_count = 1;
  view.end_position = p.T;
  view.k_storage = spec.k_storage;
  view.v_storage = spec.v_storage;
  view.k_row_stride = view.v_row_stride = kPage;
  view.k_head_stride = p.key_dim * k_bytes;
  view.v_head_stride = p.value_dim * v_bytes;
  view.k_scale_row_stride = view.v_scale_row_stride = kPage / 4;
  view.k_scale_head_stride = view.v_scale_head_stride = 1;
  How how;
  how.isa = isa;
  how.parts = parts;
  expect_same_bits(attend_view(c, view, how), twin(c), describe(spec) + " " + describe(how));

  StoredSequence sequence(c, {});
  sequence.read_from(view);
  const StoredCall call(sequence);
  const std::int64_t scales = (spec.k_storage == Storage::int8 ? 4 : 0) + (spec.v_storage == Storage::int8 ? 4 : 0);
  EXPECT_EQ(attention_bytes(call.args), std::count(visible.begin(), visible.end(), 1) * p.kv_heads *
                                            (p.key_dim * k_bytes + p.value_dim * v_bytes + scales))
      << describe(spec);
}

TEST_P(AttentionTouched, ExactlyTheVisibleRows) {
  struct Sizes {
    std::int64_t T, n, window, kept;
  };
  const Sizes sizes[] = {{97, 32, 33, 0},   {97, 1, 33, 0},     {97, 1, 33, 3},   {40, 7, 1, 0},   {64, 16, 15, 0},
                         {1100, 1, 530, 0}, {1100, 3, 530, 17}, {1100, 5, 2, 0},  {530, 64, 8, 2}, {1030, 1, 1, 0},
                         {1536, 1, 512, 0}, {1537, 2, 511, 1},  {600, 33, 65, 0}, {513, 1, 1, 1},  {700, 1, 699, 0}};
  for (const Sizes& s : sizes) {
    for (const Storage storage : kStorages) {
      for (const std::int64_t group : {1, 5, 16}) {  // both ways of laying queries over lanes
        CaseSpec spec;
        spec.kv_heads = 2;
        spec.query_heads = 2 * group;
        spec.key_dim = 40;
        spec.value_dim = 24;
        spec.T = s.T;
        spec.n = s.n;
        spec.window = s.window;
        spec.kept_tokens = s.kept;
        spec.k_storage = storage;
        spec.v_storage = group == 5 ? Storage::bf16 : storage;
        if (spec.n * spec.query_heads > 400) continue;  // the twin is slow
        expect_only_visible_rows_read(spec, isa(), group == 16 ? 3 : 1);
      }
    }
  }
}

KVROOF_INSTANTIATE_EACH_ISA(AttentionTouched);

}  // namespace
}  // namespace kvroof::test
