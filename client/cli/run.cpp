#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "client/dial.h"
#include "commands.h"

namespace fargpu::client::cli {
namespace {

// Puts a folder in front of a search path.
void prepend(const char* variable, const std::string& folder) {
  const char* const before = std::getenv(variable);
  ::setenv(variable, (before && *before ? folder + ":" + before : folder).c_str(), 1);
}

/// What the pool says before a program is started for nothing: 0, or the exit code with one line said.
int ask_pool(const std::vector<PoolHost>& hosts) {
  std::string first;
  int code = exit_own_error;
  for (const PoolHost& host : hosts) {
    try {
      ControlConnection broker(host);
      bool draining = false, full = false;
      std::string failure;
      broker.ask([](wire::Control::Builder control) { control.setStatusRequest(); }, wire::Control::STATUS,
                 [&](wire::Control::Reader control) {
                   const auto status = control.getStatus();
                   draining = status.getDraining();
                   full = status.getSessionsMax() > 0 && status.getSessions().size() >= status.getSessionsMax();
                   failure = status.getFailure().getText().cStr();
                 });
      if (!draining && !full && failure.empty()) return 0;
      code = failure.empty() ? exit_no_capacity : exit_own_error;
      if (first.empty()) {
        first = broker.name() + ": " +
                (draining ? "the host is shutting down" : full ? "all its sessions are taken; try later" : failure);
      }
    } catch (const DialError& error) {
      if (error.result == CUDA_ERROR_NOT_PERMITTED) code = exit_denied;
      if (first.empty()) first = error.what();
    }
  }
  std::cerr << "fargpu: " << first << "\n";
  return code;
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
  std::vector<char*> arguments;
  for (const std::string& argument : options.arguments) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  ::execvp(arguments[0], arguments.data());
  const int error = errno;
  std::cerr << "fargpu: cannot run '" << options.arguments[0] << "': " << std::strerror(error) << "\n";
  return error == ENOENT ? exit_not_found : exit_denied;
}

}  // namespace fargpu::client::cli
