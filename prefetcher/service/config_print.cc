// The configuration as text: what is in force and why, and the reference page.
#include "prefetcher/service/config_schema.h"
#include "prefetcher/service/config_value.h"

namespace foreload::service {
namespace {

constexpr std::size_t kOriginColumn = 56;

// "links.dram_to_hbm" of "links.dram_to_hbm.latency"; "" at the root.
std::string_view SectionOf(std::string_view key) {
  const std::size_t dot = key.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : key.substr(0, dot);
}
std::string_view LeafOf(std::string_view key) {
  return key.substr(key.rfind('.') + 1);
}

std::string_view KindName(ValueKind kind) {
  switch (kind) {
    case ValueKind::kBool: return "boolean";
    case ValueKind::kCount: return "count";
    case ValueKind::kBytes: return "size";
    case ValueKind::kRate: return "rate";
    case ValueKind::kDuration: return "duration";
    case ValueKind::kNumber: return "number";
    case ValueKind::kText: return "text";
    case ValueKind::kPath: return "path";
    case ValueKind::kEndpoint: return "endpoint";
    case ValueKind::kListen: return "host:port";
    case ValueKind::kChoice: return "choice";
  }
  return "";
}

std::string FormatBound(ValueKind kind, double value) {
  switch (kind) {
    case ValueKind::kBytes: return FormatBytes(static_cast<std::uint64_t>(value));
    case ValueKind::kDuration: return FormatDuration(static_cast<DurationNs>(value));
    case ValueKind::kRate: return FormatRate(value);
    case ValueKind::kCount: return std::to_string(static_cast<std::uint64_t>(value));
    default: return FormatNumber(value);
  }
}

template <typename Owner>
std::string Accepts(const KeySpec<Owner>& spec) {
  std::string text(KindName(spec.kind));
  if (spec.kind == ValueKind::kChoice) {
    text.clear();
    for (const std::string_view choice : spec.choices) text += (text.empty() ? "`" : ", `") + std::string(choice) + "`";
  } else if (spec.max > 0) {
    text += ", " + FormatBound(spec.kind, spec.min) + " to " + FormatBound(spec.kind, spec.max);
  }
  return text;
}

template <typename Owner>
std::string Row(const KeySpec<Owner>& spec, const Owner& defaults, bool with_reload) {
  std::string row = "| `" + std::string(LeafOf(spec.name)) + "` | " + Accepts(spec) + " | ";
  row += spec.empty_allowed ? "`" + PrintKey(spec, defaults) + "`" : [&] {
    const std::string value = PrintKey(spec, defaults);
    return value == "\"\"" ? std::string("needed") : "`" + value + "`";
  }();
  row += " | ";
  if (with_reload) row += spec.reloadable ? "yes | " : "no | ";
  return row + std::string(spec.meaning) + " |\n";
}

constexpr std::string_view kIntroduction = R"(# Configuration

`foreload serve --config FILE` reads one TOML file. A key that is absent takes its default. An unknown key or a wrong
value refuses the start (exit 2): every fault is listed with file, line and column, an unknown key with the nearest right
one. `foreload serve --config FILE --check-config` does only that; `--print-config` prints every value in force with
where it came from, as TOML that can be read back.

**Precedence**: `--set key=value` > environment > file > default. The environment name of a key is `FORELOAD_` and the
key in capitals with underscores: `dram.capacity` is `FORELOAD_DRAM_CAPACITY`. Engines are configured in the file alone.

**Units** are part of the text. Sizes: `B`, `kB`, `MB`, `GB`, `TB` (powers of 1000), `KiB`, `MiB`, `GiB`, `TiB` (powers of
1024); a bare number is bytes. Rates: a size and `/s`. Durations: `ns`, `us`, `ms`, `s`, `min`, `h`, `d`. The decimal sign
is a point, whatever the locale.

**Reload**: `SIGHUP`, `POST /-/reload` (from this host) or `foreload ctl reload` read the file again. The whole new file is
checked first; on any fault the old configuration stays in force and `foreload_config_last_reload_successful` is 0. Keys
marked "reload" change while running, and `[[engine]]` sections can be added; anything else asks for a restart.

This page is generated from the loader's own table: `foreload serve --print-reference > docs/configuration.md`.
)";

}  // namespace

std::string PrintConfig(const LoadedConfig& loaded) {
  std::string text;
  std::string section;
  for (const ConfigOrigin& entry : loaded.origins) {
    const std::string own(SectionOf(entry.key));
    if (own != section) {
      const bool engine = own.starts_with("engine[");
      text += engine ? "\n[[engine]]\n" : "\n[" + own + "]\n";
      section = own;
    }
    std::string line = std::string(LeafOf(entry.key)) + " = " + entry.value;
    if (line.size() < kOriginColumn) line.resize(kOriginColumn, ' ');
    text += line + "  # " + entry.origin + "\n";
  }
  return text;
}

std::string ConfigReference() {
  std::string page(kIntroduction);
  const ServiceConfig defaults;
  std::string section = "none yet";
  for (const auto& spec : ServiceKeys()) {
    const std::string own(SectionOf(spec.name));
    if (own != section) {
      page += own.empty() ? "\n## At the top\n" : "\n## `[" + own + "]`\n";
      page += "\n| key | accepts | default | reload | meaning |\n| --- | --- | --- | --- | --- |\n";
      section = own;
    }
    page += Row(spec, defaults, true);
  }
  page += "\n## `[[engine]]`\n\nOne section for each engine whose streams are subscribed.\n";
  page += "\n| key | accepts | default | meaning |\n| --- | --- | --- | --- |\n";
  const EngineSettings engine;
  for (const auto& spec : EngineKeys()) page += Row(spec, engine, false);
  return page;
}

}  // namespace foreload::service
