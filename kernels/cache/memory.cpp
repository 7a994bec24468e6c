#include "kernels/cache/memory.hpp"

#include <sys/mman.h>

#include <new>
#include <string>
#include <utility>

#include "kernels/cache/rows.hpp"
#include "kernels/error.hpp"

namespace kvroof {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

[[noreturn]] void out_of_memory(std::int64_t bytes) {
  throw Error(ErrorCode::out_of_memory, "cache: cannot allocate " + std::to_string(bytes) +
                                            " bytes; reserve fewer rows or use a narrower storage");
}

}  // namespace

CacheMemory CacheMemory::allocate(std::int64_t bytes) {
  CacheMemory memory;
  memory.bytes_ = bytes;
  if (bytes == 0) return memory;
  const auto size = static_cast<std::size_t>(bytes);
  if (size < kHugePage) {
    void* block = ::operator new (size, std::align_val_t{kRowAlignment}, std::nothrow);
    if (block == nullptr) out_of_memory(bytes);
    memory.data_ = static_cast<std::byte*>(block);
    return memory;
  }
  // One huge page more than asked, so that the rows can start at a huge page boundary whatever the kernel returns.
  const std::size_t mapped = size + kHugePage;
  void* mapping = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) out_of_memory(bytes);
  memory.kind_ = Kind::mapped;
  memory.mapping_ = mapping;
  memory.mapping_bytes_ = mapped;
  const auto address = reinterpret_cast<std::uintptr_t>(mapping);
  memory.data_ = static_cast<std::byte*>(mapping) + (kHugePage - address % kHugePage) % kHugePage;
#ifdef MADV_HUGEPAGE
  ::madvise(memory.data_, size, MADV_HUGEPAGE);  // a wish: without huge pages everything still works
#endif
  return memory;
}

CacheMemory CacheMemory::lend(std::span<std::byte> lent, std::int64_t bytes) {
  if (lent.data() == nullptr || lent.size() < static_cast<std::size_t>(bytes)) {
    throw Error(ErrorCode::bad_workspace,
                "cache: the lent memory has " + std::to_string(lent.size()) + " bytes, needs " + std::to_string(bytes));
  }
  if (reinterpret_cast<std::uintptr_t>(lent.data()) % kRowAlignment != 0) {
    throw Error(ErrorCode::bad_workspace, "cache: the lent memory must start at a multiple of 64 bytes");
  }
  CacheMemory memory;
  memory.data_ = lent.data();
  memory.bytes_ = bytes;
  memory.kind_ = Kind::lent;
  return memory;
}

CacheMemory::~CacheMemory() {
  if (kind_ == Kind::mapped) {
    ::munmap(mapping_, mapping_bytes_);
  } else if (kind_ == Kind::heap && data_ != nullptr) {
    ::operator delete (data_, std::align_val_t{kRowAlignment});
  }
}

void CacheMemory::swap(CacheMemory& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(kind_, other.kind_);
  std::swap(mapping_, other.mapping_);
  std::swap(mapping_bytes_, other.mapping_bytes_);
}

}  // namespace kvroof
