#include "tests/support/compare.hpp"

#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace kvroof::test {
namespace {

constexpr int kShown = 5;  // failing elements printed; the count of the rest follows

std::string hex_float(float x) {
  char text[64];
  std::snprintf(text, sizeof text, "%a (%.9g, 0x%08x)", static_cast<double>(x), static_cast<double>(x), float_bits(x));
  return text;
}

std::string ulp_text(float a, float b) {
  const std::uint64_t ulp = ulp_distance(a, b);
  return ulp == UINT64_MAX ? "NaN" : std::to_string(ulp);
}

// Collects failing elements; turns them into one message.
class Report {
 public:
  Report(std::string claim, std::string what) : claim_(std::move(claim)), what_(std::move(what)) {}

  void miss(std::int64_t index, const std::string& text) {
    if (count_++ < kShown) lines_ += "\n  [" + std::to_string(index) + "] " + text;
  }
  testing::AssertionResult result(std::int64_t total) const {
    if (count_ == 0) return testing::AssertionSuccess();
    return testing::AssertionFailure() << claim_ << " fails for " << count_ << " of " << total << " elements, case "
                                       << what_ << lines_ << "\n  reproduce: " << reproduce_command();
  }
  testing::AssertionResult sizes(std::int64_t actual, std::int64_t expected) const {
    return testing::AssertionFailure() << claim_ << ": " << actual << " elements where " << expected
                                       << " were expected, case " << what_ << "\n  reproduce: " << reproduce_command();
  }

 private:
  std::string claim_, what_, lines_;
  std::int64_t count_ = 0;
};

}  // namespace

std::uint64_t ulp_distance(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return UINT64_MAX;
  const auto ordered = [](float x) {
    const auto bits = static_cast<std::int64_t>(float_bits(x));
    return bits & 0x80000000 ? -(bits & 0x7fffffff) : bits;
  };
  return static_cast<std::uint64_t>(std::llabs(ordered(a) - ordered(b)));
}

std::string reproduce_command() {
  const testing::TestInfo* info = testing::UnitTest::GetInstance()->current_test_info();
  if (info == nullptr) return "(outside a test)";
  std::string command;
  if (const char* only = std::getenv("KVROOF_TEST_CASE")) command = std::string("KVROOF_TEST_CASE=") + only + " ";
  return command + "kvroof_tests --gtest_filter='" + info->test_suite_name() + "." + info->name() + "'";
}

testing::AssertionResult same_bits(const Strided& actual, const Strided& expected, const std::string& what, Nan nan) {
  Report report("same bits", what);
  if (actual.size() != expected.size()) return report.sizes(actual.size(), expected.size());
  for (std::int64_t i = 0; i < actual.size(); ++i) {
    const float a = actual.at(i), e = expected.at(i);
    if (nan == Nan::refused && (std::isnan(a) || std::isnan(e))) {
      report.miss(i, "got " + hex_float(a) + ", expected " + hex_float(e) + ": NaN was not asked for");
    } else if (float_bits(a) != float_bits(e)) {
      report.miss(i, "got " + hex_float(a) + ", expected " + hex_float(e) + ", " + ulp_text(a, e) + " ULP apart");
    }
  }
  return report.result(actual.size());
}

testing::AssertionResult exact(const Strided& actual, const Strided& expected, const std::string& what) {
  Report report("exact", what);
  if (actual.size() != expected.size()) return report.sizes(actual.size(), expected.size());
  for (std::int64_t i = 0; i < actual.size(); ++i) {
    const float a = actual.at(i), e = expected.at(i);
    if (!(a == e)) {
      report.miss(i, "got " + hex_float(a) + ", expected " + hex_float(e) + ", " + ulp_text(a, e) + " ULP apart");
    }
  }
  return report.result(actual.size());
}

testing::AssertionResult within(const Strided& actual, const std::vector<double>& expected,
                                const std::vector<double>& bound, const std::string& formula, const std::string& what) {
  Report report("within " + formula, what);
  const auto count = static_cast<std::int64_t>(expected.size());
  if (actual.size() != count || bound.size() != expected.size()) return report.sizes(actual.size(), count);
  for (std::int64_t i = 0; i < count; ++i) {
    const float a = actual.at(i);
    const double e = expected[static_cast<std::size_t>(i)], b = bound[static_cast<std::size_t>(i)];
    const double error = std::fabs(static_cast<double>(a) - e);
    // written so that a NaN on any side is a miss; equal infinities give error NaN and are let through by ==
    if (static_cast<double>(a) == e || (error <= b && std::isfinite(b))) continue;
    char text[200];
    std::snprintf(text, sizeof text, ", expected %a (%.17g), error %.3g, bound %.3g", e, e, error, b);
    report.miss(i, "got " + hex_float(a) + text);
  }
  return report.result(count);
}

}  // namespace kvroof::test
