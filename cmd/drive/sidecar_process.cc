#include "cmd/drive/sidecar_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <deque>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "prefetcher/service/config_value.h"
#include "proto/unique_fd.h"

namespace foreload::drive {
namespace {

constexpr int kStopSecondsMax = 20;
constexpr std::size_t kLogLinesShown = 15;

std::string Quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

}  // namespace

std::string SidecarConfig(const Scenario& scenario, const std::string& folder, bool observe) {
  using service::FormatBytes;
  using service::FormatDuration;
  using service::FormatRate;
  const auto link = [](const char* name, double rate, DurationNs latency) {
    return std::string("[links.") + name + "]\nbandwidth = \"" + FormatRate(rate) + "\"\nlatency = \"" +
           FormatDuration(latency) + "\"\nthrottle = \"" + FormatRate(rate) + "\"\n";
  };
  std::string text;
  text += std::string("mode = \"") + (observe ? "observe" : "on") + "\"\n";
  text += "[service]\ncontrol_socket = " + Quoted(folder + "/control.sock") + "\n";
  text += "http_listen = \"127.0.0.1:0\"\nstate_dir = " + Quoted(folder + "/state") + "\n";
  text += "[dram]\ncapacity = \"" + FormatBytes(scenario.dram_bytes) + "\"\n";
  if (scenario.ssd_bytes > 0) {
    text += "[ssd]\ndirectory = " + Quoted(folder + "/ssd") + "\ncapacity = \"" + FormatBytes(scenario.ssd_bytes) +
            "\"\nsegment_size = \"" + FormatBytes(scenario.ssd_segment_bytes) + "\"\n";
  }
  text += link("dram_to_hbm", scenario.dram_to_hbm_bytes_per_second, scenario.dram_to_hbm_latency);
  text += link("ssd_to_dram", scenario.ssd_bytes_per_second, scenario.ssd_latency);
  // Both directions of the device share its throttle; writes are its business alone.
  text += "[links.dram_to_ssd]\nbandwidth = \"" + FormatRate(scenario.ssd_bytes_per_second) + "\"\n";
  // Every session is prefetched for: the demand-only phase is the hold-out.
  text += "[prefetch]\nhold_out = 0.0\n";
  if (observe) text += "[observe]\narena_slots = " + std::to_string(scenario.arena_slots) + "\n";
  text += "[[engine]]\nname = \"drive\"\ndialect = \"vllm\"\n";
  text += "kv_events = " + Quoted("ipc://" + folder + "/engine.kv") + "\n";
  text += "kv_replay = " + Quoted("ipc://" + folder + "/engine.replay") + "\n";
  text += "access = " + Quoted("ipc://" + folder + "/engine.access") + "\n";
  text += "block_bytes = " + std::to_string(scenario.block_bytes) + "\n";
  return text;
}

Result<std::unique_ptr<SidecarProcess>> SidecarProcess::Start(const Scenario& scenario, const SidecarOptions& options) {
  std::unique_ptr<SidecarProcess> process(new SidecarProcess);
  std::string pattern = options.parent_folder + "/foreload-drive-XXXXXX";
  if (mkdtemp(pattern.data()) == nullptr) return Status::FromErrno(errno, "make a folder in " + options.parent_folder);
  process->folder_ = pattern;  // mkdtemp makes it 0700
  const std::string config = process->folder_ + "/foreload.toml";
  std::ofstream(config) << SidecarConfig(scenario, process->folder_, options.observe);

  const std::string log = process->folder_ + "/sidecar.log";
  const UniqueFd log_fd(open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!log_fd.valid()) return Status::FromErrno(errno, "open " + log);
  const char* argv[] = {options.executable.c_str(), "serve", "--config", config.c_str(), nullptr};
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return Status::FromErrno(errno, "fork");
  if (pid == 0) {
    // Its own group: an interrupt from the terminal reaches the drive alone, which then stops it in order.
    setpgid(0, 0);
    if (!options.outlive) {
      prctl(PR_SET_PDEATHSIG, SIGTERM);
      if (getppid() != parent) _exit(127);
    }
    dup2(log_fd.get(), STDOUT_FILENO);
    dup2(log_fd.get(), STDERR_FILENO);
    execv(argv[0], const_cast<char* const*>(argv));
    _exit(127);
  }
  process->pid_ = pid;
  return process;
}

std::string SidecarProcess::LogTail() const {
  std::ifstream stream(folder_ + "/sidecar.log");
  std::deque<std::string> lines;
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(line);
    if (lines.size() > kLogLinesShown) lines.pop_front();
  }
  std::string text;
  for (const std::string& line : lines) text += "\n  | " + line;
  return text;
}

std::string SidecarProcess::http_address() const {
  std::ifstream stream(folder_ + "/state/http.port");
  std::string port;
  if (!(stream >> port)) return "";
  return "127.0.0.1:" + port;
}

Status SidecarProcess::Alive() {
  if (pid_ > 0 && waitpid(pid_, &exit_status_, WNOHANG) == pid_) pid_ = -1;
  if (pid_ > 0) return OkStatus();
  std::string how = "ended";
  if (WIFEXITED(exit_status_)) how = "ended with status " + std::to_string(WEXITSTATUS(exit_status_));
  if (WIFSIGNALED(exit_status_)) how = "was killed by signal " + std::to_string(WTERMSIG(exit_status_));
  return Unavailable("the sidecar " + how + LogTail());
}

Status SidecarProcess::Stop() {
  if (pid_ <= 0) return OkStatus();
  FORELOAD_RETURN_IF_ERROR(Alive());
  const UniqueFd handle(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
  kill(pid_, SIGTERM);
  pollfd wait{handle.get(), POLLIN, 0};
  const bool ended = handle.valid() && poll(&wait, 1, kStopSecondsMax * 1000) == 1;
  if (!ended) kill(pid_, SIGKILL);
  waitpid(pid_, &exit_status_, 0);
  pid_ = -1;
  if (!ended) return DeadlineExceeded("the sidecar did not stop within 20 s of SIGTERM" + LogTail());
  if (!WIFEXITED(exit_status_) || WEXITSTATUS(exit_status_) != 0) return Alive();
  return OkStatus();
}

void SidecarProcess::Detach() {
  detached_ = true;
}

SidecarProcess::~SidecarProcess() {
  if (detached_) return;
  (void)Stop();
  std::error_code ignored;
  if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
}

}  // namespace foreload::drive
