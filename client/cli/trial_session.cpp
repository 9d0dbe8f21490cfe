#include "trial_session.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <vector>

#include "client/session/dial.h"
#include "client/session/process.h"
#include "repair.h"

namespace fargpu::client::cli {
namespace {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

struct Unmeasured : std::runtime_error {
  using std::runtime_error::runtime_error;
};

void must(CUresult result, const char* what) {
  const char* name = nullptr;
  if (result == CUDA_SUCCESS) return;
  if (cuGetErrorName(result, &name) != CUDA_SUCCESS || !name) name = "an unknown error";
  throw Unmeasured(std::string(what) + " gives " + name);
}

/// Copies between this process and the first device, of contents that do not become smaller by compression.
class Measurement {
 public:
  Measurement() {
    must(cuDevicePrimaryCtxRetain(&context_, 0), "a context");
    must(cuCtxSetCurrent(context_), "a context");
    must(cuMemAlloc_v2(&device_, bytes_most), "an allocation of 16 MiB");
    std::mt19937_64 random(1);
    for (std::uint64_t& word : host_) word = random();
  }

  // The shortest of some: others had to wait for a processor.
  double round_trip() {
    double least = 1e9;
    for (int i = 0; i < 12; ++i) least = std::min(least, in(sizeof(std::uint32_t)));
    return least;
  }
  double out_rate() {
    return rate([this](std::size_t bytes) { return out(bytes); });
  }
  double in_rate() {
    return rate([this](std::size_t bytes) { return in(bytes); });
  }

 private:
  static constexpr std::size_t bytes_first = 1u << 20, bytes_most = 16u << 20;

  double out(std::size_t bytes) {
    const auto begin = Clock::now();
    must(cuMemcpyHtoD_v2(device_, host_.data(), bytes), "a copy to the device");
    must(cuCtxSynchronize(), "a copy to the device");
    return seconds_since(begin);
  }
  double in(std::size_t bytes) {
    const auto begin = Clock::now();
    must(cuMemcpyDtoH_v2(host_.data(), device_, bytes), "a copy from the device");
    return seconds_since(begin);
  }
  // A slow line is not kept busy for long: the small copy tells enough of it. On a fast one, copies go on until it has
  // been found how many lanes it needs.
  template <class Copy>
  static double rate(Copy&& copy) {
    constexpr double long_enough = 0.1, settled = 0.3;
    const double first = copy(bytes_first);
    if (first > long_enough) return bytes_first / first;
    const auto begin = Clock::now();
    double least = copy(bytes_most);
    do least = std::min(least, copy(bytes_most));
    while (seconds_since(begin) < settled);
    return bytes_most / least;
  }

  CUcontext context_ = nullptr;
  CUdeviceptr device_ = 0;
  std::vector<std::uint64_t> host_ = std::vector<std::uint64_t>(bytes_most / sizeof(std::uint64_t));
};

// In the child.
Json have_session(const PoolHost& host, const LeaseOptions& wish) {
  Config one = config();
  one.hosts = {host};
  one.lease = wish;
  one.pool_error.clear();
  Json told;
  try {
    const auto begin = Clock::now();
    Session* const session = dial(one).release();
    told = {{"ready_ms", seconds_since(begin) * 1e3},
            {"devices", session->terms.facts.devices.size()},
            {"transport", session->medium()}};
    if (session->terms.facts.devices.empty()) {
      session->leave();
      return told;
    }
    if (const char* const trace = std::getenv("FARGPU_TRACE"); trace && *trace) {
      // The calls would take the place of a program's trace in that file.
      told["unmeasured"] = "FARGPU_TRACE is set";
      session->leave();
      return told;
    }
    process().adopt(session);  // the calls below find it
    try {
      Measurement measurement;
      told["round_trip_us"] = measurement.round_trip() * 1e6;
      told["out"] = measurement.out_rate();
      told["in"] = measurement.in_rate();
      told["lanes"] = session->lanes.open_lanes();
      told["lanes_in_use"] = session->lanes.lanes_in_use();
    } catch (const Unmeasured& error) {
      told["unmeasured"] = error.what();
    }
    process().give_up();
  } catch (const DialError& error) {
    told = {{"error", error.what()}, {"repair", repair_of_session(error)}};
  }
  return told;
}

// What the child wrote, up to its end. It ends by itself: each of its waits has a bound.
std::string read_all(int descriptor) {
  constexpr std::size_t most = 64u << 10;
  std::string text;
  char buffer[4096];
  for (;;) {
    const ssize_t got = ::read(descriptor, buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0 || text.size() >= most) return text;
    text.append(buffer, static_cast<std::size_t>(got));
  }
}

std::string end_of(int status) {
  return WIFSIGNALED(status) ? std::string("by the signal ") + ::strsignal(WTERMSIG(status))
                             : "with " + std::to_string(WEXITSTATUS(status));
}

}  // namespace

TrialSession try_session(const PoolHost& host, const LeaseOptions& wish) {
  int ends[2];
  std::cout.flush();
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error(std::string("no pipe: ") + std::strerror(errno));
  const pid_t child = ::fork();
  if (child < 0)
    throw std::runtime_error(std::string("no process for the trial of a session: ") + std::strerror(errno));
  if (child == 0) {
    ::close(ends[0]);
    std::string text;
    try {
      text = have_session(host, wish).dump(-1, ' ', false, Json::error_handler_t::replace);
    } catch (const std::exception& error) {
      text = Json({{"error", error.what()}, {"repair", "look at the log of fargpud there"}})
                 .dump(-1, ' ', false, Json::error_handler_t::replace);
    }
    const bool written = ::write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size());
    ::_exit(written ? 0 : 1);
  }
  ::close(ends[1]);
  const std::string text = read_all(ends[0]);
  ::close(ends[0]);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {}
  TrialSession trial;
  const Json told = Json::parse(text, nullptr, false);
  if (!told.is_object()) {
    trial.error = "the process that tried a session ended " + end_of(status);
    trial.repair = "look at the log of fargpud there";
    return trial;
  }
  trial.error = told.value("error", "");
  trial.repair = told.value("repair", "");
  trial.devices = told.value("devices", std::size_t{0});
  trial.ready_ms = told.value("ready_ms", 0.0);
  trial.transport = told.value("transport", "");
  trial.unmeasured = told.value("unmeasured", "");
  trial.round_trip_us = told.value("round_trip_us", 0.0);
  trial.out_bytes_per_second = told.value("out", 0.0);
  trial.in_bytes_per_second = told.value("in", 0.0);
  trial.lanes = told.value("lanes", std::size_t{0});
  trial.lanes_in_use = told.value("lanes_in_use", std::size_t{0});
  return trial;
}

}  // namespace fargpu::client::cli
