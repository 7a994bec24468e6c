// The journal: what a kill leaves behind, what is refused.
#ifdef KVROOF_TEST_BENCH

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "bench/journal.hpp"
#include "bench/options.hpp"

namespace kvroof::bench {
namespace {

class JournalFile : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "kvroof-journal-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder = pattern;
    path = folder + "/j";
  }
  void TearDown() override { std::filesystem::remove_all(folder); }
  static Json row(const std::string& name, const std::string& tuple) { return {{"name", name}, {"tuple", tuple}}; }
  std::string text() const {
    std::ifstream in(path);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void fails(bool resume, const Json& now, const std::string& part) const {
    Journal journal;
    try {
      journal.open(path, resume, now);
      ADD_FAILURE() << "opened";
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
  std::string folder, path;
  const Json context = {{"definition", 1}, {"preset", "quick"}};
};

TEST_F(JournalFile, KeepsWholeEntriesAndCutsOffTheTornEnd) {
  {
    Journal journal;
    journal.open(path, false, context);
    journal.append({row("a1", "a"), row("a", "a")});
  }
  const std::string whole = text();
  // Killed within the second entry: one row of it whole, one torn.
  std::ofstream(path, std::ios::app) << row("b1", "b").dump() << "\n"
                                     << R"({"name":"b","tu)";
  Journal journal;
  journal.open(path, true, context);
  EXPECT_EQ(journal.entries(), (std::set<std::string>{"a"}));
  EXPECT_EQ(text(), whole);
  journal.append({row("b1", "b"), row("b", "b")});
  EXPECT_EQ(text(), whole + row("b1", "b").dump() + "\n" + row("b", "b").dump() + "\n");
}

TEST_F(JournalFile, RefusesWhatItMustNotTouch) {
  {
    Journal journal;
    journal.open(path, false, context);
  }
  const std::string before = text();
  fails(false, context, "exists already");
  Json other = context;
  other["preset"] = "full";
  fails(true, other, "preset was \"quick\" and is \"full\"");
  EXPECT_EQ(text(), before);
  std::ofstream(path, std::ios::app) << "garbage\n";
  fails(true, context, "line 2 is no JSON object");
  std::ofstream(path) << R"({"rows":1})"
                      << "\n";
  fails(true, context, "line 1 holds no context");
  EXPECT_EQ(text(), "{\"rows\":1}\n");
  path = folder + "/none/j";
  fails(false, context, "cannot be written");
}

}  // namespace
}  // namespace kvroof::bench

#endif  // KVROOF_TEST_BENCH
