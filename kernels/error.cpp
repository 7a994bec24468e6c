#include "kernels/error.hpp"

namespace kvroof {

const char* error_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::bad_shape: return "bad_shape";
    case ErrorCode::bad_option: return "bad_option";
    case ErrorCode::bad_view: return "bad_view";
    case ErrorCode::bad_workspace: return "bad_workspace";
    case ErrorCode::bad_isa: return "bad_isa";
    case ErrorCode::no_capacity: return "no_capacity";
    case ErrorCode::bad_position: return "bad_position";
    case ErrorCode::bad_handle: return "bad_handle";
    case ErrorCode::out_of_memory: return "out_of_memory";
  }
  return "unknown_error";
}

}  // namespace kvroof
