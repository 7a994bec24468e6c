// Model tests of the caches: one sequence of random operations runs on a cache and on the plainest model of it (a list
// of tokens); after every operation the cache's view must show the model's rows, bit for bit. The source of the
// operations is a seed here and a byte string in the fuzz target, so a model throws ModelMismatch instead of using
// GoogleTest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cache/rows.hpp"

namespace kvroof::test_cache {

class ModelMismatch : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

// What the next operation is. Everything random in a model test comes from here.
class OpSource {
 public:
  virtual ~OpSource() = default;
  virtual std::uint64_t next(std::uint64_t bound) = 0;  // 0 ... bound-1
  virtual bool done() const = 0;
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(next(static_cast<std::uint64_t>(high - low + 1)));
  }
};

// `ops` operations from a seed; done() counts how often it was asked.
class SeededOps : public OpSource {
 public:
  SeededOps(std::uint64_t seed, std::int64_t ops) : seed_(seed), ops_(ops) {}
  std::uint64_t next(std::uint64_t bound) override;
  bool done() const override { return asked_++ >= ops_; }
  std::int64_t asked() const { return asked_; }

 private:
  std::uint64_t seed_, count_ = 0;
  std::int64_t ops_;
  mutable std::int64_t asked_ = 0;
};

// A token is a number; its rows are a function of the number alone.
using Token = std::uint64_t;
using PlacedToken = std::pair<std::int64_t, Token>;  // position, token

// One head's row of one token: side 0 is K, side 1 is V.
std::vector<float> token_row(Token token, int side, std::int64_t head, std::int64_t dim);

// n rows for the tokens, in buffers with gaps of `gap` floats between heads and rows that hold NaN.
class TokenRows {
 public:
  TokenRows(const CacheShape& shape, std::span<const Token> tokens, std::int64_t gap);
  const NewRows& rows() const { return rows_; }

 private:
  std::vector<float> k_, v_;
  NewRows rows_;
};

CacheShape random_shape(OpSource& ops);

// The view holds exactly `expected` (ascending positions), ends at `end`, and has no more than `most_runs` runs.
void require_view(const KvView& view, const CacheShape& shape, const std::vector<PlacedToken>& expected,
                  std::int64_t end, std::int64_t most_runs);
// One row of the cache against its token.
void require_row(const KvView& view, const CacheShape& shape, const RowRun& run, std::int64_t row, Token token);
void require(bool condition, const std::string& what);

// `call` must throw Error with this code; `what` names it.
template <typename Call>
void require_error(ErrorCode code, const std::string& what, const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    require(error.code == code, what + ": refused with " + error_name(error.code) + ", expected " + error_name(code));
    return;
  }
  throw ModelMismatch(what + ": not refused, expected " + error_name(code));
}

// Each runs until ops.done(). Lent memory, both row orders and every pair of storages occur.
void contiguous_model(OpSource& ops);
void ring_model(OpSource& ops);
void paged_model(OpSource& ops);
// Sequences in caches of all kinds and page sizes at once; after every operation one call attends over all of them, and
// each output must have the bits of the lane twin over the model's tokens.
void attention_model(OpSource& ops);

}  // namespace kvroof::test_cache
