#include "cmd/status_words.h"

#include <array>
#include <charconv>
#include <cstdint>
#include <map>

#include "cmd/json_fields.h"

namespace foreload::cmd {
namespace {

// Fixed notation without the locale's comma.
std::string Fixed(double value, int decimals) {
  std::array<char, 400> buffer{};
  const auto [end, error] =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::fixed, decimals);
  return {buffer.data(), end};
}

class Document {
 public:
  explicit Document(std::map<std::string, std::string> fields) : fields_(std::move(fields)) {}

  std::string Text(const std::string& path) const {
    const auto field = fields_.find(path);
    return field == fields_.end() ? std::string() : field->second;
  }
  double Number(const std::string& path) const {
    const std::string text = Text(path);
    double value = 0;
    std::from_chars(text.data(), text.data() + text.size(), value);
    return value;
  }
  std::string Count(const std::string& path) const { return Fixed(Number(path), 0); }
  std::string Bytes(const std::string& path) const { return HumanBytes(Number(path)); }
  bool Has(const std::string& path) const { return fields_.count(path) > 0; }

 private:
  std::map<std::string, std::string> fields_;
};

std::string Share(double part, double whole) {
  return whole <= 0 ? "-" : Fixed(100 * part / whole, 1) + " %";
}

std::string Headline(const Document& d) {
  const std::string mode = d.Text("mode");
  std::string text = "The sidecar ";
  if (d.Text("draining") == "true") {
    text += "is stopping: it lets transfers end and writes what is dirty";
  } else if (mode == "on") {
    text += "loads blocks ahead of demand";
  } else if (mode == "observe") {
    text += "observes: it predicts and counts, and moves nothing";
  } else {
    text += "is off";
  }
  text += ", up for " + HumanDuration(d.Number("uptime_seconds"));
  if (d.Text("prefetch_enabled") == "false") text += "; prefetch is switched off, demand loads alone";
  return text + ".\n";
}

std::string Engines(const Document& d) {
  std::string text;
  std::size_t count = 0;
  for (; d.Has("engines." + std::to_string(count) + ".name"); ++count) {
    const std::string at = "engines." + std::to_string(count) + ".";
    text += "  " + d.Text(at + "name") + ": " + d.Count(at + "processes") +
            (d.Number(at + "processes") == 1 ? " process, " : " processes, ");
    const std::string arena = d.Text(at + "arena");
    text += arena == "in force" ? d.Count(at + "slots") + " slots of " + d.Bytes(at + "block_bytes")
                                : "no arena" + (arena.empty() ? "" : " (" + arena + ")");
    if (d.Text(at + "policy") == "demand_only") text += ", demand only";
    const double hits = d.Number(at + "hit_blocks");
    const double asked = hits + d.Number(at + "miss_blocks");
    if (asked > 0) text += ", " + Share(hits, asked) + " of " + Fixed(asked, 0) + " blocks looked up were ready";
    text += "\n";
  }
  if (count == 0) return "No engine is registered.\n";
  return std::to_string(count) + (count == 1 ? " engine:\n" : " engines:\n") + text;
}

std::string Ledger(const Document& d, const std::string& path, const std::string& name) {
  const double issued = d.Number(path + ".issued");
  if (issued == 0) return "  into " + name + ": none yet\n";
  std::string text = "  into " + name + ": " + Fixed(issued, 0) + " issued (" + d.Bytes(path + ".issued_bytes") + ")";
  for (const char* outcome : {"useful", "late", "wasted", "cancelled", "failed"}) {
    text += ", " + d.Count(path + "." + outcome) + " " + outcome;
  }
  return text + ", " + d.Count(path + ".live") + " under way\n";
}

std::string Needs(const Document& d) {
  const double total = d.Number("needed_blocks.total");
  if (total == 0) return "No request has been scheduled yet.\n";
  const auto share = [&](const char* key) { return Share(d.Number(std::string("needed_blocks.") + key), total); };
  return "Of " + Fixed(total, 0) + " blocks that scheduled requests needed, the engine held " + share("engine") +
         ", the arena " + share("arena_ready") + " (" + share("arena_in_flight") + " still arriving), DRAM " +
         share("dram") + ", SSD " + share("ssd") + "; " + share("absent") + " were nowhere.\n";
}

std::string Tiers(const Document& d) {
  std::string text = "DRAM: " + d.Bytes("tiers.dram.used_bytes") + " of " + d.Bytes("tiers.dram.capacity_bytes");
  text += " used, " + d.Bytes("tiers.dram.dirty_bytes") + " not yet on disk.\n";
  if (d.Number("tiers.ssd.capacity_bytes") == 0) return text + "SSD: not configured.\n";
  return text + "SSD: " + d.Bytes("tiers.ssd.used_bytes") + " of " + d.Bytes("tiers.ssd.capacity_bytes") + " used, " +
         d.Count("tiers.ssd.records") + " blocks, state " + d.Text("tiers.ssd.state") + ", " + d.Text("tiers.ssd.io") +
         ".\n";
}

}  // namespace

std::string HumanBytes(double bytes) {
  static constexpr std::array<const char*, 6> kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  std::size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  return Fixed(bytes, unit == 0 || bytes >= 100 ? 0 : 1) + " " + kUnits[unit];
}

std::string HumanDuration(double seconds) {
  const auto whole = static_cast<std::uint64_t>(seconds < 0 ? 0 : seconds);
  const std::uint64_t days = whole / 86400;
  const std::uint64_t hours = whole / 3600 % 24;
  if (days > 0) return std::to_string(days) + " d " + std::to_string(hours) + " h";
  if (hours > 0) return std::to_string(hours) + " h " + std::to_string(whole / 60 % 60) + " min";
  if (whole >= 60) return std::to_string(whole / 60) + " min";
  return std::to_string(whole) + " s";
}

Result<std::string> StatusWords(std::string_view json, const Terminal& terminal) {
  FORELOAD_ASSIGN_OR_RETURN(auto fields, JsonFields(json));
  const Document d(std::move(fields));
  if (!d.Has("mode")) return InvalidArgument("it has no mode");
  std::string text = terminal.Bold(Headline(d));
  text += Engines(d);
  text += "Prefetches:\n" + Ledger(d, "prefetch.hbm", "arenas") + Ledger(d, "prefetch.dram", "DRAM");
  text += Needs(d);
  return text + Tiers(d);
}

}  // namespace foreload::cmd
