// The metric registry as a Prometheus page (text format 0.0.4), with what the process itself says.
//
// Numbers never follow the locale. Cells are read while their owners write them: each value is right by itself, a page
// is no snapshot. Any thread; one page costs a copy of the declarations and no lock of the data path.
#pragma once

#include <string>

#include "base/metric.h"

namespace foreload::service {

inline constexpr char kExpositionContentType[] = "text/plain; version=0.0.4; charset=utf-8";

// Every family in order of declaration, then foreload_build_info and process_*.
std::string ExposeMetrics(const MetricRegistry& registry);

// What this binary is, from the build: "0.1.0".
std::string VersionString();

}  // namespace foreload::service
