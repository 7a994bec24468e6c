#include "bench/journal.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "bench/options.hpp"

namespace kvroof::bench {

std::string context_difference(const Json& journal, const Json& now) {
  const auto text = [](const Json& context, const char* pointer) -> std::string {
    const Json::json_pointer at(pointer);
    return context.contains(at) ? context.at(at).dump() : "nothing";
  };
  const char* const fields[][2] = {{"/schema/version", "schema version"},
                                   {"/definition", "numerics definition"},
                                   {"/preset", "preset"},
                                   {"/machine/cpu_model/value", "CPU"},
                                   {"/machine/isa", "instruction set"},
                                   {"/threads/all", "thread count"},
                                   {"/build/commit", "commit"},
                                   {"/build/compiler", "compiler"},
                                   {"/build/build_type", "build type"}};
  for (const auto& field : fields) {
    const std::string old_text = text(journal, field[0]), new_text = text(now, field[0]);
    if (old_text != new_text) return std::string(field[1]) + " was " + old_text + " and is " + new_text;
  }
  return "";
}

Journal::~Journal() {
  if (fd_ >= 0) close(fd_);
}

void Journal::open(const std::string& path, bool resume, const Json& context) {
  path_ = path;
  struct stat info {};
  const bool there = stat(path.c_str(), &info) == 0;
  if (there && !S_ISREG(info.st_mode)) throw UsageError("--journal=" + path + ": not a regular file");
  if (there && info.st_size > 0 && !resume)
    throw UsageError("--journal=" + path + ": exists already; add --resume to go on with it, or name another file");
  fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (fd_ < 0) throw UsageError("--journal=" + path + ": cannot be written: " + std::strerror(errno));
  // A record lock, not flock: whoever started this program may hold the file under flock.
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  if (fcntl(fd_, F_SETLK, &lock) != 0 && (errno == EACCES || errno == EAGAIN))
    throw UsageError("--journal=" + path + ": another kvroof_bench is writing it; wait for it or name another file");
  std::size_t keep = 0;
  if (there && info.st_size > 0) {
    std::ifstream in(path, std::ios::binary);
    if (!in) throw UsageError("--journal=" + path + ": cannot be read: " + std::strerror(errno));
    std::stringstream all;
    all << in.rdbuf();
    const std::string text = all.str();
    std::size_t at = 0;
    int line_number = 0;
    while (at < text.size()) {
      const std::size_t end = text.find('\n', at);
      if (end == std::string::npos) break;  // torn by a kill: measured again
      ++line_number;
      const Json line = Json::parse(text.begin() + static_cast<std::ptrdiff_t>(at),
                                    text.begin() + static_cast<std::ptrdiff_t>(end), nullptr, false);
      const auto damaged = [&](const std::string& what) {
        return UsageError("--journal=" + path + ": line " + std::to_string(line_number) + " " + what +
                          "; move the file away and start anew");
      };
      if (line.is_discarded() || !line.is_object()) throw damaged("is no JSON object");
      at = end + 1;
      if (line_number == 1) {
        if (!line.contains("context")) throw damaged("holds no context");
        const std::string difference = context_difference(line["context"], context);
        if (!difference.empty())
          throw UsageError("--journal=" + path + ": cannot be resumed: " + difference + "; name another file");
        keep = at;
        continue;
      }
      if (line.contains("context")) {
        keep = at;
        continue;
      }
      if (!line.contains("name") || !line.contains("tuple")) throw damaged("is no row");
      // The row that an entry is named after is its last one: only then is the entry whole.
      if (line["name"] == line["tuple"]) {
        entries_.insert(line["name"].get<std::string>());
        keep = at;
      }
    }
  }
  if (ftruncate(fd_, static_cast<off_t>(keep)) != 0 || lseek(fd_, 0, SEEK_END) < 0)
    throw UsageError("--journal=" + path + ": cannot be written: " + std::strerror(errno));
  if (keep == 0) write_text(Json{{"context", context}}.dump() + "\n");
}

void Journal::write_text(const std::string& text) {
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = ::write(fd_, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) throw UsageError("--journal=" + path_ + ": cannot be written: " + std::strerror(errno));
    done += static_cast<std::size_t>(n);
  }
  fsync(fd_);
}

void Journal::append(const std::vector<Json>& rows) {
  if (fd_ < 0) return;
  std::string text;
  for (const Json& row : rows) text += row.dump() + "\n";
  write_text(text);
  if (!rows.empty()) entries_.insert(rows.back()["tuple"].get<std::string>());
}

void Journal::append_context(const Json& context) {
  if (fd_ >= 0) write_text(Json{{"context", context}}.dump() + "\n");
}

}  // namespace kvroof::bench
