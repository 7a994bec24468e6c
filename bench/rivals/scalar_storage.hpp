// The reference's name for a storage type.
#pragma once

#include "kernels/storage.hpp"
#include "reference/half.hpp"

namespace kvroof::bench {

inline reference::StorageKind scalar_storage(Storage storage) {
  switch (storage) {
    case Storage::f32: return reference::StorageKind::f32;
    case Storage::f16: return reference::StorageKind::f16;
    case Storage::bf16: return reference::StorageKind::bf16;
    case Storage::int8: break;
  }
  return reference::StorageKind::int8;
}

}  // namespace kvroof::bench
