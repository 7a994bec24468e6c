// libFuzzer target over the model tests of the caches and of attention over them: the input's bytes are the operations.
// Needs clang; see the CMakeLists.txt beside it. A crash file is replayed by passing it as the argument.
#include <cstddef>
#include <cstdint>

#include "tests/test_cache_models.hpp"

namespace kvroof::test_cache {
namespace {

// One byte a choice (two where 256 are not enough); a used-up input answers 0 and ends the run.
class ByteOps : public OpSource {
 public:
  ByteOps(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}
  std::uint64_t next(std::uint64_t bound) override {
    std::uint64_t value = take();
    if (bound > 256) value = value << 8 | take();
    return value % bound;
  }
  bool done() const override { return at_ >= size_; }

 private:
  std::uint64_t take() { return at_ < size_ ? data_[at_++] : 0; }
  const std::uint8_t* data_;
  std::size_t size_, at_ = 0;
};

}  // namespace
}  // namespace kvroof::test_cache

// libomp never frees what it keeps of its worker threads.
extern "C" const char* __lsan_default_suppressions() { return "leak:libomp.so"; }

// A ModelMismatch is not caught: it ends the process, which is how libFuzzer learns of it.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvroof::test_cache;
  if (size < 2) return 0;
  ByteOps ops(data + 1, size - 1);
  switch (data[0] % 4) {
    case 0: contiguous_model(ops); break;
    case 1: ring_model(ops); break;
    case 2: paged_model(ops); break;
    case 3: attention_model(ops); break;
  }
  return 0;
}
