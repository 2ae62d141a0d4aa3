// The subcommands of `foreload`. Data goes to stdout, messages to stderr. Exit codes: 0 done; 1 it failed; 2 wrong use
// or wrong configuration.
#pragma once

namespace CLI {
class App;
}

namespace foreload::cmd {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;

// Each adds its subcommand with its options to `app`; the callback that runs it stores its exit code in `exit_code`.
// `app` and `exit_code` outlive the parse.
void AddServe(CLI::App& app, int& exit_code);
void AddStatus(CLI::App& app, int& exit_code);
void AddProbe(CLI::App& app, int& exit_code);
void AddCtl(CLI::App& app, int& exit_code);

}  // namespace foreload::cmd
