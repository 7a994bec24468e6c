#include "tests/support/sliced_call.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace kvroof::test {
namespace {

Sequences store(const std::vector<Case>& cases, std::uint64_t layout_seed) {
  Sequences stored;
  for (std::size_t i = 0; i < cases.size(); ++i)
    stored.push_back(std::make_unique<StoredSequence>(cases[i], random_layout(layout_seed + i)));
  return stored;
}

// The parts of a view's runs that lie in segments [begin, end): all that a process has.
std::vector<RowRun> runs_of_slice(const KvView& kv, std::int64_t begin, std::int64_t end) {
  std::vector<RowRun> own;
  for (std::int64_t i = 0; i < kv.run_count; ++i) {
    RowRun run = kv.runs[i];
    const std::int64_t first = std::max(run.first_position, begin * kSegmentRows);
    const std::int64_t last = std::min(run.first_position + run.rows, std::min(end, kEndOfSegments) * kSegmentRows);
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

}  // namespace

SlicedCall::SlicedCall(const std::vector<Case>& cases, std::uint64_t layout_seed, Mode mode)
    : stored_(store(cases, layout_seed)), call_(stored_, mode) {}

GuardedBuffer SlicedCall::partials(std::int64_t begin, std::int64_t end, int threads, Isa isa) {
  std::vector<std::vector<RowRun>> runs;
  std::vector<AttentionSequence> own = call_.list;
  for (AttentionSequence& sequence : own) {
    runs.push_back(runs_of_slice(sequence.kv, begin, end));
    sequence.kv.runs = runs.back().empty() ? nullptr : runs.back().data();
    sequence.kv.run_count = static_cast<std::int64_t>(runs.back().size());
  }
  AttentionArgs args = call_.args;
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

void SlicedCall::finish(std::vector<GuardedBuffer>& blocks, Isa isa) {
  std::vector<AttentionSequence> bare = call_.list;  // whoever joins need not have a single row
  for (AttentionSequence& sequence : bare) {
    sequence.kv.runs = nullptr;
    sequence.kv.run_count = 0;
  }
  AttentionArgs args = call_.args;
  args.sequences = bare;
  std::vector<std::byte*> data;
  for (GuardedBuffer& block : blocks) data.push_back(block.data());
  attention_finish_partials(args, data, isa);
}

bool SlicedCall::nothing_written() const {
  return std::all_of(stored_.begin(), stored_.end(), [](const auto& sequence) { return sequence->untouched(); });
}

void SlicedCall::expect_results(const std::vector<Attention>& expected, const std::string& what) const {
  for (std::size_t i = 0; i < stored_.size(); ++i) {
    EXPECT_EQ(stored_[i]->damage(), "") << what;
    expect_same_bits(stored_[i]->result(), expected[i], what + ", sequence " + std::to_string(i));
  }
}

void expect_slices_as_whole(const std::vector<Case>& cases, const Cuts& cuts, const How& how, const std::string& what) {
  How alone = how;
  alone.parts = 1;
  std::vector<Attention> whole;
  for (const Case& c : cases) whole.push_back(attend(c, {}, alone));
  SlicedCall call(cases, 40 + cuts.size(), how.mode);
  std::vector<GuardedBuffer> blocks;
  std::string text = what + ", cut at segments";
  std::int64_t begin = 0;
  for (const std::int64_t cut : cuts) {
    blocks.push_back(call.partials(begin, cut, how.parts, how.isa));
    begin = cut;
    text += " " + std::to_string(cut);
  }
  blocks.push_back(call.partials(begin, kEndOfSegments, how.parts, how.isa));
  EXPECT_TRUE(call.nothing_written()) << text;
  call.finish(blocks, how.isa);
  call.expect_results(whole, text + ", threads:" + std::to_string(how.parts));
}

}  // namespace kvroof::test
