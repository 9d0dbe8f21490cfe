#include "config.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <thread>

#include "cuda_facts.h"
#include "environment.h"
#include "protocol/driver_variables.h"
#include "protocol/limits.h"
#include "rdma_options.h"

namespace fargpu::client {
namespace {

constexpr long spin_us_max = 1'000'000;
constexpr long spin_us_usual = 20'000;  // as long as most steps of a program take

const char* variable(const char* name) {
  const char* value = environment_variable(name);
  return value ? value : "";
}

template <class Number>
bool parse_number(const std::string& text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc{} && end == text.data() + text.size();
}

Config read() {
  Config c;
  c.pool = variable("FARGPU_POOL");
  if (!c.pool.empty() && c.pool != "none") c.hosts = parse_pool(c.pool, c.pool_error);

  c.driver_version = toolkit_version;
  if (const std::string wanted = variable("FARGPU_DRIVER_VERSION"); !wanted.empty()) {
    int version = 0;
    if (!parse_number(wanted, version) || version < 11000 || version > toolkit_version) {
      c.number_error = "FARGPU_DRIVER_VERSION is '" + wanted + "'; give a CUDA version from 11000 to " +
                       std::to_string(toolkit_version) + ", for example 12080";
    } else {
      c.driver_version = version;
    }
  }

  c.lease = read_lease_options(c.number_error);
  if (const char* visible = environment_variable("CUDA_VISIBLE_DEVICES")) {
    c.visible_set = true;
    c.visible_devices = visible;
  }
  // As the driver does by itself. Where few processors are, others need this one.
  long spin_us = std::thread::hardware_concurrency() >= 4 ? spin_us_usual : 0;
  if (const std::string wanted = variable("FARGPU_SPIN_US"); !wanted.empty()) {
    if (!parse_number(wanted, spin_us) || spin_us < 0 || spin_us > spin_us_max)
      c.number_error = "FARGPU_SPIN_US is '" + wanted + "'; give microseconds from 0 to " + std::to_string(spin_us_max);
  }
  c.spin = std::chrono::microseconds(spin_us);
  const std::string transport = variable("FARGPU_TRANSPORT");
  if (transport == "tcp") c.transport = Transport::tcp;
  else if (transport == "shm") c.transport = Transport::shm;
  else if (transport == "rdma") c.transport = Transport::rdma;
  else if (!transport.empty() && transport != "auto")
    c.number_error = "FARGPU_TRANSPORT is '" + transport + "'; use tcp, shm, rdma or auto";
  (void)read_rdma_options(c.number_error);
  // Each takes a processor here and one at the host.
  c.lanes = std::clamp(std::thread::hardware_concurrency() / 2, 1u, 8u);
  if (const std::string wanted = variable("FARGPU_LANES"); !wanted.empty()) {
    c.lanes_fixed = true;
    if (!parse_number(wanted, c.lanes) || c.lanes > limits::lanes_max)
      c.number_error = "FARGPU_LANES is '" + wanted + "'; give a number of connections from 0 to " +
                       std::to_string(limits::lanes_max);
  }
  const std::string compress = variable("FARGPU_COMPRESS");
  if (compress.empty() || compress == "auto") c.compression = Compression::automatic;
  else if (compress == "on") c.compression = Compression::always;
  else if (compress != "off") c.number_error = "FARGPU_COMPRESS is '" + compress + "'; use auto, on or off";
  const std::string contents = variable("FARGPU_CONTENT_CACHE");
  if (contents.empty()) c.content_cache = ContentCache::usual;
  else if (contents == "auto") c.content_cache = ContentCache::automatic;
  else if (contents == "on") c.content_cache = ContentCache::always;
  else if (contents != "off") c.number_error = "FARGPU_CONTENT_CACHE is '" + contents + "'; use auto, on or off";
  c.launch_blocking = std::string(variable("CUDA_LAUNCH_BLOCKING")) == "1";
  for (const char* name : driver_variables)
    if (const char* value = environment_variable(name)) c.cuda_environment.emplace_back(name, value);
  return c;
}

}  // namespace

std::vector<PoolHost> parse_pool(const std::string& text, std::string& error, const char* source) {
  std::vector<PoolHost> hosts;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t comma = std::min(text.find(',', begin), text.size());
    std::string item = text.substr(begin, comma - begin);
    begin = comma + 1;
    PoolHost host;
    if (item.starts_with("tcp://")) host.transport = PoolHost::Transport::tcp;
    if (item.starts_with("tls://")) host.transport = PoolHost::Transport::tls;
    if (item.starts_with("rdma://")) host.transport = PoolHost::Transport::rdma;
    if (host.transport != PoolHost::Transport::usual) item.erase(0, item.find("//") + 2);
    const auto complain = [&](const std::string& why) {
      error =
          std::string(source) + " is '" + text + "': " + why + "; write host[:port][,host[:port]...], or unix:/path";
      hosts.clear();
    };
    if (item.starts_with("unix:")) {
      PoolHost host;
      host.socket = item.substr(5);
      // Of sockaddr_un, with a zero byte.
      if (host.socket.size() < 2 || host.socket.size() > 107 ||
          (host.socket.front() != '/' && host.socket.front() != '@')) {
        complain("'" + item + "' names no Unix socket by its whole path");
        return hosts;
      }
      hosts.push_back(std::move(host));
      continue;
    }
    if (const auto at = item.find_first_of(" \t\n;"); at != std::string::npos) {
      complain(std::string("there is a ") + (item[at] == ';' ? "semicolon" : "space") + " in '" + item +
               "'; hosts are separated by commas alone");
      return hosts;
    }
    if (item.find("://") != std::string::npos) {
      complain("'" + item.substr(0, item.find("://")) + "' is no transport that this version knows");
      return hosts;
    }
    std::string port;             // with its colon; empty if there is none
    if (item.starts_with('[')) {  // IPv6 literal
      const std::size_t close = item.find(']');
      if (close == std::string::npos) {
        complain("'" + item + "' lacks the closing bracket");
        return hosts;
      }
      host.host = item.substr(1, close - 1);
      if (close + 1 < item.size()) {
        if (item[close + 1] != ':') {
          complain("'" + item + "' has text after the bracket");
          return hosts;
        }
        port = item.substr(close + 1);
      }
    } else {
      const std::size_t colon = std::min(item.find(':'), item.size());
      host.host = item.substr(0, colon);
      port = item.substr(colon);
      if (port.find(':', 1) != std::string::npos) {
        complain("'" + item + "' has several colons; write an IPv6 address in brackets");
        return hosts;
      }
    }
    if (host.host.empty()) {
      complain("a host name is missing");
      return hosts;
    }
    if (!port.empty() && (!parse_number(port.substr(1), host.port) || host.port == 0)) {
      complain("'" + port.substr(1) + "' is no port");
      return hosts;
    }
    hosts.push_back(std::move(host));
  }
  return hosts;
}

namespace {

// None is ever destroyed: late calls may still ask.
std::atomic<const Config*>& current() {
  static std::atomic<const Config*> instance{new Config(read())};
  return instance;
}

}  // namespace

const Config& config() { return *current().load(std::memory_order_acquire); }

void read_config_again() {
  [[maybe_unused]] static const Config* before = nullptr;  // may still be in use
  before = current().exchange(new Config(read()));
}

}  // namespace fargpu::client
