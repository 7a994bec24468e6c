// What the two halves of the C interface share. Not for users: they include kvroof.h.
#pragma once

#include <exception>
#include <new>
#include <span>
#include <string>

#include "kernels/kernels.hpp"
#include "kernels/kvroof.h"

namespace kvroof::c_api {

// Keeps `text` as the thread's last error and returns `status`.
kvroof_status refuse(kvroof_status status, const char* text) noexcept;

template <typename Call>
kvroof_status guarded(const Call& call) noexcept {
  try {
    call();
    return KVROOF_OK;
  } catch (const Error& error) {
    return refuse(static_cast<kvroof_status>(static_cast<int>(error.code) + 1), error.what());
  } catch (const std::bad_alloc&) {
    return refuse(KVROOF_OUT_OF_MEMORY, "out of memory");
  } catch (const std::exception& error) {
    return refuse(KVROOF_INTERNAL, error.what());
  } catch (...) {
    return refuse(KVROOF_INTERNAL, "unknown exception");
  }
}

template <typename T>
T& handle(T* pointer) {
  if (pointer == nullptr) throw Error(ErrorCode::bad_handle, "kvroof: the handle is null");
  return *pointer;
}

template <typename T>
T& need(T* pointer, const char* name) {
  if (pointer == nullptr) throw Error(ErrorCode::bad_view, std::string("kvroof: ") + name + " is null");
  return *pointer;
}

inline Storage storage(kvroof_storage s) {
  if (s > KVROOF_INT8)
    throw Error(ErrorCode::bad_option, "kvroof: storage " + std::to_string(s) + " is unknown, must be 0 to 3");
  return static_cast<Storage>(s);
}

inline Mode mode_of(int mode) {
  if (mode != KVROOF_REPRODUCIBLE && mode != KVROOF_NATIVE)
    throw Error(ErrorCode::bad_option, "kvroof: mode " + std::to_string(mode) + " is unknown, must be 0 or 1");
  return static_cast<Mode>(mode);
}

inline Isa isa_of(const char* name) { return name == nullptr ? default_isa() : isa_from_name(name); }

inline std::span<std::byte> lent(void* memory, std::size_t bytes) { return {static_cast<std::byte*>(memory), bytes}; }

}  // namespace kvroof::c_api
