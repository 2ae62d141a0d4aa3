// The one table of configuration keys. The loader, --print-config, the reload check, the environment names and
// docs/configuration.md all read it, so a key exists everywhere or nowhere. Internal to prefetcher/service.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "prefetcher/service/config.h"

namespace foreload::service {

enum class ValueKind : std::uint8_t {
  kBool,
  kCount,
  kBytes,
  kRate,  // bytes a second
  kDuration,
  kNumber,
  kText,
  kPath,      // absolute, or empty where that is allowed
  kEndpoint,  // ZeroMQ: tcp://host:port or ipc:///path
  kListen,    // host:port
  kChoice
};

template <typename Owner>
struct ChoiceAccess {
  std::size_t (*get)(const Owner&);
  void (*set)(Owner&, std::size_t);
};

template <typename Owner>
using Field =
    std::variant<bool& (*)(Owner&), std::uint32_t& (*)(Owner&), std::uint64_t& (*)(Owner&), std::int64_t& (*)(Owner&),
                 double& (*)(Owner&), std::string& (*)(Owner&), ChoiceAccess<Owner>>;

template <typename Owner>
struct KeySpec {
  std::string_view name;  // dotted, from the root of its owner
  ValueKind kind;
  Field<Owner> field;
  std::string_view meaning;
  double min = 0;  // of numbers, inclusive, in base units (bytes, ns, bytes/s)
  double max = 0;
  std::span<const std::string_view> choices = {};
  bool reloadable = false;
  bool empty_allowed = true;  // text-like kinds
};

std::span<const KeySpec<ServiceConfig>> ServiceKeys();
std::span<const KeySpec<EngineSettings>> EngineKeys();

// A value as it came from the file (typed) or from text (a flag, the environment: always a string).
using RawValue = std::variant<bool, std::int64_t, double, std::string>;

// Sets one key; nullopt when it was taken, else what is wrong, in words, without the key's name.
template <typename Owner>
std::optional<std::string> SetKey(const KeySpec<Owner>& spec, const RawValue& raw, bool from_text, Owner& owner);

// The value as it is written in the file: quoted where TOML wants quotes.
template <typename Owner>
std::string PrintKey(const KeySpec<Owner>& spec, const Owner& owner);

// "FORELOAD_DRAM_CAPACITY"
std::string EnvironmentName(std::string_view key);

// Checks that need more than one key. `add(key, message)` per fault; engine keys are "engine[i].name".
class FaultSink {
 public:
  virtual ~FaultSink() = default;
  virtual void Add(const std::string& key, const std::string& message) = 0;
};
void ValidateConfig(const ServiceConfig& config, FaultSink& faults);

}  // namespace foreload::service
