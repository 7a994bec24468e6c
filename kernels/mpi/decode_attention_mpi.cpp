#include "kernels/mpi/decode_attention_mpi.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <vector>

namespace kvroof {
namespace {

constexpr std::size_t kLine = 64;  // blocks of partials are whole lines: counts in lines stay within an int

std::size_t round_up(std::size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

// What a rank tells the others before anything is computed.
struct Status {
  std::int64_t begin = 0, end = 0;
  std::uint64_t fingerprint = 0;
  std::int32_t error = -1;  // an ErrorCode, or -1
  char text[212] = {};

  void fail(ErrorCode code, const std::string& what) {
    error = static_cast<std::int32_t>(code);
    std::strncpy(text, what.c_str(), sizeof text - 1);
  }
};

// FNV-1a over 64-bit words: finds arguments that differ, no defence against intent.
class Fingerprint {
 public:
  void add(std::int64_t word) { value_ = (value_ ^ static_cast<std::uint64_t>(word)) * 0x100000001b3u; }
  void add(float word) { add(std::int64_t{std::bit_cast<std::int32_t>(word)}); }
  void add(const float* words, std::int64_t n) {
    add(std::int64_t{words != nullptr});
    for (std::int64_t i = 0; words != nullptr && i < n; ++i) add(words[i]);
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325u;
};

std::uint64_t fingerprint(const AttentionArgs& args, Isa isa) {
  Fingerprint print;
  const AttentionShape& s = args.shape;
  for (const std::int64_t word : {s.query_heads, s.kv_heads, s.key_dim, s.value_dim}) print.add(word);
  const AttentionOptions& o = args.options;
  print.add(o.scale);
  print.add(o.window);
  print.add(o.kept_tokens);
  print.add(o.softcap);
  print.add(o.alibi_slopes, s.query_heads);
  print.add(o.sink_logits, s.query_heads);
  print.add(static_cast<std::int64_t>(args.mode));
  if (args.mode == Mode::native) print.add(static_cast<std::int64_t>(isa));  // its bits are the ISA's own
  print.add(args.expansion != nullptr ? args.expansion->rope_dim : -1);
  print.add(static_cast<std::int64_t>(args.sequences.size()));
  for (const AttentionSequence& seq : args.sequences) {
    print.add(seq.n);
    print.add(seq.kv.end_position);
    print.add(seq.kv.latent_dim);
    print.add(static_cast<std::int64_t>(seq.kv.k_storage) * 4 + static_cast<std::int64_t>(seq.kv.v_storage));
    for (std::int64_t r = 0; r < seq.n; ++r)
      for (std::int64_t h = 0; h < s.query_heads; ++h)
        print.add(seq.q + r * seq.q_row_stride + h * seq.q_head_stride, s.key_dim);
  }
  return print.value();
}

void check_own(const AttentionArgs& args, std::span<std::byte> workspace, std::size_t bytes, Isa isa) {
  if (!isa_supported(isa)) throw Error(ErrorCode::bad_isa, std::string(isa_name(isa)) + ": " + isa_missing(isa));
  if (args.segment_end == std::numeric_limits<std::int64_t>::max())
    throw Error(ErrorCode::bad_option, "segment_end is not set: every rank states its range of segments");
  attention_check(args);
  if (args.mode == Mode::native && !args.sequences.empty()) {
    const KvView& kv = args.sequences[0].kv;
    const std::string missing = native_missing(isa, kv.k_storage, kv.v_storage);
    if (!missing.empty()) throw Error(ErrorCode::bad_isa, missing);
  }
  if (workspace.size() < bytes || reinterpret_cast<std::uintptr_t>(workspace.data()) % kLine != 0)
    throw Error(ErrorCode::bad_workspace, "workspace has " + std::to_string(workspace.size()) + " bytes: must be " +
                                              std::to_string(bytes) + " and aligned to 64");
}

// The same on every rank, from what all said: the first fault there is.
void agree(const std::vector<Status>& all, std::int64_t segments) {
  const auto where = [](std::size_t rank) { return "rank " + std::to_string(rank) + ": "; };
  for (std::size_t r = 0; r < all.size(); ++r)
    if (all[r].error >= 0) throw Error(static_cast<ErrorCode>(all[r].error), where(r) + all[r].text);
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].fingerprint != all[0].fingerprint)
      throw Error(ErrorCode::bad_option, where(r) + "shape, options, q or lengths differ from those of rank 0");
    const std::int64_t at = r == 0 ? 0 : all[r - 1].end;
    if (all[r].begin != at)
      throw Error(ErrorCode::bad_option, where(r) + "segments begin at " + std::to_string(all[r].begin) + ": must be " +
                                             std::to_string(at) + ", where the rank before ends");
  }
  if (all.back().end < segments)
    throw Error(ErrorCode::bad_option, where(all.size() - 1) + "segments end at " + std::to_string(all.back().end) +
                                           ": the context has " + std::to_string(segments));
}

}  // namespace

MpiSegments mpi_segments(std::int64_t positions, int rank, int ranks) {
  if (positions < 0 || ranks < 1 || rank < 0 || rank >= ranks)
    throw Error(ErrorCode::bad_shape, "mpi_segments: positions must be 0 or more and rank one of ranks");
  const std::int64_t segments = positions / kSegmentRows + (positions % kSegmentRows != 0);
  const std::int64_t share = segments / ranks, more = segments % ranks;
  const auto begin = [&](std::int64_t r) { return r * share + std::min(r, more); };
  return {begin(rank), begin(rank + 1)};
}

std::size_t decode_attention_mpi_bytes(const AttentionArgs& args, int threads, int rank, int ranks, int root) {
  const std::size_t blocks = rank == root ? static_cast<std::size_t>(ranks) + 1 : 1;
  return round_up(attention_workspace_bytes(args, threads)) + blocks * round_up(attention_partials_bytes(args));
}

void decode_attention_mpi(const AttentionArgs& args, std::span<std::byte> workspace, int threads, Isa isa,
                          MPI_Comm comm, int root) {
  int rank = 0, ranks = 1;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &ranks);

  Status own;
  own.begin = args.segment_begin;
  own.end = args.segment_end;
  try {
    check_own(args, workspace, decode_attention_mpi_bytes(args, threads, rank, ranks, root), isa);
    own.fingerprint = fingerprint(args, isa);
  } catch (const Error& error) {
    own.fail(error.code, error.what());
  } catch (const std::bad_alloc&) {
    own.fail(ErrorCode::out_of_memory, "out of memory");
  }
  std::vector<Status> all(static_cast<std::size_t>(ranks));
  MPI_Allgather(&own, sizeof own, MPI_BYTE, all.data(), sizeof own, MPI_BYTE, comm);
  std::int64_t segments = 0;
  for (const AttentionSequence& seq : args.sequences)
    if (seq.n > 0) segments = std::max(segments, (seq.kv.end_position + kSegmentRows - 1) / kSegmentRows);
  agree(all, segments);

  const std::size_t scratch = round_up(attention_workspace_bytes(args, threads));
  const std::size_t block = round_up(attention_partials_bytes(args));
  if (block == 0) return;
  std::byte* const partials = workspace.data() + scratch;
  attention_partials(args, workspace.first(scratch), threads, {partials, block}, isa);

  MPI_Datatype line;
  MPI_Type_contiguous(kLine, MPI_BYTE, &line);
  MPI_Type_commit(&line);
  const int lines = static_cast<int>(block / kLine);
  MPI_Gather(partials, lines, line, rank == root ? partials + block : nullptr, lines, line, root, comm);
  MPI_Type_free(&line);
  if (rank != root) return;
  std::vector<std::byte*> blocks;
  for (int r = 0; r < ranks; ++r) blocks.push_back(partials + static_cast<std::size_t>(r + 1) * block);
  attention_finish_partials(args, blocks, isa);
}

}  // namespace kvroof
