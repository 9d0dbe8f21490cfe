#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "client/dial.h"
#include "commands.h"
#include "protocol/printable.h"

namespace fargpu::client::cli {
namespace {

// Puts a folder in front of a search path.
void prepend(const char* variable, const std::string& folder) {
  const char* const before = std::getenv(variable);
  ::setenv(variable, (before && *before ? folder + ":" + before : folder).c_str(), 1);
}

struct Refusal {
  int code = 0;  ///< 0 for none
  std::string text;
};

/// Why a host would not take the program now.
Refusal ask(const PoolHost& host) {
  try {
    ControlConnection broker(host);
    Refusal refusal;
    broker.ask([](wire::Control::Builder control) { control.setStatusRequest(); }, wire::Control::STATUS,
               [&](wire::Control::Reader control) {
                 const auto status = control.getStatus();
                 if (status.getFailure().getReason() != wire::Failure::Reason::NONE)
                   refusal = {exit_own_error, printable(status.getFailure().getText().cStr(), 512)};
                 else if (status.getDraining()) refusal = {exit_no_capacity, "the host is shutting down"};
                 else if (status.getSessionsTaken() >= status.getSessionsMax())
                   refusal = {exit_no_capacity, fmt::format("all {} sessions of this host are taken; try later", status.getSessionsMax())};
               });
    refusal.text = broker.name() + ": " + refusal.text;
    return refusal;
  } catch (const DialError& error) {
    return {error.result == CUDA_ERROR_NOT_PERMITTED ? exit_denied : exit_own_error, error.what()};
  }
}

/// What the pool says before a program is started for nothing: 0, or the exit code with one line said. Of several refusals the one
/// counts that waiting mends, then one that is meant.
int ask_pool(const std::vector<PoolHost>& hosts) {
  Refusal worst;
  for (const PoolHost& host : hosts) {
    Refusal refusal = ask(host);
    if (refusal.code == 0) return 0;
    const auto rank = [](int code) { return code == exit_no_capacity ? 3 : code == exit_denied ? 2 : code == exit_own_error ? 1 : 0; };
    if (rank(refusal.code) > rank(worst.code)) worst = std::move(refusal);
  }
  std::cerr << "fargpu: " << worst.text << "\n";
  return worst.code;
}

}  // namespace

int run(const RunOptions& options) {
  if (!options.pool.empty()) ::setenv("FARGPU_POOL", options.pool.c_str(), 1);
  const std::vector<PoolHost> hosts = pool_hosts(options.pool);
  const std::filesystem::path folder = library_folder();
  if (folder.empty()) {
    std::cerr << "fargpu: the client library (libcuda.so.1) is not installed in " FARGPU_LIBDIR "/fargpu\n";
    return exit_own_error;
  }
  if (!options.no_check) {
    if (const int code = ask_pool(hosts); code != 0) return code;
  }
  prepend("LD_LIBRARY_PATH", folder.string());
  ::setenv("TRITON_LIBCUDA_PATH", folder.c_str(), 1);  // Triton looks through the loader's cache otherwise
  // How the host's devices are wired is not known here, and without wires NCCL goes through memory of the program. Its driver knows
  // which devices reach each other, and NCCL asks it too.
  ::setenv("NCCL_P2P_LEVEL", "SYS", 0);
  std::vector<char*> arguments;
  for (const std::string& argument : options.arguments) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  ::execvp(arguments[0], arguments.data());
  const int error = errno;
  std::cerr << "fargpu: cannot run '" << options.arguments[0] << "': " << std::strerror(error) << "\n";
  return error == ENOENT ? exit_not_found : exit_denied;
}

}  // namespace fargpu::client::cli
