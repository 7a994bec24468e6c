#include "bench/tuple.hpp"

#include <algorithm>
#include <cstdio>

#include "bench/cgroup.hpp"
#include "bench/clock.hpp"
#include "bench/statistics.hpp"
#include "bench/threads.hpp"

namespace kvroof::bench {

TupleRun::TupleRun(Sweep& sweep, const CacheSet& caches, const DecodeCase& c, std::optional<ComputeOp> op)
    : sweep_(sweep), c_(c) {
  conditions_.mhz_before = measured_mhz();
  throttled_before_ = cgroup_throttled();
  add_read(caches);
  add_compute(op.value_or(compute_op(c)));
}

std::size_t TupleRun::add_read(const CacheSet& caches) {
  reads_.push_back(std::make_unique<ReadProbe>());
  ReadProbe& probe = *reads_.back();
  probe.caches = caches;
  probe.variant = &sweep_.roofs.read_variant(caches, c_.threads, c_.cold);
  probe.at = add({"probe", [this, &probe](std::int64_t visit) {
                    sweep_.roofs.read(probe.caches, visit, c_.threads, *probe.variant);
                  }});
  return reads_.size() - 1;
}

std::size_t TupleRun::add_compute(const ComputeOp& op) {
  compute_.push_back(std::make_unique<ComputeProbe>());
  ComputeProbe& probe = *compute_.back();
  probe.op = op;
  const auto call = [this, &probe](std::int64_t) {
    probe.call_gflops.push_back(sweep_.roofs.compute(probe.op, c_.threads, 3e5).gflops);
  };
  call(0);
  probe.at = add({"compute", call});
  return compute_.size() - 1;
}

std::size_t TupleRun::add_page_order(std::vector<PieceWalk> walks) {
  page_orders_.push_back(std::make_unique<PageOrder>());
  PageOrder& order = *page_orders_.back();
  order.variant = &sweep_.roofs.piece_variant(walks, c_.threads);
  order.walks = std::move(walks);
  order.at = add({"page order", [this, &order](std::int64_t visit) {
                    const PieceWalk& walk = order.walks[static_cast<std::size_t>(visit) % order.walks.size()];
                    sweep_.roofs.read(walk, c_.threads, *order.variant);
                  }});
  return order.at;
}

std::size_t TupleRun::add(Contender contender) {
  contenders_.push_back(std::move(contender));
  return contenders_.size() - 1;
}

std::size_t TupleRun::add_kernel(Kernel& kernel, const std::vector<DecodeSetup::Sample>& samples, Json& row,
                                 double budget_share, std::size_t compute) {
  try {
    kernel.call(0);
  } catch (const Error& error) {
    set_not_run(row, error.code == ErrorCode::bad_isa ? "unsupported" : "not_measured", error.what());
    return kNone;
  }
  row["op"] = compute_[compute]->op.name();
  row["cache_copies"] = reads_[0]->caches.count;
  row["output_hash"] = kernel.hash();
  row["bytes"] = kernel.bytes();
  row["flops"] = kernel.flops();
  row["intensity"] = static_cast<double>(kernel.flops()) / static_cast<double>(kernel.bytes());
  const Check check = kernel.check(samples);
  set_check(row, check);
  if (!check.passed) {
    char text[120];
    std::snprintf(text, sizeof text, "wrong result: error %.3g times its bound", check.max_error / check.bound);
    set_not_run(row, "not_measured", text);
    return kNone;
  }
  return add({row["name"].get<std::string>(), [&kernel](std::int64_t visit) { kernel.call(visit); }, budget_share});
}

void TupleRun::measure(double seconds, int least_pairs) {
  PairingOptions options = sweep_.pairing(seconds, reads_[0]->caches.count);
  options.min_repetitions = std::max(options.min_repetitions, least_pairs);
  options.max_repetitions = std::max(options.max_repetitions, least_pairs);
  paired_ = run_paired(contenders_, options);
  conditions_.mhz_after = measured_mhz();
  const auto throttled_after = cgroup_throttled();
  if (throttled_before_ && throttled_after) conditions_.throttled = *throttled_after - *throttled_before_;
  for (const auto& probe : compute_)
    probe->gflops = repetition_medians(probe->call_gflops, paired_.repetitions, paired_.calls[probe->at]);
}

void TupleRun::set_measured(Json& row, std::size_t at, std::size_t kvroof_at, std::size_t compute,
                            std::size_t read) const {
  Timed timed;
  timed.time_ns = &paired_.time_ns[at];
  timed.probe_ns = &paired_.time_ns[reads_[read]->at];
  timed.probe_bytes = static_cast<std::int64_t>(reads_[read]->caches.slot_bytes());
  timed.compute_gflops = &compute_[compute]->gflops;
  timed.kvroof_ns = kvroof_at == kNone ? nullptr : &paired_.time_ns[kvroof_at];
  timed.calls = paired_.calls[at];
  set_times(row, timed);
  set_conditions(row, conditions_);
}

void TupleRun::set_page_order(Json& row, std::size_t at, std::size_t roof_at) const {
  if (at == kNone || !row.contains("real_time")) return;
  for (const auto& order : page_orders_) {
    if (order->at != roof_at) continue;
    row["page_order_form"] = order->variant->name;
    row["page_order_roof_gb_per_s"] = row["bytes"].get<double>() / median(paired_.time_ns[roof_at]);
    row["page_order_fraction"] = ratio_or_null(ratio(roof_at, at));
    row["page_order_cost"] = ratio_or_null(ratio(roof_at, reads_[0]->at));
  }
}

Json TupleRun::probe_row(const DecodeCase& c, const std::string& tuple, std::size_t kvroof_at) const {
  Json row = decode_row(c, "probe", tuple);
  row["form"] = reads_[0]->variant->name;
  row["cache_copies"] = reads_[0]->caches.count;
  row["flops"] = 0;
  row["intensity"] = 0;
  Timed timed;
  timed.time_ns = &paired_.time_ns[reads_[0]->at];
  timed.kvroof_ns = kvroof_at == kNone ? nullptr : &paired_.time_ns[kvroof_at];
  timed.calls = paired_.calls[reads_[0]->at];
  set_times(row, timed);
  row["read_roof_gb_per_s"] = row["gb_per_s"];
  set_conditions(row, conditions_);
  return row;
}

std::vector<std::size_t> TupleRun::add_rivals(const std::vector<Rival>& rivals) {
  std::vector<std::size_t> at;
  for (const Rival& rival : rivals) {
    const bool scalar = rival.impl.rfind("scalar", 0) == 0;
    // A scalar call may take a hundred times the kernel's; the two share a quarter of the time, and one pair at least.
    at.push_back(rival.status != "ok"
                     ? kNone
                     : add({rival.impl, rival.call, scalar ? 0.12 : 1.0, scalar ? rival.first_call_ns : 0}));
  }
  return at;
}

void TupleRun::set_rival(Json& row, std::size_t at, std::size_t kvroof_at) const {
  if (at == kNone) return;
  set_measured(row, at, kvroof_at);
  if (kvroof_at == kNone) row["time_ratio_to_kvroof_reason"] = "kvroof was not measured in this entry";
}

Ratio TupleRun::ratio(std::size_t a, std::size_t b) const {
  if (a == kNone || b == kNone) return {};
  return summarize(pair_ratios(paired_.time_ns[a], paired_.time_ns[b]));
}

Json native_row(const DecodeCase& native, const std::string& tuple) {
  Json row = decode_row(native, "kvroof", tuple);
  row["status"] = nullptr;
  if (const std::string missing = native_missing(native.isa, native.storage, native.storage); !missing.empty())
    set_not_run(row, "unsupported", missing);
  return row;
}

std::vector<Json> rows_not_run(const DecodeCase& c, const std::vector<std::string>& impls, const std::string& reason) {
  const std::string tuple = row_name(c, "kvroof");
  std::vector<Json> rows;
  for (const std::string& impl : impls) {
    if (impl == "kvroof") rows.push_back(native_row(native_case(c), tuple));
    if (impl == "kvroof" && rows.back()["status"].is_null()) set_not_run(rows.back(), "not_measured", reason);
    rows.push_back(decode_row(c, impl, tuple));
    set_not_run(rows.back(), "not_measured", reason);
  }
  return rows;
}

}  // namespace kvroof::bench
