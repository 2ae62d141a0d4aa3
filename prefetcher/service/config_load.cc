// Reads the TOML file, the environment and flags through the schema, gathering every fault before it answers.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <map>
#include <memory>
#include <set>

#include "prefetcher/service/config_schema.h"
#include "prefetcher/service/config_value.h"
#include "prefetcher/service/toml_library.h"

namespace foreload::service {
namespace {

struct Fault {
  std::uint32_t line = 0;
  std::uint32_t column = 0;
  std::string text;
};

std::string Place(std::string_view file, const toml::source_region& region) {
  return std::string(file) + ":" + std::to_string(region.begin.line) + ":" + std::to_string(region.begin.column);
}

// What a name was probably meant to be: within a third of its length in edits, the whole key or its last part.
std::string Nearest(std::string_view wrong, const std::vector<std::string>& right) {
  constexpr std::size_t kComparedBytesMax = 128;
  if (wrong.size() > kComparedBytesMax) return {};
  std::string best;
  std::size_t best_edits = std::max<std::size_t>(2, wrong.size() / 3) + 1;
  const std::string_view wrong_leaf = wrong.substr(wrong.rfind('.') + 1);
  for (const std::string& candidate : right) {
    const std::string_view leaf = std::string_view(candidate).substr(candidate.rfind('.') + 1);
    // The right last part under a wrong section costs one edit, so that an exact neighbour still wins.
    const std::size_t moved = wrong_leaf == leaf ? 1 : SIZE_MAX;
    const std::size_t edits = std::min(EditDistance(wrong, candidate), moved);
    if (edits >= best_edits) continue;
    best_edits = edits;
    best = candidate;
  }
  return best;
}

std::string DidYouMean(std::string_view wrong, const std::vector<std::string>& right) {
  const std::string nearest = Nearest(wrong, right);
  return nearest.empty() ? std::string() : "; did you mean \"" + nearest + "\"?";
}

std::optional<RawValue> Raw(const toml::node& node) {
  if (const auto* text = node.as_string()) return RawValue(text->get());
  if (const auto* flag = node.as_boolean()) return RawValue(flag->get());
  if (const auto* whole = node.as_integer()) return RawValue(whole->get());
  if (const auto* real = node.as_floating_point()) return RawValue(real->get());
  return std::nullopt;
}

std::string TypeName(const toml::node& node) {
  if (node.is_table()) return "a table";
  if (node.is_array()) return "an array";
  return "a date or time";
}

class Loader final : public FaultSink {
 public:
  explicit Loader(std::string_view file) : file_(file) {
    for (const auto& spec : ServiceKeys()) {
      names_.emplace_back(spec.name);
      const std::string_view name = spec.name;
      for (std::size_t dot = name.find('.'); dot != std::string_view::npos; dot = name.find('.', dot + 1)) {
        sections_.insert(std::string(name.substr(0, dot)));
      }
    }
  }

  void ReadFile(std::string_view toml) {
    toml::parse_result parsed = ParseToml(toml, file_);
    if (!parsed) {
      const toml::parse_error& error = parsed.error();
      AddAt(error.source(), std::string(error.description()));
      return;
    }
    ReadTable(parsed.table(), "");
  }

  void ReadEnvironment(const ConfigOverrides& variables) {
    for (const auto& [variable, value] : variables) {
      bool known = false;
      for (const auto& spec : ServiceKeys()) {
        if (EnvironmentName(spec.name) != variable) continue;
        Set(spec, RawValue(value), true, variable, variable);
        known = true;
      }
      if (!known && LooksLikeKey(variable)) AddUnknownVariable(variable);
    }
  }

  void ReadFlags(const ConfigOverrides& flags) {
    for (const auto& [key, value] : flags) {
      const auto* spec = Find(key);
      if (spec != nullptr) {
        Set(*spec, RawValue(value), true, "--set", "--set " + key);
      } else if (key == "engine" || key.starts_with("engine.") || key.starts_with("engine[")) {
        Append("--set " + key + ": engines are configured in the file, as [[engine]] sections");
      } else {
        Append("--set " + key + ": unknown key" + DidYouMean(key, names_));
      }
    }
  }

  // A fault that needs more than one key, at the place of the one it is about. Where a key of the same section was
  // wrong by itself its default stands in, and the fault would only mislead.
  void Add(const std::string& key, const std::string& message) override {
    if (wrong_sections_.count(key.substr(0, key.rfind('.'))) > 0) return;
    const auto place = places_.find(key);
    if (place != places_.end()) {
      AddAt(place->second, key + ": " + message);
      return;
    }
    const auto origin = origins_.find(key);
    Append((origin == origins_.end() ? key : origin->second + " " + key) + ": " + message);
  }

  Result<LoadedConfig> Finish() {
    ValidateConfig(config_, *this);
    if (!faults_.empty()) return InvalidArgument(Report());
    LoadedConfig loaded;
    loaded.config = config_;
    for (const auto& spec : ServiceKeys()) {
      const std::string key(spec.name);
      loaded.origins.push_back({key, PrintKey(spec, config_), OriginOf(key)});
    }
    for (std::size_t i = 0; i < config_.engines.size(); ++i) {
      for (const auto& spec : EngineKeys()) {
        const std::string key = EngineKey(i, spec.name);
        loaded.origins.push_back({key, PrintKey(spec, config_.engines[i]), OriginOf(key)});
      }
    }
    return loaded;
  }

 private:
  static std::string EngineKey(std::size_t index, std::string_view name) {
    return "engine[" + std::to_string(index) + "]." + std::string(name);
  }

  std::string OriginOf(const std::string& key) const {
    const auto origin = origins_.find(key);
    return origin == origins_.end() ? "default" : origin->second;
  }

  static const KeySpec<ServiceConfig>* Find(std::string_view key) {
    for (const auto& spec : ServiceKeys()) {
      if (spec.name == key) return &spec;
    }
    return nullptr;
  }

  void MarkWrong(const std::string& key) { wrong_sections_.insert(key.substr(0, key.rfind('.'))); }

  void Append(std::string text) { faults_.push_back({.text = std::move(text)}); }

  void AddAt(const toml::source_region& region, const std::string& message) {
    faults_.push_back({region.begin.line, region.begin.column, Place(file_, region) + ": " + message});
  }

  void Set(const KeySpec<ServiceConfig>& spec, const RawValue& raw, bool from_text, const std::string& origin,
           const std::string& context) {
    const std::string key(spec.name);
    if (const auto fault = SetKey(spec, raw, from_text, config_)) {
      MarkWrong(key);
      Append(context + ": " + *fault);
      return;
    }
    origins_[key] = origin;
    places_.erase(key);
  }

  // Recurses over [section.section]; the parser bounds the depth.
  void ReadTable(const toml::table& table, const std::string& prefix) {
    for (const auto& [key, node] : table) {
      const std::string name = prefix + std::string(key.str());
      if (name == "engine") {
        ReadEngines(node);
      } else if (sections_.count(name) > 0) {
        if (const toml::table* section = node.as_table()) {
          ReadTable(*section, name + ".");
        } else {
          AddAt(node.source(), name + ": is a section; write it as [" + name + "]");
        }
      } else if (const auto* spec = Find(name)) {
        ReadValue(*spec, node, name, config_);
      } else {
        AddUnknown(key.source(), name, node.is_table() || node.is_array_of_tables());
      }
    }
  }

  template <typename Owner>
  void ReadValue(const KeySpec<Owner>& spec, const toml::node& node, const std::string& key, Owner& owner) {
    const std::optional<RawValue> raw = Raw(node);
    if (!raw) {
      MarkWrong(key);
      AddAt(node.source(), key + ": expects one value, got " + TypeName(node));
      return;
    }
    if (const auto fault = SetKey(spec, *raw, false, owner)) {
      MarkWrong(key);
      AddAt(node.source(), key + ": " + *fault);
      return;
    }
    places_[key] = node.source();
    origins_[key] = std::string(file_) + ":" + std::to_string(node.source().begin.line);
  }

  void ReadEngines(const toml::node& node) {
    const toml::array* array = node.as_array();
    if (array == nullptr) {
      AddAt(node.source(), "engine: each engine is a section of its own; write it as [[engine]]");
      return;
    }
    for (const toml::node& element : *array) {
      const toml::table* table = element.as_table();
      if (table == nullptr) {
        AddAt(element.source(), "engine: expects [[engine]] sections");
        return;
      }
      if (config_.engines.size() >= kConfigEnginesMax) {
        AddAt(element.source(), "engine: more than " + std::to_string(kConfigEnginesMax) + " engines");
        return;
      }
      ReadEngine(*table);
    }
  }

  void ReadEngine(const toml::table& table) {
    const std::size_t index = config_.engines.size();
    EngineSettings& engine = config_.engines.emplace_back();
    places_[EngineKey(index, "name")] = table.source();  // for a section without a name
    for (const auto& [key, node] : table) {
      const KeySpec<EngineSettings>* found = nullptr;
      std::vector<std::string> names;
      for (const auto& spec : EngineKeys()) {
        names.emplace_back(spec.name);
        if (spec.name == key.str()) found = &spec;
      }
      if (found != nullptr) {
        ReadValue(*found, node, EngineKey(index, key.str()), engine);
      } else {
        MarkWrong(EngineKey(index, key.str()));
        AddAt(key.source(), "engine." + Printable(key.str()) + ": unknown key" + DidYouMean(key.str(), names));
      }
    }
  }

  static std::string Printable(std::string_view text) {
    constexpr std::size_t kShownBytesMax = 80;
    std::string shown;
    for (const char c : text.substr(0, kShownBytesMax)) shown += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
    return shown;
  }

  void AddUnknown(const toml::source_region& region, const std::string& name, bool is_section) {
    MarkWrong(name);
    std::vector<std::string> right = names_;
    if (is_section) {
      right.assign(sections_.begin(), sections_.end());
      right.emplace_back("engine");
    }
    AddAt(region, Printable(name) + (is_section ? ": unknown section" : ": unknown key") + DidYouMean(name, right));
  }

  // Whether a FORELOAD_ variable was meant for us: it begins with one of our sections. What an orchestrator sets for a
  // service called "foreload" (FORELOAD_SERVICE_HOST, FORELOAD_PORT_...) is not.
  bool LooksLikeKey(std::string_view variable) const {
    if (variable == "FORELOAD_SERVICE_HOST" || variable.starts_with("FORELOAD_SERVICE_PORT")) return false;
    for (const std::string& section : sections_) {
      if (variable.starts_with(EnvironmentName(section) + "_")) return true;
    }
    return false;
  }

  void AddUnknownVariable(const std::string& variable) {
    std::vector<std::string> right;
    for (const auto& spec : ServiceKeys()) right.push_back(EnvironmentName(spec.name));
    Append(Printable(variable) + ": no key has this name" + DidYouMean(variable, right));
  }

  std::string Report() {
    std::stable_sort(faults_.begin(), faults_.end(), [](const Fault& a, const Fault& b) {
      // Faults without a place (flags, environment) come last.
      const auto rank = [](const Fault& f) { return std::pair(f.line == 0 ? UINT32_MAX : f.line, f.column); };
      return rank(a) < rank(b);
    });
    std::string report;
    for (std::size_t i = 0; i < faults_.size() && i < kConfigFaultsMax; ++i) {
      if (i > 0) report += '\n';
      report += faults_[i].text;
    }
    if (faults_.size() > kConfigFaultsMax) {
      report += "\nand " + std::to_string(faults_.size() - kConfigFaultsMax) + " more";
    }
    return report;
  }

  std::string_view file_;
  ServiceConfig config_;
  std::vector<std::string> names_;
  std::set<std::string> sections_;
  std::map<std::string, toml::source_region> places_;  // of keys that the file gave
  std::map<std::string, std::string> origins_;
  std::set<std::string> wrong_sections_;
  std::vector<Fault> faults_;
};

Result<std::string> ReadWhole(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "re"), &std::fclose);
  if (file == nullptr) {
    const Status status = Status::FromErrno(errno, path);
    return errno == ENOENT ? NotFound(status.message()) : status;
  }
  std::string text(kConfigFileBytesMax + 1, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file.get()));
  if (std::ferror(file.get()) != 0) return Status::FromErrno(errno, path);
  if (text.size() > kConfigFileBytesMax) return InvalidArgument(path + ": larger than 1MiB, not a configuration");
  return text;
}

}  // namespace

Result<LoadedConfig> ParseConfig(std::string_view toml, std::string_view file_name, const ConfigSources& sources) {
  Loader loader(file_name);
  loader.ReadFile(toml);
  loader.ReadEnvironment(sources.environment);
  loader.ReadFlags(sources.flags);
  return loader.Finish();
}

Result<LoadedConfig> LoadConfigWithOrigins(const ConfigSources& sources) {
  std::string text;
  if (!sources.path.empty()) {
    FORELOAD_ASSIGN_OR_RETURN(text, ReadWhole(sources.path));
  }
  return ParseConfig(text, sources.path, sources);
}

}  // namespace foreload::service
