// One context over several processes: every process sees only its own range of segments, and the joined partials have
// the bits of one process with all rows, wherever the context was cut.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/attend.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/each_isa.hpp"

namespace kvroof::test {
namespace {

using Cuts = std::vector<std::int64_t>;  // segments at which the context is cut, ascending

constexpr std::int64_t kEnd = 1000;  // beyond the last segment of every case here

std::string describe(const Cuts& cuts) {
  std::string text = "cut at segments";
  for (const std::int64_t cut : cuts) text += " " + std::to_string(cut);
  return text;
}

// The parts of a view's runs that lie in segments [begin, end): all that a process has.
std::vector<RowRun> runs_of_slice(const KvView& kv, std::int64_t begin, std::int64_t end) {
  std::vector<RowRun> own;
  for (std::int64_t i = 0; i < kv.run_count; ++i) {
    RowRun run = kv.runs[i];
    const std::int64_t first = std::max(run.first_position, begin * kSegmentRows);
    const std::int64_t last = std::min(run.first_position + run.rows, std::min(end, kEnd) * kSegmentRows);
    if (first >= last) continue;
    const std::int64_t skip = first - run.first_position;
    run.k += skip * kv.k_row_stride;
    run.v += skip * kv.v_row_stride;
    if (run.k_scale != nullptr) run.k_scale += skip * kv.k_scale_row_stride;
    if (run.v_scale != nullptr) run.v_scale += skip * kv.v_scale_row_stride;
    run.first_position = first;
    run.rows = last - first;
    own.push_back(run);
  }
  return own;
}

// A call over stored sequences, in slices.
class SlicedCall {
 public:
  SlicedCall(const std::vector<Case>& cases, std::uint64_t layout_seed) : options_(cases.front()) {
    for (std::size_t i = 0; i < cases.size(); ++i) {
      stored_.push_back(std::make_unique<StoredSequence>(cases[i], random_layout(layout_seed + i)));
      list_.push_back(stored_.back()->sequence());
    }
    args_.shape = options_.shape;
    args_.options = options_.options;
    args_.sequences = list_;
  }

  GuardedBuffer partials(std::int64_t begin, std::int64_t end, int threads, Isa isa) {
    std::vector<std::vector<RowRun>> runs;
    std::vector<AttentionSequence> own = list_;
    for (AttentionSequence& sequence : own) {
      runs.push_back(runs_of_slice(sequence.kv, begin, end));
      sequence.kv.runs = runs.back().empty() ? nullptr : runs.back().data();
      sequence.kv.run_count = static_cast<std::int64_t>(runs.back().size());
    }
    AttentionArgs args = args_;
    args.sequences = own;
    args.segment_begin = begin;
    args.segment_end = end;
    GuardedBuffer block(attention_partials_bytes(args), Edge::end, 64);
    block.fill(0x7fc00000u);
    GuardedBuffer workspace(attention_workspace_bytes(args, threads), Edge::end, 64);
    workspace.fill(0x7fc00000u);
    attention_partials(args, {workspace.data(), workspace.size()}, threads, {block.data(), block.size()}, isa);
    EXPECT_TRUE(block.intact() && workspace.intact());
    return block;
  }

  void finish(std::vector<GuardedBuffer>& blocks, Isa isa) {
    std::vector<AttentionSequence> bare = list_;  // whoever joins need not have a single row
    for (AttentionSequence& sequence : bare) {
      sequence.kv.runs = nullptr;
      sequence.kv.run_count = 0;
    }
    AttentionArgs args = args_;
    args.sequences = bare;
    std::vector<std::byte*> data;
    for (GuardedBuffer& block : blocks) data.push_back(block.data());
    attention_finish_partials(args, data, isa);
  }

  bool nothing_written() const {
    for (const auto& sequence : stored_) {
      const Attention a = sequence->result();
      const auto untouched = [](float x) { return float_bits(x) == kSignalling; };
      if (!std::all_of(a.out.begin(), a.out.end(), untouched)) return false;
      if (!std::all_of(a.lse.begin(), a.lse.end(), untouched)) return false;
    }
    return true;
  }

  void expect_results(const std::vector<Attention>& expected, const std::string& what) const {
    for (std::size_t i = 0; i < stored_.size(); ++i) {
      EXPECT_EQ(stored_[i]->damage(), "") << what;
      expect_same_bits(stored_[i]->result(), expected[i], what + ", sequence " + std::to_string(i));
    }
  }

 private:
  StoredOptions options_;
  Sequences stored_;
  std::vector<AttentionSequence> list_;
  AttentionArgs args_;
};

class AttentionSlices : public EachIsa {
 protected:
  void expect_same_as_whole(const std::vector<Case>& cases, const Cuts& cuts, int threads, const std::string& what) {
    How how;
    how.isa = isa();
    std::vector<Attention> whole;
    for (const Case& c : cases) whole.push_back(attend(c, {}, how));
    SlicedCall call(cases, 40 + cuts.size());
    std::vector<GuardedBuffer> blocks;
    std::int64_t begin = 0;
    for (const std::int64_t cut : cuts) {
      blocks.push_back(call.partials(begin, cut, threads, isa()));
      begin = cut;
    }
    blocks.push_back(call.partials(begin, kEnd, threads, isa()));
    EXPECT_TRUE(call.nothing_written()) << what;
    call.finish(blocks, isa());
    call.expect_results(whole, what + " " + describe(cuts) + " threads:" + std::to_string(threads));
  }
};

CaseSpec spec_of(std::int64_t hq, std::int64_t hkv, std::int64_t n, std::int64_t T, Storage storage) {
  CaseSpec spec;
  spec.query_heads = hq;
  spec.kv_heads = hkv;
  spec.key_dim = 24;
  spec.value_dim = 20;
  spec.n = n;
  spec.T = T;
  spec.k_storage = spec.v_storage = storage;
  spec.sink = true;
  spec.seed = static_cast<std::uint64_t>(hq * 1000 + T);
  return spec;
}

std::vector<Cuts> all_cuts() {
  return {{}, {1}, {2}, {3}, {1, 2}, {1, 2, 3, 4}, {3, 5}, {2, 2}, {0, 4}, {7}, {1, 2, 3, 4, 5, 6, 7, 8}};
}

TEST_P(AttentionSlices, AnyCutHasTheBitsOfTheWhole) {
  std::vector<CaseSpec> specs = {
      spec_of(1, 1, 1, 4100, Storage::f32),   spec_of(8, 2, 1, 3000, Storage::f16),
      spec_of(16, 1, 1, 2600, Storage::int8), spec_of(4, 4, 3, 2000, Storage::bf16),
      spec_of(2, 1, 40, 1100, Storage::f16),  // queries on both sides of a cut
      spec_of(2, 2, 1, 100, Storage::f32),    // most slices hold nothing
  };
  specs.push_back(spec_of(2, 2, 5, 4000, Storage::int8));
  specs.back().window = 1500;
  specs.back().kept_tokens = 600;  // a hole of whole segments between
  specs.push_back(spec_of(4, 2, 1, 4000, Storage::f16));
  specs.back().window = 20;
  for (const CaseSpec& spec : specs) {
    const std::vector<Case> one = {make_case(spec)};
    for (const Cuts& cuts : all_cuts()) {
      for (const int threads : {1, 3}) expect_same_as_whole(one, cuts, threads, describe(spec));
    }
  }
}

TEST_P(AttentionSlices, BatchOfDifferentLengths) {
  std::vector<Case> cases;
  for (const std::int64_t T : {700, 1, 3100, 512, 513}) {
    CaseSpec spec = spec_of(4, 2, 1, T, Storage::f16);
    spec.sink = false;  // sinks and slopes are the call's, not the sequence's
    cases.push_back(make_case(spec));
  }
  for (const Cuts& cuts : all_cuts()) {
    for (const int threads : {1, 2, 7}) expect_same_as_whole(cases, cuts, threads, "batch");
  }
}

template <typename Run>
void expect_refused(ErrorCode code, const Run& run, const std::string& what) {
  try {
    run();
    ADD_FAILURE() << what << ": accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code, code) << what << ": " << error.what();
  }
}

TEST_P(AttentionSlices, Refusals) {
  const std::vector<Case> cases = {make_case(spec_of(4, 2, 1, 2000, Storage::f16))};
  SlicedCall call(cases, 7);
  expect_refused(ErrorCode::bad_option, [&] { call.partials(0, kAll, 1, isa()); }, "no end");
  expect_refused(ErrorCode::bad_option, [&] { call.partials(2, 1, 1, isa()); }, "end before begin");
  expect_refused(ErrorCode::bad_option, [&] { call.partials(-1, 1, 1, isa()); }, "negative begin");
  std::vector<GuardedBuffer> blocks;
  blocks.push_back(call.partials(0, 2, 1, isa()));
  blocks.push_back(call.partials(2, kEnd, 1, isa()));
  blocks[1].fill(0);
  expect_refused(ErrorCode::bad_view, [&] { call.finish(blocks, isa()); }, "a block of zeros");
  EXPECT_TRUE(call.nothing_written());
}

KVROOF_INSTANTIATE_EACH_ISA(AttentionSlices);

}  // namespace
}  // namespace kvroof::test
