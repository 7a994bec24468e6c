// The bytes behind a cache: its own, or lent by the caller (an engine's arena, a file mapping, a sparse mapping in
// tests).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvroof {

// Own blocks start at a 64-byte boundary; from 2 MiB on they are page mappings that ask for huge pages, and memory that
// was never written takes no room. Nothing is filled: contents are undefined until written.
class CacheMemory {
 public:
  CacheMemory() = default;
  // Throws Error(out_of_memory). 0 bytes give a null block.
  static CacheMemory allocate(std::int64_t bytes);
  // Uses the first `bytes` of `lent`, which must outlive the cache. Throws Error(bad_workspace) where it is too small
  // or not 64-byte aligned.
  static CacheMemory lend(std::span<std::byte> lent, std::int64_t bytes);

  CacheMemory(CacheMemory&& other) noexcept { swap(other); }
  CacheMemory& operator=(CacheMemory&& other) noexcept {
    CacheMemory taken(static_cast<CacheMemory&&>(other));
    swap(taken);
    return *this;
  }
  CacheMemory(const CacheMemory&) = delete;
  CacheMemory& operator=(const CacheMemory&) = delete;
  ~CacheMemory();

  std::byte* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }
  bool lent() const { return kind_ == Kind::lent; }

 private:
  enum class Kind : std::uint8_t { lent, heap, mapped };
  void swap(CacheMemory& other) noexcept;

  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
  Kind kind_ = Kind::heap;
  void* mapping_ = nullptr;  // the mapping begins before data_, which is moved up to a huge page boundary
  std::size_t mapping_bytes_ = 0;
};

}  // namespace kvroof
