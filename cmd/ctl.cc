#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>

#include "base/block_key.h"
#include "cmd/commands.h"
#include "cmd/control_client.h"
#include "cmd/sidecar_address.h"
#include "prefetcher/service/config_value.h"
#include "prefetcher/service/http_client.h"
#include "proto/control.pb.h"
#include "proto/namespace.h"

namespace foreload::cmd {
namespace {

struct CtlOptions {
  SidecarAddress address;
  std::string timeout = "60s";
  std::string name_space;  // hex
  std::string model_revision;
  std::string lora;
  std::string salt_file;
  std::uint32_t kv_group = 0;
  std::uint64_t weights_epoch = 0;
};

constexpr char kCtlFooter[] = R"(Examples:
  foreload ctl flush                                     wait until every stored block is on disk
  foreload ctl purge --model-revision 4f2a...            forget a model in every tier
  foreload ctl purge --model-revision R --salt-file F    forget one tenant of it
  foreload ctl reload                                    read the configuration again)";

int Fail(const Status& status) {
  std::fprintf(stderr, "foreload: %s\n", status.message().c_str());
  return kExitFailed;
}

// Resolves the address and the time limit; an exit code other than 0 when one is wrong.
int Prepare(CtlOptions& options, DurationNs& timeout) {
  const auto parsed = service::ParseDuration(options.timeout);
  if (!parsed || *parsed <= 0) {
    std::fprintf(stderr, "foreload: --timeout %s: expects a duration such as 30s\n", options.timeout.c_str());
    return kExitUsage;
  }
  timeout = *parsed;
  if (const Status status = ResolveAddress(options.address); !status.ok()) {
    std::fprintf(stderr, "%s\n", status.message().c_str());
    return kExitUsage;
  }
  return kExitOk;
}

int Flush(CtlOptions& options) {
  DurationNs timeout = 0;
  if (const int code = Prepare(options, timeout); code != kExitOk) return code;
  control::ControlMessage request;
  control::ControlMessage reply;
  request.mutable_flush();
  const Status status = Ask(options.address.socket, request, timeout, reply);
  if (!status.ok()) return Fail(status);
  std::printf("%llu blocks are on disk\n", static_cast<unsigned long long>(reply.flush_reply().durable_blocks()));
  return kExitOk;
}

// The namespace that the options describe, 16 bytes.
Result<std::string> NamespaceOf(const CtlOptions& options) {
  if (options.name_space.empty() == options.model_revision.empty()) {
    return InvalidArgument("say which: --namespace HEX, or --model-revision R with what else belongs to it");
  }
  if (!options.name_space.empty()) {
    constexpr std::size_t kHexDigits = 32;
    if (options.name_space.size() != kHexDigits ||
        options.name_space.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos) {
      return InvalidArgument("--namespace expects 32 hexadecimal digits, as `foreload status` shows them");
    }
    std::string bytes;
    for (std::size_t i = 0; i < kHexDigits; i += 2) {
      bytes += static_cast<char>(std::stoi(options.name_space.substr(i, 2), nullptr, 16));
    }
    return bytes;
  }
  NamespaceFields fields{.model_revision = options.model_revision,
                         .lora = options.lora,
                         .cache_salt = {},
                         .kv_group = options.kv_group,
                         .weights_epoch = options.weights_epoch};
  if (!options.salt_file.empty()) {
    std::ifstream file(options.salt_file, std::ios::binary);
    std::getline(file, fields.cache_salt);
    if (!file && fields.cache_salt.empty())
      return InvalidArgument("--salt-file " + options.salt_file + ": cannot be read");
  }
  const NamespaceFingerprint fingerprint = FingerprintOf(fields);
  return std::string(fingerprint.bytes.begin(), fingerprint.bytes.end());
}

int Purge(CtlOptions& options) {
  auto name_space = NamespaceOf(options);
  if (!name_space.ok()) {
    std::fprintf(stderr, "foreload: %s\n", name_space.status().message().c_str());
    return kExitUsage;
  }
  DurationNs timeout = 0;
  if (const int code = Prepare(options, timeout); code != kExitOk) return code;
  control::ControlMessage request;
  control::ControlMessage reply;
  request.mutable_purge()->set_name_space(*name_space);
  const Status status = Ask(options.address.socket, request, timeout, reply);
  if (!status.ok()) return Fail(status);
  std::printf("%llu blocks forgotten; nothing of the namespace can be read\n",
              static_cast<unsigned long long>(reply.purge_reply().blocks()));
  return kExitOk;
}

int Reload(CtlOptions& options) {
  DurationNs timeout = 0;
  if (const int code = Prepare(options, timeout); code != kExitOk) return code;
  if (options.address.http.empty()) {
    std::fprintf(stderr, "foreload: this sidecar serves no HTTP; send it SIGHUP\n");
    return kExitFailed;
  }
  auto reply = service::HttpFetch(options.address.http, "POST", "/-/reload", timeout);
  if (!reply.ok()) return Fail(reply.status());
  std::fputs(reply->c_str(), stdout);
  return kExitOk;
}

}  // namespace

void AddCtl(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<CtlOptions>();
  CLI::App* ctl = app.add_subcommand("ctl", "Tell a running sidecar what to do");
  ctl->footer(kCtlFooter);
  ctl->require_subcommand(1);
  const auto add = [&](const char* name, const char* help, int (*run)(CtlOptions&)) {
    CLI::App* command = ctl->add_subcommand(name, help);
    AddAddressOptions(*command, options->address);
    command->add_option("--timeout", options->timeout, "How long to wait for the answer")->capture_default_str();
    command->callback([options, &exit_code, run] { exit_code = run(*options); });
    return command;
  };
  add("flush", "Make every stored block durable; returns when they are", &Flush);
  add("reload", "Read the configuration again", &Reload);
  CLI::App* purge =
      add("purge", "Forget every block of a namespace in every tier; returns when none can be read", &Purge);
  purge->add_option("--namespace", options->name_space, "Fingerprint, 32 hexadecimal digits");
  purge->add_option("--model-revision", options->model_revision, "Revision that the engine registered with");
  purge->add_option("--lora", options->lora, "Content hash of the adapter");
  purge->add_option("--salt-file", options->salt_file, "File whose first line is the tenant's cache salt");
  purge->add_option("--kv-group", options->kv_group, "KV-cache group of the engine");
  purge->add_option("--weights-epoch", options->weights_epoch, "Epoch of weights reloaded in place");
}

}  // namespace foreload::cmd
