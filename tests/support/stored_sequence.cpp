#include "tests/support/stored_sequence.hpp"

#include <algorithm>
#include <cstring>

#include "reference/half.hpp"
#include "reference/lane_twin.hpp"

namespace kvroof::test {
namespace {

using reference::float_bits;

constexpr std::size_t kWorkspaceAlignment = 64;

}  // namespace

StoredSequence::StoredSequence(const Case& c, const Layout& layout, bool want_lse)
    : case_(c), name_(describe(c.spec) + " " + describe(layout)), cache_(c, layout), view_(cache_.view()) {
  const reference::AttentionProblem& p = case_.problem;
  Choices choose(layout.seed ^ 0x5145ull);
  const auto pad = [&choose] { return choose.one_in(2) ? 0 : choose.between(1, 21); };
  // Rows of heads or heads of rows: both orders occur in engines.
  const auto strides = [&](std::int64_t d, std::int64_t& row, std::int64_t& head) {
    if (choose.one_in(3)) {
      row = d + pad();
      head = p.n * row + pad();
    } else {
      head = d + pad();
      row = p.query_heads * head + pad();
    }
    return p.n == 0 ? 0 : (p.n - 1) * row + (p.query_heads - 1) * head + d;
  };
  const std::int64_t q_floats = strides(p.key_dim, q_row_, q_head_);
  const std::int64_t out_floats = strides(p.value_dim, out_row_, out_head_);
  q_ = GuardedBuffer(static_cast<std::size_t>(q_floats) * sizeof(float), layout.edge, sizeof(float));
  q_.fill(kSignalling);
  for (std::int64_t r = 0; r < p.n; ++r) {
    for (std::int64_t h = 0; h < p.query_heads; ++h) {
      std::memcpy(q_.as<float>() + r * q_row_ + h * q_head_, p.q.data() + (r * p.query_heads + h) * p.key_dim,
                  static_cast<std::size_t>(p.key_dim) * sizeof(float));
    }
  }
  out_ = GuardedBuffer(static_cast<std::size_t>(out_floats) * sizeof(float), layout.edge, sizeof(float));
  out_.fill(kSignalling);
  if (want_lse) {
    lse_ = GuardedBuffer(static_cast<std::size_t>(p.n * p.query_heads) * sizeof(float), layout.edge, sizeof(float));
    lse_.fill(kSignalling);
  }
  hash_ = cache_.hash() ^ q_.hash();
}

AttentionSequence StoredSequence::sequence() {
  AttentionSequence s;
  s.q = q_.as<float>();
  s.q_row_stride = q_row_;
  s.q_head_stride = q_head_;
  s.n = case_.problem.n;
  s.kv = view_;
  s.out = out_.as<float>();
  s.out_row_stride = out_row_;
  s.out_head_stride = out_head_;
  s.lse = lse_.as<float>();
  return s;
}

Attention StoredSequence::result() const {
  const reference::AttentionProblem& p = case_.problem;
  Attention a;
  for (std::int64_t r = 0; r < p.n; ++r) {
    for (std::int64_t h = 0; h < p.query_heads; ++h) {
      const float* row = out_.as<float>() + r * out_row_ + h * out_head_;
      a.out.insert(a.out.end(), row, row + p.value_dim);
    }
  }
  if (lse_.data() != nullptr) a.lse.assign(lse_.as<float>(), lse_.as<float>() + p.n * p.query_heads);
  return a;
}

bool StoredSequence::untouched() const {
  const auto kept = [](float x) { return float_bits(x) == kSignalling; };
  const Attention a = result();
  return std::all_of(a.out.begin(), a.out.end(), kept) && std::all_of(a.lse.begin(), a.lse.end(), kept);
}

std::string StoredSequence::damage() const {
  const reference::AttentionProblem& p = case_.problem;
  std::string text;
  if ((cache_.hash() ^ q_.hash()) != hash_) text += " q or the cache was written to;";
  if (!cache_.intact() || !q_.intact() || !out_.intact() || !lse_.intact())
    text += " memory beside an array was written to;";
  // Floats of out that belong to no row must still hold the pattern, those of a row must not.
  std::vector<char> belongs(out_.size() / sizeof(float), 0);
  for (std::int64_t r = 0; r < p.n; ++r) {
    for (std::int64_t h = 0; h < p.query_heads; ++h) {
      std::fill_n(belongs.begin() + r * out_row_ + h * out_head_, p.value_dim, char{1});
    }
  }
  std::int64_t unwritten = 0, overwritten = 0;
  for (std::size_t i = 0; i < belongs.size(); ++i) {
    const bool pattern = float_bits(out_.as<float>()[i]) == kSignalling;
    if (belongs[i] && pattern) ++unwritten;
    if (!belongs[i] && !pattern) ++overwritten;
  }
  if (unwritten != 0) text += " " + std::to_string(unwritten) + " floats of out were not written;";
  if (overwritten != 0) text += " " + std::to_string(overwritten) + " floats between the rows of out were written;";
  return text.empty() ? text : name_ + ":" + text;
}

std::string describe(const How& how) {
  return std::string("isa:") + isa_name(how.isa) + (how.mode == Mode::native ? "/native" : "") +
         (how.threads ? "/threads:" : "/parts:") + std::to_string(how.parts) +
         "/order:" + std::to_string(how.order_seed);
}

StoredOptions::StoredOptions(const Case& c, Edge edge) {
  const reference::AttentionProblem& p = c.problem;
  shape = {p.query_heads, p.kv_heads, p.key_dim, p.value_dim};
  options.scale = p.scale;
  options.window = p.window;
  options.kept_tokens = p.kept_tokens;
  options.softcap = p.softcap;
  const auto store = [edge](const std::vector<float>& values, GuardedBuffer& buffer) -> const float* {
    if (values.empty()) return nullptr;
    buffer = GuardedBuffer(values.size() * sizeof(float), edge, sizeof(float));
    std::memcpy(buffer.data(), values.data(), buffer.size());
    buffer.read_only();
    return buffer.as<float>();
  };
  options.alibi_slopes = store(p.alibi_slopes, slopes_);
  options.sink_logits = store(p.sink_logits, sinks_);
}

StoredCall::StoredCall(StoredSequence& only, Mode mode) : stored(only.source()), list{only.sequence()} {
  set_args(mode);
}

StoredCall::StoredCall(const Sequences& sequences, Mode mode) : stored(sequences.front()->source()) {
  for (const auto& s : sequences) list.push_back(s->sequence());
  set_args(mode);
}

void StoredCall::set_args(Mode mode) {
  args.shape = stored.shape;
  args.options = stored.options;
  args.sequences = list;
  args.mode = mode;
}

std::vector<Attention> run_attention(const Sequences& sequences, const How& how, std::string& damage) {
  const StoredCall call(sequences, how.mode);
  const AttentionArgs& args = call.args;
  const std::size_t bytes = attention_workspace_bytes(args, how.parts);
  GuardedBuffer workspace(bytes, Edge::end, kWorkspaceAlignment);
  workspace.fill(how.workspace_fill);
  if (how.threads) {
    decode_attention(args, {workspace.data(), bytes}, how.parts, how.isa);
  } else {
    attention_check(args);
    std::vector<int> order;
    for (int part = 0; part < how.parts; ++part) order.push_back(part);
    Choices choose(how.order_seed);
    if (how.order_seed != 0) choose.shuffle(order);
    for (int part : order) attention_run_part(args, how.parts, part, workspace.data(), how.isa);
    if (how.order_seed != 0) choose.shuffle(order);
    for (int part : order) attention_merge_part(args, how.parts, part, workspace.data(), how.isa);
  }
  if (!workspace.intact()) damage += "memory beyond the workspace was written to; ";

  std::vector<Attention> results;
  for (const auto& s : sequences) {
    damage += s->damage();
    results.push_back(s->result());
  }
  return results;
}

Attention twin(const Case& c) {
  Attention a;
  reference::lane_twin_attention(c.problem, a.out, a.lse);
  return a;
}

}  // namespace kvroof::test
