// Which endpoints a source may use: local ones freely, TCP beyond loopback only with CURVE or an explicit "insecure".
#pragma once

#include "base/status.h"
#include "telemetry/ingest.h"

namespace foreload::telemetry {

Status CheckSource(const SourceConfig& source);

}  // namespace foreload::telemetry
