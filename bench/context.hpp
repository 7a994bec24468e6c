// The context of a result file: what machine, what build, what rules.
#pragma once

#include "bench/arena.hpp"
#include "bench/json.hpp"
#include "bench/machine.hpp"
#include "bench/options.hpp"

namespace kvroof::bench {

inline constexpr char kSchemaName[] = "kvroof.results";
inline constexpr char kSchemaVersion[] = "1.2.0";

std::string utc_now();

// As it is before the first row; what comes later is null. Measures the clock and the nodes' read roofs; `node_bytes`:
// what a node reads for that.
Json make_context(const Options& options, const MachineFacts& machine, Isa isa, std::int64_t node_bytes);
// Fills in what is known at the end.
void finish_context(Json& context, const Arena& arena, bool complete);

}  // namespace kvroof::bench
