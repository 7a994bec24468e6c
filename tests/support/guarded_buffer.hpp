// Memory whose neighbours are PROT_NONE pages, so that a read or write past either end is a fault and not a wrong value
// that happens to pass. A vector load that overruns by one lane is seen only where the array touches the page: `Edge`
// says which end does. The slack on the other side is filled with a canary byte that intact() checks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace kvroof::test {

enum class Edge : std::uint8_t { end, start };  // the end of the payload that touches its guard page

class GuardedBuffer {
 public:
  GuardedBuffer() = default;
  // `alignment` (a power of two, at most a page) holds for the payload's first byte; with Edge::end the payload then
  // ends
  GuardedBuffer(std::size_t bytes, Edge edge, std::size_t alignment = 1);
  GuardedBuffer(GuardedBuffer&& other) noexcept;
  GuardedBuffer& operator=(GuardedBuffer&& other) noexcept;
  GuardedBuffer(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(const GuardedBuffer&) = delete;
  ~GuardedBuffer();

  std::byte* data() { return payload_; }
  const std::byte* data() const { return payload_; }
  std::size_t size() const { return bytes_; }
  template <typename T>
  T* as() {
    return reinterpret_cast<T*>(payload_);
  }
  template <typename T>
  const T* as() const {
    return reinterpret_cast<const T*>(payload_);
  }

  void fill(std::uint32_t word);  // repeats the word's bytes from the payload's start
  std::uint64_t hash() const;     // of the payload
  bool intact() const;            // canaries untouched
  void read_only();               // from now on a write anywhere in it is a fault

 private:
  void release() noexcept;
  std::byte* mapping_ = nullptr;
  std::size_t mapping_bytes_ = 0;
  std::byte* payload_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace kvroof::test
