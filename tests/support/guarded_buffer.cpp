#include "tests/support/guarded_buffer.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <stdexcept>
#include <utility>

namespace kvroof::test {
namespace {

constexpr std::byte kCanary{0xa5};

std::size_t page_bytes() {
  static const std::size_t bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

}  // namespace

GuardedBuffer::GuardedBuffer(std::size_t bytes, Edge edge, std::size_t alignment) : bytes_(bytes) {
  const std::size_t page = page_bytes();
  // Zero bytes still get a page to point into: the pointer is valid, reading through it at either edge is not.
  const std::size_t inner = (bytes + page - 1) / page * page;
  mapping_bytes_ = inner + 2 * page;
  void* mapped = mmap(nullptr, mapping_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) throw std::runtime_error("GuardedBuffer: mmap failed");
  mapping_ = static_cast<std::byte*>(mapped);
  std::byte* first = mapping_ + page;
  if (inner != 0) {
    if (mprotect(first, inner, PROT_READ | PROT_WRITE) != 0) throw std::runtime_error("GuardedBuffer: mprotect failed");
    std::memset(first, static_cast<int>(kCanary), inner);
  }
  payload_ = edge == Edge::start ? first : first + (inner - bytes) / alignment * alignment;
}

GuardedBuffer::GuardedBuffer(GuardedBuffer&& other) noexcept { *this = std::move(other); }

GuardedBuffer& GuardedBuffer::operator=(GuardedBuffer&& other) noexcept {
  std::swap(mapping_, other.mapping_);
  std::swap(mapping_bytes_, other.mapping_bytes_);
  std::swap(payload_, other.payload_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

GuardedBuffer::~GuardedBuffer() { release(); }

void GuardedBuffer::release() noexcept {
  if (mapping_ != nullptr) munmap(mapping_, mapping_bytes_);
  mapping_ = nullptr;
}

void GuardedBuffer::fill(std::uint32_t word) {
  std::byte pattern[4];
  std::memcpy(pattern, &word, 4);
  for (std::size_t i = 0; i < bytes_; ++i) payload_[i] = pattern[i % 4];
}

std::uint64_t GuardedBuffer::hash() const {
  std::uint64_t h = bytes_;
  std::size_t i = 0;
  for (; i + 8 <= bytes_; i += 8) {
    std::uint64_t word;
    std::memcpy(&word, payload_ + i, 8);
    h = (h ^ word) * 0x9e3779b97f4a7c15ull;
    h ^= h >> 32;
  }
  for (; i < bytes_; ++i) h = (h ^ static_cast<std::uint64_t>(payload_[i])) * 0x9e3779b97f4a7c15ull;
  return h;
}

bool GuardedBuffer::intact() const {
  if (mapping_ == nullptr) return true;
  const std::byte* first = mapping_ + page_bytes();
  const std::byte* last = mapping_ + mapping_bytes_ - page_bytes();
  for (const std::byte* p = first; p < payload_; ++p) {
    if (*p != kCanary) return false;
  }
  for (const std::byte* p = payload_ + bytes_; p < last; ++p) {
    if (*p != kCanary) return false;
  }
  return true;
}

void GuardedBuffer::read_only() {
  if (mapping_bytes_ > 2 * page_bytes()) {
    mprotect(mapping_ + page_bytes(), mapping_bytes_ - 2 * page_bytes(), PROT_READ);
  }
}

}  // namespace kvroof::test
