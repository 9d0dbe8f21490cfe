#include <fmt/format.h>
#include <sys/random.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "client/base/environment.h"
#include "client/base/log_words.h"
#include "client/connect/control_connection.h"
#include "client/connect/gang.h"
#include "client/connect/pool_search.h"
#include "commands.h"
#include "library_folder.h"
#include "protocol/text.h"

namespace fargpu::client::cli {
namespace {

// Puts a folder in front of a search path.
void prepend(const char* variable, const std::string& folder) {
  const char* const before = std::getenv(variable);
  ::setenv(variable, (before && *before ? folder + ":" + before : folder).c_str(), 1);
}

int exit_code_of(const DialError& error) {
  switch (error.reason) {
    case wire::Failure::Reason::NO_CAPACITY:
    case wire::Failure::Reason::DRAINING: return exit_no_capacity;
    default: return error.result == CUDA_ERROR_NOT_PERMITTED && !error.setting ? exit_denied : exit_own_error;
  }
}

/// What of a host is asked for, for people.
std::string wish_text(const LeaseOptions& lease) {
  std::string text = lease.gpus == 0 ? "all GPUs" : so_many(lease.gpus, "GPU");
  if (lease.memory_bytes > 0) text += fmt::format(", {} of each", bytes_text(lease.memory_bytes));
  if (lease.compute_percent > 0) text += fmt::format(", {}% of its compute", lease.compute_percent);
  return text;
}

/// While it is there and somebody looks on, says what is waited for, and then now and then for how long.
class Waiting {
 public:
  explicit Waiting(const std::string& host) {
    if (config().lease.wait.count() == 0 || !::isatty(STDERR_FILENO)) return;
    thread_ = std::thread([this, host] {
      const auto begin = std::chrono::steady_clock::now();
      const auto seconds = std::chrono::ceil<std::chrono::seconds>(config().lease.wait).count();
      std::unique_lock lock(mutex_);
      for (auto pause = std::chrono::seconds(1); !done_.wait_for(lock, pause, [this] { return over_; });
           pause = std::chrono::seconds(10)) {
        const auto waited = std::chrono::round<std::chrono::seconds>(std::chrono::steady_clock::now() - begin).count();
        if (!std::exchange(said_, true))
          std::cerr << fmt::format("fargpu: waiting for {} at {}, up to {} s; `fargpu ls` shows the leases\n",
                                   wish_text(config().lease), host, seconds);
        else std::cerr << fmt::format("fargpu: waiting, {} s of {}\n", waited, seconds);
      }
    });
  }
  ~Waiting() {
    if (!thread_.joinable()) return;
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    done_.notify_all();
    thread_.join();
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable done_;
  bool over_ = false, said_ = false;
  std::thread thread_;
};

std::string policy_of(ControlConnection& broker) {
  std::string policy;
  broker.ask([](wire::Control::Builder control) { control.setStatusRequest(); }, wire::Control::STATUS,
             [&](wire::Control::Reader control) {
               check_failure(control.getStatus().getFailure(), broker.name());
               policy = printable(control.getStatus().getPolicy().cStr());
             });
  return policy;
}

// A tenant's MPS keeps percentages whatever the policy, and is not told.
void warn_of(const std::string& policy, const std::string& host) {
  if (const unsigned percent = config().lease.compute_percent; percent > 0 && percent < 100 && policy != "fixed") {
    std::cerr << fmt::format(
        "fargpu: warning: {} shares its GPUs by the policy '{}', which does not keep to {}% of each: `fixed` does, or "
        "MPS where the host runs it for your tenant\n",
        host, policy, percent);
  }
}

/// A host that does not answer may be back at any time; a name that is none is a slip.
void warn_of_names(const std::vector<DialError>& errors) {
  for (const DialError& error : errors)
    if (error.unknown_name) std::cerr << "fargpu: warning: " << error.what() << "\n";
}

/// One line that says of each host what was wrong.
int refused(const std::vector<DialError>& errors) {
  const DialError all = none_usable(errors);
  std::cerr << "fargpu: " << all.what() << "\n";
  return exit_code_of(all);
}

/// Gets the job's lease from the pool before a program is started for nothing: 0, or the exit code. The lease lasts as
/// long as the programs of the job, which go to the host that gave it, and to no other.
int take_lease(const std::vector<PoolHost>& hosts) {
  std::string policy;
  PoolSearch search(hosts, PoolContacts::Order::load, /*hold=*/true,
                    [&](ControlConnection& broker) { policy = policy_of(broker); });
  const auto next = [&] {
    const Waiting waiting(hosts.size() == 1 ? address_text(hosts[0]) : fmt::format("one of {} hosts", hosts.size()));
    return search.next();
  };
  if (const auto found = next()) {
    warn_of(policy, found->broker->name());
    warn_of_names(search.errors());
    found->broker->bequeath();
    ::setenv("FARGPU_POOL", pool_text(found->host).c_str(), 1);
    return 0;
  }
  return refused(search.errors());
}

std::string text_of(const LeaseOptions::Job& job) {
  std::string text;
  for (const std::byte byte : job) text += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
  return text;
}

/// As take_lease for a job that may have devices of several hosts: all its leases, or none.
int take_leases(const std::vector<PoolHost>& hosts, bool& several) {
  LeaseOptions wish = config().lease;
  std::map<std::string, std::string> policies;
  std::mutex mutex;  // several hosts may be asked at once
  const auto look = [&](ControlConnection& broker) {
    const std::string policy = policy_of(broker);
    const std::lock_guard lock(mutex);
    policies[broker.name()] = policy;
  };
  std::vector<GangMember> members;
  try {
    const Waiting waiting(fmt::format("{} of {} hosts", wish.hosts, hosts.size()));
    members = wish.split.empty() ? take_gang(hosts, wish, look) : join_gang(hosts, wish, look);
  } catch (const DialError& error) {
    return refused({error});
  }
  for (const auto& [host, policy] : policies) warn_of(policy, host);
  std::string pool, split;
  for (const GangMember& member : members) {
    member.broker->bequeath();
    pool += (pool.empty() ? "" : ",") + pool_text(member.host);
    split += (split.empty() ? "" : ",") + std::to_string(member.gpus);
  }
  ::setenv("FARGPU_POOL", pool.c_str(), 1);
  ::setenv("FARGPU_JOB", text_of(*wish.job).c_str(), 1);
  several = members.size() > 1;
  if (several) ::setenv("FARGPU_SPLIT", split.c_str(), 1);
  else ::unsetenv("FARGPU_SPLIT");
  return 0;
}

// A name for the job, which nobody can guess.
std::string new_job() {
  LeaseOptions::Job job;
  if (::getrandom(job.data(), job.size(), 0) != static_cast<ssize_t>(job.size()))
    throw std::runtime_error("no random numbers");
  return text_of(job);
}

// Programs may run in other folders: the files that the user has named from this one are meant.
void make_paths_whole() {
  for (const EnvironmentVariable& variable : environment_variables()) {
    const char* const value =
        variable.names == EnvironmentVariable::Names::nothing ? nullptr : std::getenv(variable.name);
    if (!value || !*value || *value == '/') continue;
    ::setenv(variable.name, std::filesystem::absolute(value).c_str(), 1);
  }
}

// What is asked for on the command line counts more than what the environment asks for, for the programs too.
void ask_for(const RunOptions& options) {
  struct Wish {
    const char* flag;
    const char* variable;
    const std::string& value;
  };
  const Wish wishes[] = {{"--gpus", "FARGPU_GPUS", options.gpus},
                         {"--hosts", "FARGPU_HOSTS", options.hosts},
                         {"--mem", "FARGPU_MEM", options.memory},
                         {"--compute", "FARGPU_COMPUTE", options.compute},
                         {"--priority", "FARGPU_PRIORITY", options.priority},
                         {"--wait", "FARGPU_WAIT", options.wait}};
  bool new_wish = !options.pool.empty();
  for (const Wish& wish : wishes) {
    if (wish.value.empty()) continue;
    ::setenv(wish.variable, wish.value.c_str(), 1);
    new_wish = true;
  }
  // Within another job without wishes of its own it is part of that job.
  if (new_wish || !std::getenv("FARGPU_JOB")) {
    ::setenv("FARGPU_JOB", new_job().c_str(), 1);
    ::unsetenv("FARGPU_SPLIT");
  }
  std::string error = config().number_error;
  if (error.empty()) return;
  // It is called what its user called it.
  for (const Wish& wish : wishes)
    if (!wish.value.empty() && error.starts_with(std::string(wish.variable) + " "))
      error.replace(0, std::strlen(wish.variable), wish.flag);
  throw std::runtime_error(error);
}

}  // namespace

int run(const RunOptions& options) {
  if (!options.pool.empty()) ::setenv("FARGPU_POOL", options.pool.c_str(), 1);
  make_paths_whole();
  for (const StrangeVariable& variable : strange_variables())
    std::cerr << "fargpu: warning: " << variable.text() << "\n";
  log::drop_what_is_not_understood();
  ask_for(options);
  const std::vector<PoolHost> hosts = pool_hosts(options.pool);
  const std::filesystem::path folder = library_folder();
  if (folder.empty()) {
    std::cerr << "fargpu: " << missing_library_text() << "; " << missing_library_repair() << "\n";
    return exit_own_error;
  }
  if (const std::string fault = library_fault(folder); !fault.empty()) {
    std::cerr << "fargpu: " << fault << "; " << library_repair() << "\n";
    return exit_own_error;
  }
  bool several = false;
  const bool may_be_several = config().lease.hosts > 1 || config().lease.split.size() > 1;
  if (options.no_check && may_be_several) {
    std::cerr
        << "fargpu: GPUs of several hosts are leased before a program starts, so leave out --no-check, or ask for "
           "GPUs of one host (--hosts 1)\n";
    return exit_own_error;
  }
  if (!options.no_check) {
    if (const int code = may_be_several ? take_leases(hosts, several) : take_lease(hosts); code != 0) return code;
  }
  prepend("LD_LIBRARY_PATH", folder.string());
  ::setenv("TRITON_LIBCUDA_PATH", folder.c_str(), 1);  // Triton looks through the loader's cache otherwise
  // How the host's PCI is wired is not known here, and without wires NCCL goes through memory of the program. The
  // driver knows which devices reach each other, and NCCL asks it too.
  ::setenv("NCCL_P2P_LEVEL", "SYS", 0);
  // NCCL takes devices of several hosts for devices of one machine.
  if (several) prepend("LD_PRELOAD", (folder / "libfargpu-nccl.so").string());
  std::vector<char*> arguments;
  for (const std::string& argument : options.arguments) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  ::execvp(arguments[0], arguments.data());
  const int error = errno;
  std::cerr << "fargpu: cannot run '" << options.arguments[0] << "': " << std::strerror(error) << "\n";
  return error == ENOENT ? exit_not_found : exit_denied;
}

}  // namespace fargpu::client::cli
