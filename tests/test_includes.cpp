// Dependencies point one way: tools -> results <- bench -> kernels; bench and tests -> reference; kernels and reference
// know nobody. The include lines of every source file prove it.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace kvroof::test {
namespace {

namespace fs = std::filesystem;

struct Include {
  std::string file;  // relative to the repository's root
  int line = 0;
  std::string target;  // what stands between the quotes or brackets
  bool quoted = false;
};

const std::set<std::string> kFolders = {"kernels", "reference", "bench", "tests"};

std::string first_part(const std::string& path) { return path.substr(0, path.find('/')); }

std::vector<fs::path> sources() {
  std::vector<fs::path> files;
  for (const std::string& folder : kFolders) {
    const fs::path root = fs::path(KVROOF_SOURCE_DIR) / folder;
    if (!fs::exists(root)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root)) {
      const std::string extension = entry.path().extension().string();
      if (extension == ".cpp" || extension == ".hpp" || extension == ".h" || extension == ".c" || extension == ".inc") {
        files.push_back(entry.path());
      }
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<Include> includes() {
  std::vector<Include> list;
  for (const fs::path& path : sources()) {
    std::ifstream in(path);
    std::string text;
    for (int line = 1; std::getline(in, text); ++line) {
      const std::size_t hash = text.find_first_not_of(" \t");
      if (hash == std::string::npos || text[hash] != '#') continue;
      const std::size_t word = text.find_first_not_of(" \t", hash + 1);
      if (word == std::string::npos || text.compare(word, 7, "include") != 0) continue;
      const std::size_t open = text.find_first_of("\"<", word);
      if (open == std::string::npos) continue;
      const std::size_t close = text.find_first_of("\">", open + 1);
      list.push_back({fs::relative(path, KVROOF_SOURCE_DIR).generic_string(), line,
                      text.substr(open + 1, close - open - 1), text[open] == '"'});
    }
  }
  return list;
}

std::string at(const Include& include) {
  return include.file + ":" + std::to_string(include.line) + " includes " + include.target;
}

TEST(Includes, FilesAreFound) {  // an empty list would satisfy everything below
  std::map<std::string, int> files;
  for (const Include& include : includes()) ++files[first_part(include.file)];
  for (const char* folder : {"kernels", "reference", "tests"}) EXPECT_GT(files[folder], 10) << folder;
}

TEST(Includes, ArrowsPointOneWay) {
  const std::map<std::string, std::set<std::string>> allowed = {
      {"kernels", {"kernels"}},
      {"reference", {"reference"}},
      {"bench", {"bench", "kernels", "reference"}},
      {"tests", {"tests", "bench", "kernels", "reference"}},
  };
  for (const Include& include : includes()) {
    const std::string from = first_part(include.file), to = first_part(include.target);
    EXPECT_EQ(include.target.find(".."), std::string::npos) << at(include) << ": name it from the repository's root";
    if (kFolders.count(to) != 0 && include.target.find('/') != std::string::npos) {
      EXPECT_TRUE(allowed.at(from).count(to) != 0) << at(include) << ": " << from << " must not know " << to;
    }
    for (const char* folder : {"tools/", "results/"}) {
      EXPECT_NE(include.target.rfind(folder, 0), 0u) << at(include) << ": nothing compiled depends on " << folder;
    }
  }
}

// The kernels are lifted out by others: they bring nothing but themselves, xsimd, OpenMP and the system.
TEST(Includes, KernelsNeedNothingElse) {
  const std::set<std::string> outside = {"benchmark", "gtest",  "gmock",    "nlohmann", "oneapi",
                                         "dnnl",      "dnnl.h", "dnnl.hpp", "hwloc.h"};
  for (const Include& include : includes()) {
    const std::string from = first_part(include.file);
    if (from != "kernels" && from != "reference") continue;
    EXPECT_EQ(outside.count(first_part(include.target)), 0u) << at(include);
    if (from == "reference") {
      EXPECT_EQ(include.target.find("xsimd"), std::string::npos) << at(include) << ": references are plain scalar code";
    }
  }
}

TEST(Includes, OnlyIsaHeaderIncludesXsimd) {  // where it gets a private name per instruction set
  int found = 0;
  for (const Include& include : includes()) {
    if (include.target.rfind("xsimd", 0) != 0 || include.file.rfind("kernels/", 0) != 0) continue;
    EXPECT_EQ(include.file, "kernels/simd/isa.hpp") << at(include);
    ++found;
  }
  EXPECT_GE(found, 1);
}

// So that xsimd has its private name before anything can include it: isa.hpp comes first, itself or through a header of
// simd/ whose own first include it is.
TEST(Includes, EveryIsaFileBeginsWithIsaHeader) {
  std::map<std::string, std::string> first;
  for (const Include& include : includes()) first.emplace(include.file, include.target);
  int files = 0;
  for (const auto& [file, target] : first) {
    if (file.rfind("kernels/ops/", 0) != 0 || !file.ends_with(".cpp")) continue;
    ++files;
    const std::string reached =
        target.rfind("kernels/simd/", 0) == 0 && first.count(target) != 0 ? first.at(target) : "";
    EXPECT_TRUE(target == "kernels/simd/isa.hpp" || reached == "kernels/simd/isa.hpp")
        << file << " begins with " << target;
  }
  EXPECT_GT(files, 0);
}

// Functions that would stay behind out of line in an ISA's object, where the linker may hand them to code for any CPU.
TEST(Includes, IsaFilesUseNoContainersOrStreams) {
  const std::set<std::string> banned = {"algorithm", "vector", "string",     "iostream", "sstream",
                                        "map",       "memory", "functional", "numeric"};
  for (const Include& include : includes()) {
    const bool isa_file = include.file.rfind("kernels/ops/", 0) == 0 || include.file.rfind("kernels/simd/", 0) == 0;
    EXPECT_TRUE(!isa_file || banned.count(include.target) == 0) << at(include);
  }
}

TEST(Includes, NoFileIsCalledUtilities) {
  for (const fs::path& path : sources()) {
    const std::string stem = path.stem().string();
    for (const char* name : {"utils", "util", "helpers", "helper", "misc", "common"}) EXPECT_NE(stem, name) << path;
  }
}

}  // namespace
}  // namespace kvroof::test
