// Every refusal of the library is one of these, thrown before anything is written.
#pragma once

#include <stdexcept>
#include <string>

namespace kvroof {

enum class ErrorCode {
  bad_shape,      // zero or negative size, heads that do not divide, sizes that overflow
  bad_option,     // window 0, negative soft-cap, option that makes no sense with this storage or form
  bad_view,       // runs out of order or overlapping, visible rows missing, null or unsupported strides
  bad_workspace,  // too small or misaligned
  bad_isa,        // unknown name, or this CPU lacks it
  no_capacity,    // ring or page pool would lose rows that are still visible
  bad_position,   // rollback or truncate beyond what is kept
  bad_handle,     // double free, use after free, unknown sequence
  out_of_memory,
};

const char* error_name(ErrorCode code);  // "bad_shape", ...

class Error : public std::runtime_error {
 public:
  Error(ErrorCode error_code, const std::string& what) : std::runtime_error(what), code(error_code) {}
  const ErrorCode code;
};

}  // namespace kvroof
