// Small attention problems that are told by their numbers, and the answers of lane twin and oracle to them.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "reference/half.hpp"
#include "reference/inputs.hpp"
#include "reference/lane_twin.hpp"
#include "reference/oracle.hpp"
#include "reference/problem.hpp"

namespace kvroof::reference {

struct Answer {
  std::vector<float> out, lse;
  OracleAnswer oracle;
  double ratio = 0;  // worst error over bound
};

inline Answer answer(const AttentionProblem& p) {
  Answer a;
  lane_twin_attention(p, a.out, a.lse);
  a.oracle = oracle_attention(p);
  a.ratio = worst_error_over_bound(a.oracle, a.out, a.lse);
  return a;
}

// q = 0, so all scores are 0 and the output is the mean of V over the visible rows; V[t] = t names them.
inline AttentionProblem counting(std::int64_t T, std::int64_t n, std::int64_t window) {
  AttentionProblem p;
  p.query_heads = p.kv_heads = p.key_dim = p.value_dim = 1;
  p.T = T;
  p.n = n;
  p.window = window;
  p.q.assign(static_cast<std::size_t>(n), 0.0f);
  p.k.assign(static_cast<std::size_t>(T), 1.0f);
  for (std::int64_t t = 0; t < T; ++t) p.v.push_back(static_cast<float>(t));
  return p;
}

// One head, one dimension, q = 1: row t has score scores[t].
inline AttentionProblem scored(const std::vector<float>& scores, const std::vector<float>& values) {
  AttentionProblem p = counting(static_cast<std::int64_t>(scores.size()), 1, std::numeric_limits<std::int64_t>::max());
  p.q = {1.0f};
  p.k = scores;
  p.v = values;
  return p;
}

inline AttentionProblem random_problem(std::int64_t T, std::int64_t n, std::int64_t dim, std::uint64_t seed) {
  AttentionProblem p;
  p.query_heads = 4;
  p.kv_heads = 2;
  p.key_dim = p.value_dim = dim;
  p.T = T;
  p.n = n;
  p.scale = 1.5f;
  for (std::int64_t i = 0; i < n * 4 * dim; ++i) p.q.push_back(uniform(seed, static_cast<std::uint64_t>(i)));
  for (std::int64_t i = 0; i < T * 2 * dim; ++i) {
    p.k.push_back(uniform(seed + 1, static_cast<std::uint64_t>(i)));
    p.v.push_back(uniform(seed + 2, static_cast<std::uint64_t>(i)));
  }
  return p;
}

inline void expect_bits(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    EXPECT_EQ(float_bits(a[i]), float_bits(b[i])) << i << ": " << a[i] << ' ' << b[i];
}

}  // namespace kvroof::reference
