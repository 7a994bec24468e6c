// The journal: JSON lines, first the context, then one row a line. Rows of one entry are written by one call and
// synced, so that a killed sweep keeps every finished entry; a torn end is cut off when the journal is taken up again.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "bench/json.hpp"

namespace kvroof::bench {

class Journal {
 public:
  Journal() = default;
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  // Starts `path` with the context line, or takes it up again if `resume` and it is there: then entries() are those it
  // already holds. Throws UsageError: cannot be written, exists already, is damaged, or belongs to another machine,
  // build or preset.
  void open(const std::string& path, bool resume, const Json& context);
  bool is_open() const { return fd_ >= 0; }
  const std::set<std::string>& entries() const { return entries_; }

  void append(const std::vector<Json>& rows);  // no-op if not open; throws UsageError if the disk is full
  void append_context(const Json& context);    // once more at the end: a later context line replaces the earlier one

 private:
  void write_text(const std::string& text);
  std::string path_;
  int fd_ = -1;
  std::set<std::string> entries_;
};

// What must agree between a journal and the program that goes on with it; "" or the first difference in words.
std::string context_difference(const Json& journal, const Json& now);

}  // namespace kvroof::bench
