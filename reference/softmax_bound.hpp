// The softmax of one query in float64 and what a mode's rounding may do to it: the part of the error bound that every
// attention form shares. The formula is derived in oracle.hpp.
#pragma once

#include <cstdint>
#include <vector>

namespace kvroof::reference {

inline constexpr double kUnitRoundoff = 0x1p-24;
inline constexpr double kSmallest = 0x1p-149;  // smallest subnormal float: the absolute error of an underflow

// g(k): relative error of k roundings in a row.
inline double roundings(double k) { return k * kUnitRoundoff / (1.0 - k * kUnitRoundoff); }

// What a mode's arithmetic adds to the roundings that all share (derived in oracle.hpp).
struct Arithmetic {
  double query = 0;          // relative error of a query component before it is multiplied
  double weight = 0;         // of a weight after its exp: e and rounding
  double distance = 1;       // roundings of the distance s - max that goes through exp
  double max = 0;            // roundings of a segment's max
  double value_chain = 0;    // further roundings of a term of the value sum
  double flush = kSmallest;  // what is lost where a product or a sum underflows
  double flushed_input = 0;  // inputs below this count as zero
  bool pairs = false;        // scores are chains of pairs of columns, not 16 stripes and a tree
};
inline constexpr Arithmetic kReproducibleArithmetic{};
inline constexpr double kBf16Rounding = 0x1p-8;
inline constexpr double kCubicExp2 = 0x1p-13 * 0.62;  // 2^-13.7 and the roundings of its four steps
inline constexpr Arithmetic kNativeBf16Arithmetic{
    kBf16Rounding, kCubicExp2 + kBf16Rounding + kCubicExp2* kBf16Rounding, 4, 1, 1, 0x1p-126, 0x1p-126, true};

// Roundings of a dot product over `dim` columns and its product with the scale.
double score_roundings(const Arithmetic& arithmetic, std::int64_t dim);

// One visible row. score_error bounds what the float score is away from `score`; infinite where it may overflow.
struct ScoredRow {
  std::int64_t position = 0;
  double score = 0, score_error = 0;
};

// c * tanh(s / c), with what the float version adds to the error of s.
void cap_score(double cap, double& score, double& error);

struct Softmax {
  bool empty = false;  // nothing but scores of -inf
  bool nan = false;
  double lse = 0, lse_bound = 0;
  double sum = 0;               // of exp(score - M), M the largest of scores and sink
  std::vector<double> weight;   // P_j
  std::vector<double> moved;    // P_j r_j: how far rounding may move the weight
  std::vector<double> chained;  // P_j (1 + r_j) g(c_j): rounding of the value sum, per unit of |v_j|
  double total = 0;             // E
  double sink_moved = 0;        // P_t r_t
  double l_error = 0;           // e
  double flush = kSmallest;     // Arithmetic::flush

  // Bound of |out - o| for one component. v: value of each row; size: |v_j| or the magnitude that its own error scales
  // with (size_roundings more of them); stored_max: the largest |v| before a row scale.
  double out_bound(double o, const std::vector<double>& v, const std::vector<double>& size, double size_roundings,
                   double stored_max) const;
};

// `rows` in ascending position, T rows in the cache (they fix the number of merge levels), extra_roundings: of the
// value sum's terms, 1 for int8. `sink` null where there is none.
Softmax softmax_with_bound(const std::vector<ScoredRow>& rows, const float* sink, std::int64_t T,
                           double extra_roundings, const Arithmetic& arithmetic);

// |actual - expected| / bound; 0 where both are NaN or the same infinity, infinite where only one is.
double error_over_bound(double actual, double expected, double bound);

}  // namespace kvroof::reference
