// JSON with keys in the order they were set, so that files read well and differ little.
#pragma once

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

namespace kvroof::bench {

using Json = nlohmann::ordered_json;

// A number, or null for what JSON cannot say.
inline Json number_or_null(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }
template <class T>
Json value_or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

}  // namespace kvroof::bench
