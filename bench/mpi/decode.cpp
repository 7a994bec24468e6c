// kvroof_mpi_decode: decodes a synthetic KV cache whose context is split over the ranks of mpirun. Options:
// tools/cluster/README.md.
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "kernels/cache/rows.hpp"
#include "kernels/mpi/decode_attention_mpi.hpp"

namespace {

using namespace kvroof;

struct Options {
  std::map<std::string, std::int64_t> numbers = {{"T", 32768}, {"Hq", 32},   {"Hkv", 8},      {"Dk", 128},
                                                 {"Dv", 128},  {"W", 0},     {"kept", 0},     {"sinks", 0},
                                                 {"batch", 1}, {"chunk", 1}, {"tokens", 16},  {"threads", 1},
                                                 {"check", 0}, {"seed", 1},  {"bad_rank", -1}};
  Storage storage = Storage::f16;
  RowOrder order = RowOrder::head_major;
  std::int64_t operator[](const char* name) const { return numbers.at(name); }
};

Error wrong(const std::string& what) { return Error(ErrorCode::bad_option, what); }

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const std::size_t equals = word.find('=');
    if (word.rfind("--", 0) != 0 || equals == std::string::npos)
      throw wrong("'" + word + "' is not understood: options are --name=value, see tools/cluster/README.md");
    const std::string name = word.substr(2, equals - 2), value = word.substr(equals + 1);
    if (name == "storage") {
      bool known = false;
      for (const Storage storage : kStorages)
        if (value == storage_name(storage)) options.storage = storage, known = true;
      if (!known) throw wrong("--storage=" + value + ": must be f32, f16, bf16 or int8");
    } else if (name == "layout") {
      if (value != "head" && value != "token") throw wrong("--layout=" + value + ": must be head or token");
      options.order = value == "head" ? RowOrder::head_major : RowOrder::token_major;
    } else if (const auto at = options.numbers.find(name); at != options.numbers.end()) {
      char* end = nullptr;
      at->second = std::strtoll(value.c_str(), &end, 10);
      if (value.empty() || *end != 0 || at->second < (name == "bad_rank" ? -1 : 0) || at->second > (1LL << 40))
        throw wrong("--" + name + "=" + value + ": must be a whole number from 0 to 2^40");
    } else {
      throw wrong("--" + name + " is unknown: see tools/cluster/README.md");
    }
  }
  for (const char* name : {"T", "Hq", "Hkv", "Dk", "Dv", "batch", "chunk", "tokens", "threads"})
    if (options[name] < 1) throw wrong(std::string("--") + name + "=0: must be at least 1");
  if (options["threads"] > 4096 || options["batch"] > 65536) throw wrong("--threads is at most 4096, --batch 65536");
  if (options["chunk"] > options["T"]) throw wrong("--chunk is more than --T: the context holds the chunk");
  const double floats = static_cast<double>(options["batch"]) * static_cast<double>(options["chunk"]) *
                        static_cast<double>(options["Hq"]) *
                        static_cast<double>(std::max(options["Dk"], options["Dv"]));
  if (floats > 1e9) throw wrong("batch x chunk x Hq x D is more than 1e9 floats: make one of them smaller");
  return options;
}

// A value in [-1, 1) that any rank can make without its neighbours.
float value_at(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t x = (seed * 0x9e3779b97f4a7c15u) ^ (index + 0x632be59bd9b4e019u);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return static_cast<float>(static_cast<std::int32_t>((x ^ (x >> 31)) >> 32)) * 0x1p-31f;
}

struct Free {
  void operator()(std::byte* p) const { std::free(p); }
};
using Memory = std::unique_ptr<std::byte, Free>;

Memory allocate(std::size_t bytes) {
  auto* p = static_cast<std::byte*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64 + 64));
  if (p == nullptr) throw Error(ErrorCode::out_of_memory, "no memory for " + std::to_string(bytes) + " bytes");
  return Memory(p);
}

// One sequence's rows of positions [first, end): a rank's share, or all.
class Rows {
 public:
  Rows(const Options& o, std::int64_t sequence, std::int64_t first, std::int64_t end)
      : first_(first), end_(std::max(first, end)), shape_{o["Hkv"], o["Dk"], o["Dv"], o.storage, o.storage} {
    layout_ = row_layout(shape_, o.order, end_ - first_);
    block_ = allocate(static_cast<std::size_t>(layout_.bytes));
    const RowConverter convert = default_row_converter();
    std::vector<float> k(static_cast<std::size_t>(shape_.kv_heads * shape_.key_dim));
    std::vector<float> v(static_cast<std::size_t>(shape_.kv_heads * shape_.value_dim));
    const auto seed = static_cast<std::uint64_t>(o["seed"] * 1000003 + sequence * 2);
    for (std::int64_t p = first_; p < end_; ++p) {
      const auto at = static_cast<std::uint64_t>(p);
      for (std::size_t i = 0; i < k.size(); ++i) k[i] = value_at(seed, at * k.size() + i);
      for (std::size_t i = 0; i < v.size(); ++i) v[i] = value_at(seed + 1, at * v.size() + i);
      store_rows(layout_, block_.get(), p - first_, packed_rows(shape_, 1, k.data(), v.data()), 0, 1, convert);
    }
  }
  // As if only positions below `length` had been appended.
  KvView view(std::int64_t length) {
    KvView kv = layout_.strides;
    kv.end_position = length;
    const std::int64_t rows = std::min(end_, length) - first_;
    if (rows > 0) {
      run_ = row_run(layout_, block_.get(), 0, first_, rows);
      kv.runs = &run_;
      kv.run_count = 1;
    }
    return kv;
  }

 private:
  std::int64_t first_, end_;
  CacheShape shape_;
  RowLayout layout_;
  Memory block_;
  RowRun run_;
};

class Decode {
 public:
  Decode(const Options& o, int rank, int ranks) : o_(o), rank_(rank), ranks_(ranks) {
    last_ = o["T"] + o["tokens"] - 1;
    args_.shape = {o["Hq"], o["Hkv"], o["Dk"], o["Dv"]};
    args_.options.scale = 0.125f;
    if (o["W"] > 0) args_.options.window = o["W"];
    args_.options.kept_tokens = o["kept"];
    for (std::int64_t h = 0; h < o["Hq"]; ++h) sinks_.push_back(value_at(7, static_cast<std::uint64_t>(h)));
    if (o["sinks"] > 0) args_.options.sink_logits = sinks_.data();
    own_ = mpi_segments(last_, rank, ranks);
    const std::int64_t end = std::min(last_, own_.end * kSegmentRows);
    sequences_.resize(static_cast<std::size_t>(o["batch"]));
    for (std::int64_t b = 0; b < o["batch"]; ++b) {
      rows_.emplace_back(o, b, own_.begin * kSegmentRows, end);
      if (o["check"] > 0 && rank == 0) whole_.emplace_back(o, b, 0, last_);
    }
    q_.resize(static_cast<std::size_t>(o["batch"] * o["chunk"] * o["Hq"] * o["Dk"]));
    out_.resize(static_cast<std::size_t>(o["batch"] * o["chunk"] * o["Hq"] * o["Dv"]));
    lse_.resize(static_cast<std::size_t>(o["batch"] * o["chunk"] * o["Hq"]));
    describe(last_, rows_);
    workspace_bytes_ = decode_attention_mpi_bytes(args_, threads(), rank, ranks);
    workspace_ = allocate(workspace_bytes_);
  }

  void token(std::int64_t length) {
    if (rank_ == 0)
      for (std::size_t i = 0; i < q_.size(); ++i) q_[i] = value_at(static_cast<std::uint64_t>(length), i);
    MPI_Bcast(q_.data(), static_cast<int>(q_.size()), MPI_FLOAT, 0, MPI_COMM_WORLD);
    describe(length, rows_);
    args_.segment_begin = own_.begin;
    args_.segment_end = own_.end;
    if (o_["bad_rank"] == rank_) args_.options.window = 0;
    decode_attention_mpi(args_, {workspace_.get(), workspace_bytes_}, threads(), default_isa(), MPI_COMM_WORLD);
    bytes_ += attention_bytes(args_);
    if (rank_ == 0) fold();
  }

  // The last token again in one process: true if every bit of out and lse is the same.
  bool same_alone(std::int64_t length) {
    const std::vector<float> out = out_, lse = lse_;
    std::fill(out_.begin(), out_.end(), -1.0f);
    std::fill(lse_.begin(), lse_.end(), -1.0f);
    describe(length, whole_);
    args_.segment_begin = 0;
    args_.segment_end = std::numeric_limits<std::int64_t>::max();
    const std::size_t bytes = attention_workspace_bytes(args_, threads());
    const Memory workspace = allocate(bytes);
    decode_attention(args_, {workspace.get(), bytes}, threads());
    const bool same = std::memcmp(out.data(), out_.data(), out.size() * sizeof(float)) == 0 &&
                      std::memcmp(lse.data(), lse_.data(), lse.size() * sizeof(float)) == 0;
    return same;
  }

  std::uint64_t hash() const { return hash_; }
  double bytes() const { return static_cast<double>(bytes_); }

 private:
  int threads() const { return static_cast<int>(o_["threads"]); }
  void describe(std::int64_t length, std::vector<Rows>& rows) {
    const std::int64_t n = o_["chunk"], hq = o_["Hq"];
    for (std::size_t b = 0; b < sequences_.size(); ++b) {
      AttentionSequence& s = sequences_[b];
      const auto at = static_cast<std::int64_t>(b) * n * hq;
      s.q = q_.data() + at * o_["Dk"];
      s.out = out_.data() + at * o_["Dv"];
      s.lse = lse_.data() + at;
      s.n = n;
      s.q_head_stride = o_["Dk"], s.q_row_stride = hq * o_["Dk"];
      s.out_head_stride = o_["Dv"], s.out_row_stride = hq * o_["Dv"];
      s.kv = rows[b].view(length);
    }
    args_.sequences = sequences_;
  }
  void fold() {  // FNV-1a over the bytes of every output so far
    const auto* p = reinterpret_cast<const unsigned char*>(out_.data());
    for (std::size_t i = 0; i < out_.size() * sizeof(float); ++i) hash_ = (hash_ ^ p[i]) * 0x100000001b3u;
  }

  Options o_;
  int rank_, ranks_;
  std::int64_t last_ = 0;
  MpiSegments own_;
  AttentionArgs args_;
  std::vector<AttentionSequence> sequences_;
  std::vector<Rows> rows_, whole_;
  std::vector<float> sinks_, q_, out_, lse_;
  std::size_t workspace_bytes_ = 0;
  Memory workspace_;
  std::uint64_t hash_ = 0xcbf29ce484222325u;
  std::int64_t bytes_ = 0;
};

// Making the rows can fail on one rank alone (memory); the others must not wait for it. Null: the lowest rank that
// failed said why.
std::unique_ptr<Decode> make_decode(const Options& options, int rank, int ranks) {
  std::unique_ptr<Decode> decode;
  std::string what;
  try {
    decode = std::make_unique<Decode>(options, rank, ranks);
  } catch (const Error& error) {
    what = error.what();
  } catch (const std::bad_alloc&) {
    what = "out of memory";
  }
  const int own = decode != nullptr ? ranks : rank;
  int failed = ranks;
  MPI_Allreduce(&own, &failed, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  if (failed == rank) std::fprintf(stderr, "kvroof_mpi_decode: rank %d: %s\n", rank, what.c_str());
  return failed == ranks ? std::move(decode) : nullptr;
}

int run(const Options& options, int rank, int ranks) {
  const std::unique_ptr<Decode> made = make_decode(options, rank, ranks);
  if (made == nullptr) return 2;
  Decode& decode = *made;
  MPI_Barrier(MPI_COMM_WORLD);
  const double begin = MPI_Wtime();
  const std::int64_t first = options["T"], tokens = options["tokens"];
  for (std::int64_t t = 0; t < tokens; ++t) decode.token(first + t);
  const double seconds = MPI_Wtime() - begin;
  const double gb_per_s = decode.bytes() / seconds / 1e9;
  std::vector<double> every(static_cast<std::size_t>(ranks));
  MPI_Gather(&gb_per_s, 1, MPI_DOUBLE, every.data(), 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
  if (rank != 0) return 0;
  std::printf("ranks %d, T %" PRId64 ", %s: %.3f ms per token\n", ranks, first, storage_name(options.storage),
              seconds * 1e3 / static_cast<double>(tokens));
  for (int r = 0; r < ranks; ++r) std::printf("rank %d: %.2f GB/s\n", r, every[static_cast<std::size_t>(r)]);
  std::printf("output hash %016" PRIx64 "\n", decode.hash());
  if (options["check"] == 0) return 0;
  const bool same = decode.same_alone(first + tokens - 1);
  std::printf("one process: %s\n", same ? "same bits" : "OTHER BITS");
  return same ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  int code = 0;
  try {
    const Options options = parse(argc, argv);
    code = run(options, rank, ranks);
  } catch (const kvroof::Error& error) {
    code = 2;
    if (rank == 0) std::fprintf(stderr, "kvroof_mpi_decode: %s\n", error.what());
  }
  MPI_Finalize();
  return code;
}
