#include "cmd/drive/report.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string_view>

#include "prefetcher/service/json_writer.h"

namespace foreload::drive {
namespace {

constexpr std::size_t kLabelWidth = 34;
constexpr std::size_t kColumnWidth = 14;

std::string Fixed(double value, int digits) {  // no locale
  char buffer[64];
  const auto result = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed, digits);
  return {buffer, result.ptr};
}

std::string Milliseconds(double seconds) {
  return Fixed(seconds * 1e3, seconds < 0.01 ? 2 : 1) + " ms";
}
std::string Percent(double share) {
  return Fixed(share * 100, 1) + " %";
}
std::string Bytes(double bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  while (bytes >= 1024 && unit < 4) {
    bytes /= 1024;
    ++unit;
  }
  return Fixed(bytes, unit == 0 ? 0 : 1) + " " + kUnits[unit];
}
std::string Count(double value) {
  return value < 0 ? "-" : Fixed(value, 0);
}
std::string Share(double value) {
  return value < 0 ? "-" : Percent(value);
}

std::string Pad(std::string text, std::size_t width, bool right) {
  if (text.size() >= width) return text;
  const std::string space(width - text.size(), ' ');
  return right ? space + text : text + space;
}

double Seconds(DurationNs duration) {
  return static_cast<double>(duration) / 1e9;
}

class Table {
 public:
  explicit Table(const std::vector<PhaseSummary>& phases) : phases_(phases) {
    std::string line = Pad("", kLabelWidth, false);
    for (const PhaseSummary& phase : phases) line += Pad(PhaseName(phase.phase), kColumnWidth, true);
    text_ = line + "\n";
  }
  template <typename Cell>
  void Row(std::string_view label, Cell cell) {
    text_ += Pad(std::string(label), kLabelWidth, false);
    for (const PhaseSummary& phase : phases_) text_ += Pad(cell(phase), kColumnWidth, true);
    text_ += "\n";
  }
  void Gap() { text_ += "\n"; }
  const std::string& text() const { return text_; }

 private:
  const std::vector<PhaseSummary>& phases_;
  std::string text_;
};

std::vector<PhaseSummary> SummariseAll(const Report& report) {
  std::vector<PhaseSummary> summaries;
  for (const Phase phase : {Phase::kDemand, Phase::kPrefetch, Phase::kObserve}) {
    std::vector<const PhaseRun*> runs;
    for (const PhaseRun& run : report.runs) {
      if (run.phase == phase) runs.push_back(&run);
    }
    if (!runs.empty()) summaries.push_back(Summarise(runs));
  }
  return summaries;
}

const PhaseSummary* Find(const std::vector<PhaseSummary>& phases, Phase phase) {
  for (const PhaseSummary& summary : phases) {
    if (summary.phase == phase) return &summary;
  }
  return nullptr;
}

PhaseSummary::Ledger LedgerOf(const std::vector<const PhaseRun*>& runs, const std::string& tier) {
  PhaseSummary::Ledger ledger;
  const auto sum = [&](const char* name, double& into) {
    double total = 0;
    for (const PhaseRun* run : runs) {
      const auto it = run->status.find("prefetch." + tier + "." + name);
      if (it == run->status.end()) return;
      total += it->second;
    }
    into = total;
  };
  sum("issued", ledger.issued);
  sum("useful", ledger.useful);
  sum("late", ledger.late);
  sum("wasted", ledger.wasted);
  sum("cancelled", ledger.cancelled);
  sum("failed", ledger.failed);
  sum("live", ledger.live);
  return ledger;
}

void LedgerRows(Table& table, const std::string& name, PhaseSummary::Ledger PhaseSummary::*ledger) {
  table.Row("prefetch into " + name + ": issued", [&](const PhaseSummary& p) { return Count((p.*ledger).issued); });
  table.Row("  useful", [&](const PhaseSummary& p) { return Count((p.*ledger).useful); });
  table.Row("  late", [&](const PhaseSummary& p) { return Count((p.*ledger).late); });
  table.Row("  wasted", [&](const PhaseSummary& p) { return Count((p.*ledger).wasted); });
  table.Row("  cancelled", [&](const PhaseSummary& p) { return Count((p.*ledger).cancelled); });
  table.Row("  failed", [&](const PhaseSummary& p) { return Count((p.*ledger).failed); });
  table.Row("  live at the end", [&](const PhaseSummary& p) { return Count((p.*ledger).live); });
  table.Row("  accuracy (useful / ended)", [&](const PhaseSummary& p) { return Share((p.*ledger).accuracy()); });
}

std::string Conditions(const Report& report) {
  const Scenario& s = report.scenario;
  const replay::WorkloadProfile& p = report.profile;
  const auto footprint = static_cast<double>(std::max<std::uint64_t>(p.unique_blocks, 1));
  const double bytes = footprint * static_cast<double>(s.block_bytes);
  std::string text;
  const auto line = [&](std::string_view label, const std::string& value) {
    text += Pad(std::string(label), kLabelWidth, false) + value + "\n";
  };
  line("scenario", s.name + ": " + s.about);
  line("workload", report.workload);
  line("requests, prompt / output tokens",
       std::to_string(p.requests) + ", mean " +
           Fixed(static_cast<double>(p.input_tokens) / std::max(1.0, static_cast<double>(p.requests)), 0) + " / " +
           Fixed(static_cast<double>(p.output_tokens) / std::max(1.0, static_cast<double>(p.requests)), 0));
  line("blocks", std::to_string(p.blocks) + " accesses, " + std::to_string(p.unique_blocks) + " unique, " +
                     Percent(static_cast<double>(p.shared_blocks) / std::max(1.0, static_cast<double>(p.blocks))) +
                     " of accesses shareable; " + std::to_string(p.block_tokens) + " tokens, " +
                     Bytes(static_cast<double>(s.block_bytes)) + " each; footprint " + Bytes(bytes));
  line("engine", Fixed(s.engine.prefill_tokens_per_second, 0) + " prefill tokens/s, " +
                     Fixed(s.engine.decode_seconds_per_token * 1e3, 3) + " ms/token decode, " +
                     std::to_string(s.engine.sequences_max) + " sequences, own cache " +
                     std::to_string(s.engine.cache_blocks) + " blocks, " + std::to_string(s.engine.admitted_max) +
                     " admitted at once, ranks " + std::to_string(s.ranks));
  line("arena", std::to_string(s.arena_slots) + " slots (" + Percent(static_cast<double>(s.arena_slots) / footprint) +
                    " of the footprint)");
  if (report.own_sidecar) {
    line("sidecar", "DRAM " + Bytes(static_cast<double>(s.dram_bytes)) + " (" +
                        Percent(static_cast<double>(s.dram_bytes) / bytes) + " of the footprint), SSD " +
                        Bytes(static_cast<double>(s.ssd_bytes)) + "; links throttled to " +
                        Fixed(s.dram_to_hbm_bytes_per_second / 1e6, 0) + " MB/s (DRAM to arena), " +
                        Fixed(s.ssd_bytes_per_second / 1e6, 0) + " MB/s (SSD to DRAM); no hold-out");
  } else {
    line("sidecar", "already running; memory and links as it is configured");
  }
  const double block_seconds = p.block_tokens / s.engine.prefill_tokens_per_second;
  line("one block takes",
       Milliseconds(block_seconds) + " to recompute, " +
           Milliseconds(static_cast<double>(s.block_bytes) / std::max(1.0, s.ssd_bytes_per_second)) + " from SSD, " +
           Milliseconds(static_cast<double>(s.block_bytes) / std::max(1.0, s.dram_to_hbm_bytes_per_second)) +
           " from DRAM");
  line("time", "trace x " + Fixed(s.speed_up, 1) + ", " + Fixed(p.span_seconds, 1) + " s of arrivals; offered load " +
                   Fixed(p.offered_load(), 2) + " (mean service " +
                   Milliseconds(p.service_seconds / std::max(1.0, static_cast<double>(p.requests))) +
                   " with every shareable block served)");
  for (const std::string& note : report.notes) line("note", note);
  if (report.skipped > 0) line("note", std::to_string(report.skipped) + " wrong lines of the trace were skipped");
  return text;
}

}  // namespace

std::string PhaseName(Phase phase) {
  switch (phase) {
    case Phase::kDemand: return "demand-only";
    case Phase::kPrefetch: return "prefetch";
    default: return "observe";
  }
}

double Quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  const auto rank = static_cast<std::size_t>(std::ceil(q * static_cast<double>(values.size())));
  const std::size_t at = std::min(values.size() - 1, rank == 0 ? 0 : rank - 1);
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(at), values.end());
  return values[at];
}

PhaseSummary Summarise(const std::vector<const PhaseRun*>& runs) {
  PhaseSummary s;
  std::vector<double> ttft, queue, stall, demand;
  double own = 0, arena = 0, dram = 0, ssd = 0, joined = 0, recomputed = 0, stored = 0;
  for (const PhaseRun* run : runs) {
    s.phase = run->phase;
    ++s.runs;
    for (const RequestRecord& record : run->records) {
      ttft.push_back(Seconds(record.first_token - record.arrival));
      queue.push_back(Seconds(record.scheduled - record.arrival));
      stall.push_back(Seconds(record.stall));
      s.stall_total += stall.back();
      s.blocks += record.full_blocks;
      own += record.own_blocks;
      arena += record.arena_blocks;
      dram += record.demand_dram_blocks;
      ssd += record.demand_ssd_blocks;
      joined += record.demand_joined_blocks;
      recomputed += record.recomputed_blocks;
      stored += record.recomputed_stored_blocks;
    }
    demand.insert(demand.end(), run->live.loaded_fetch_seconds.begin(), run->live.loaded_fetch_seconds.end());
    s.engine.stores += run->engine.stores;
    s.engine.stores_full += run->engine.stores_full;
    s.engine.stores_unavailable += run->engine.stores_unavailable;
    s.engine.fetches += run->engine.fetches;
    s.engine.fetches_refused += run->engine.fetches_refused;
    s.engine.fetches_timed_out += run->engine.fetches_timed_out;
    s.engine.too_large += run->engine.too_large;
    s.verified_blocks += run->live.verified_blocks;
    s.verified_bytes += run->live.verified_bytes;
    s.mismatches += run->live.mismatches;
  }
  s.requests = ttft.size();
  s.demand_loads = demand.size();
  s.stall_total /= std::max(1u, s.runs);
  s.ttft_p50 = Quantile(ttft, 0.5);
  s.ttft_p99 = Quantile(ttft, 0.99);
  s.queue_p50 = Quantile(queue, 0.5);
  s.queue_p99 = Quantile(queue, 0.99);
  s.stall_p50 = Quantile(stall, 0.5);
  s.stall_p99 = Quantile(stall, 0.99);
  s.demand_p50 = Quantile(demand, 0.5);
  s.demand_p99 = Quantile(demand, 0.99);
  const auto total = static_cast<double>(std::max<std::uint64_t>(s.blocks, 1));
  s.own = own / total;
  s.arena = arena / total;
  s.demand_dram = dram / total;
  s.demand_ssd = ssd / total;
  s.joined = joined / total;
  s.recomputed = recomputed / total;
  s.recomputed_stored = stored / total;
  s.hbm = LedgerOf(runs, "hbm");
  s.dram = LedgerOf(runs, "dram");
  return s;
}

std::uint64_t Mismatches(const Report& report) {
  std::uint64_t total = 0;
  for (const PhaseRun& run : report.runs) total += run.live.mismatches;
  return total;
}

std::string ReportText(const Report& report) {
  const std::vector<PhaseSummary> phases = SummariseAll(report);
  Table table(phases);
  using P = const PhaseSummary&;
  table.Row("requests (runs)", [](P p) { return std::to_string(p.requests) + " (" + std::to_string(p.runs) + ")"; });
  table.Row("TTFT p50", [](P p) { return Milliseconds(p.ttft_p50); });
  table.Row("TTFT p99", [](P p) { return Milliseconds(p.ttft_p99); });
  table.Row("  of it in the queue, p50", [](P p) { return Milliseconds(p.queue_p50); });
  table.Row("  of it in the queue, p99", [](P p) { return Milliseconds(p.queue_p99); });
  table.Row("stall on loads, total of a run", [](P p) { return Fixed(p.stall_total, 3) + " s"; });
  table.Row("stall of a request, p50", [](P p) { return Milliseconds(p.stall_p50); });
  table.Row("stall of a request, p99", [](P p) { return Milliseconds(p.stall_p99); });
  table.Row("demand loads", [](P p) { return std::to_string(p.demand_loads); });
  table.Row("  latency p50", [](P p) { return Milliseconds(p.demand_p50); });
  table.Row("  latency p99", [](P p) { return Milliseconds(p.demand_p99); });
  table.Gap();
  table.Row("blocks: engine's own cache", [](P p) { return Percent(p.own); });
  table.Row("  READY in the arena", [](P p) { return Percent(p.arena); });
  table.Row("  was on its way as prefetch", [](P p) { return Percent(p.joined); });
  table.Row("  demand load from DRAM", [](P p) { return Percent(p.demand_dram); });
  table.Row("  demand load from SSD", [](P p) { return Percent(p.demand_ssd); });
  table.Row("  recomputed", [](P p) { return Percent(p.recomputed); });
  table.Row("    of it computed before", [](P p) { return Percent(p.recomputed_stored); });
  table.Gap();
  LedgerRows(table, "HBM", &PhaseSummary::hbm);
  LedgerRows(table, "DRAM", &PhaseSummary::dram);
  table.Gap();
  table.Row("stored blocks", [](P p) { return std::to_string(p.engine.stores); });
  table.Row("  not stored: ring full", [](P p) { return std::to_string(p.engine.stores_full); });
  table.Row("demand fetches refused", [](P p) { return std::to_string(p.engine.fetches_refused); });
  table.Row("demand fetches past deadline", [](P p) { return std::to_string(p.engine.fetches_timed_out); });
  table.Row("bytes verified", [](P p) { return Bytes(static_cast<double>(p.verified_bytes)); });
  table.Row("mismatches", [](P p) { return std::to_string(p.mismatches); });

  std::string text = Conditions(report) + "\n" + table.text();
  const PhaseSummary* demand = Find(phases, Phase::kDemand);
  const PhaseSummary* prefetch = Find(phases, Phase::kPrefetch);
  if (demand != nullptr && prefetch != nullptr && demand->stall_total > 0) {
    text += "\nStall with prefetch: " + Fixed(prefetch->stall_total / demand->stall_total, 2) +
            " x demand-only. TTFT p50: " + Fixed(prefetch->ttft_p50 / std::max(demand->ttft_p50, 1e-9), 2) +
            " x, p99: " + Fixed(prefetch->ttft_p99 / std::max(demand->ttft_p99, 1e-9), 2) + " x.\n";
  }
  if (const std::uint64_t wrong = Mismatches(report); wrong > 0) {
    text += "\nWRONG BYTES: " + std::to_string(wrong) + " mismatches. This is a bug; nothing else here counts.\n";
  }
  return text;
}

namespace {

void LedgerJson(service::JsonWriter& json, const char* name, const PhaseSummary::Ledger& ledger) {
  json.Key(name)
      .BeginObject()
      .Field("issued", ledger.issued)
      .Field("useful", ledger.useful)
      .Field("late", ledger.late)
      .Field("wasted", ledger.wasted)
      .Field("cancelled", ledger.cancelled)
      .Field("failed", ledger.failed)
      .Field("live", ledger.live)
      .Field("accuracy", ledger.accuracy())
      .EndObject();
}

void SummaryJson(service::JsonWriter& json, const PhaseSummary& p) {
  json.BeginObject()
      .Field("phase", PhaseName(p.phase))
      .Field("runs", p.runs)
      .Field("requests", p.requests)
      .Field("ttft_p50_seconds", p.ttft_p50)
      .Field("ttft_p99_seconds", p.ttft_p99)
      .Field("queue_p50_seconds", p.queue_p50)
      .Field("queue_p99_seconds", p.queue_p99)
      .Field("stall_total_seconds", p.stall_total)
      .Field("stall_p50_seconds", p.stall_p50)
      .Field("stall_p99_seconds", p.stall_p99)
      .Field("demand_loads", p.demand_loads)
      .Field("demand_p50_seconds", p.demand_p50)
      .Field("demand_p99_seconds", p.demand_p99);
  json.Key("block_shares")
      .BeginObject()
      .Field("own_cache", p.own)
      .Field("arena_ready", p.arena)
      .Field("joined_prefetch", p.joined)
      .Field("demand_dram", p.demand_dram)
      .Field("demand_ssd", p.demand_ssd)
      .Field("recomputed", p.recomputed)
      .Field("recomputed_stored", p.recomputed_stored)
      .EndObject();
  LedgerJson(json, "prefetch_hbm", p.hbm);
  LedgerJson(json, "prefetch_dram", p.dram);
  json.Field("stores", p.engine.stores)
      .Field("stores_full", p.engine.stores_full)
      .Field("stores_unavailable", p.engine.stores_unavailable)
      .Field("fetches", p.engine.fetches)
      .Field("fetches_refused", p.engine.fetches_refused)
      .Field("fetches_timed_out", p.engine.fetches_timed_out)
      .Field("requests_too_large", p.engine.too_large)
      .Field("verified_blocks", p.verified_blocks)
      .Field("verified_bytes", p.verified_bytes)
      .Field("mismatches", p.mismatches)
      .EndObject();
}

}  // namespace

std::string ReportJson(const Report& report) {
  service::JsonWriter json;
  const replay::WorkloadProfile& p = report.profile;
  json.BeginObject().Field("scenario", report.scenario.name).Field("workload", report.workload);
  json.Key("parameters").BeginObject();
  for (const auto& [key, value] : DescribeScenario(report.scenario)) json.Field(key, value);
  json.EndObject();
  json.Field("own_sidecar", report.own_sidecar);
  json.Key("profile")
      .BeginObject()
      .Field("requests", p.requests)
      .Field("block_accesses", p.blocks)
      .Field("unique_blocks", p.unique_blocks)
      .Field("shared_accesses", p.shared_blocks)
      .Field("input_tokens", p.input_tokens)
      .Field("output_tokens", p.output_tokens)
      .Field("span_seconds", p.span_seconds)
      .Field("service_seconds", p.service_seconds)
      .Field("offered_load", p.offered_load())
      .Field("trace_lines_skipped", report.skipped)
      .EndObject();
  const std::vector<PhaseSummary> phases = SummariseAll(report);
  json.Key("phases").BeginArray();
  for (const PhaseSummary& phase : phases) SummaryJson(json, phase);
  json.EndArray();
  json.Key("runs").BeginArray();
  for (const PhaseRun& run : report.runs) SummaryJson(json, Summarise({&run}));
  json.EndArray();
  const PhaseSummary* demand = Find(phases, Phase::kDemand);
  const PhaseSummary* prefetch = Find(phases, Phase::kPrefetch);
  if (demand != nullptr && prefetch != nullptr && demand->stall_total > 0) {
    json.Field("stall_ratio", prefetch->stall_total / demand->stall_total);
  }
  json.Field("mismatches", Mismatches(report)).EndObject();
  return json.Take() + "\n";
}

}  // namespace foreload::drive
