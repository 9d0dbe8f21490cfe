#include "pool.h"

#include <algorithm>
#include <set>
#include <utility>

#include "client/base/log.h"
#include "client/connect/pci_domains.h"
#include "client/memory/program_memory.h"
#include "session.h"

namespace fargpu::client {

constinit std::atomic<Pool*> Pool::of_process_{nullptr};

namespace {

// So that no two devices of a program are taken for one.
void separate_buses(std::vector<Facts*> hosts) {
  std::vector<std::vector<unsigned>> domains;
  const auto domain_of = [](const Device& device) {
    return static_cast<unsigned>(device.attribute(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID));
  };
  for (const Facts* const facts : hosts) {
    auto& of_host = domains.emplace_back();
    for (const Device& device : facts->devices) of_host.push_back(domain_of(device));
  }
  separate_domains(domains);
  for (std::size_t host = 0; host < hosts.size(); ++host)
    for (std::size_t i = 0; i < domains[host].size(); ++i)
      hosts[host]->devices[i].attributes[CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID] = static_cast<int>(domains[host][i]);
}

}  // namespace

Pool::Pool(std::vector<Host> hosts, const std::optional<std::string>& visible) {
  for (Host& host : hosts) hosts_.push_back(std::make_unique<Member>(std::move(host)));
  std::vector<Facts*> all;
  for (const auto& host : hosts_) all.push_back(&host->facts);
  separate_buses(all);
  // The number of a device at its worker becomes its number among all devices, until those that are seen are chosen.
  std::vector<unsigned> owners;
  std::set<int> peer_attributes;
  for (std::size_t host = 0; host < hosts_.size(); ++host) {
    const Facts& facts = hosts_[host]->facts;
    const int first = static_cast<int>(facts_.devices.size());
    if (host == 0 || facts.driver_version < facts_.driver_version) facts_.driver_version = facts.driver_version;
    facts_.module_loading_mode = facts.module_loading_mode;
    for (Device device : facts.devices) {
      device.worker_ordinal += first;
      facts_.devices.push_back(std::move(device));
      owners.push_back(static_cast<unsigned>(host));
    }
    for (const auto& [pair, peer] : facts.peers) {
      facts_.peers[{pair.first + first, pair.second + first}] = peer;
      for (const auto& [attribute, value] : peer.attributes) peer_attributes.insert(attribute);
    }
  }
  for (const int attribute :
       {CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED,
        CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED,
        CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED})
    peer_attributes.insert(attribute);
  Peer none;
  for (const int attribute : peer_attributes) none.attributes[attribute] = 0;
  for (std::size_t from = 0; from < owners.size(); ++from)
    for (std::size_t to = 0; to < owners.size(); ++to)
      if (owners[from] != owners[to]) facts_.peers[{static_cast<int>(from), static_cast<int>(to)}] = none;
  if (visible) select_devices(facts_, *visible);
  for (const Device& device : facts_.devices)
    owners_.push_back(owners[static_cast<std::size_t>(device.worker_ordinal)]);
}

Pool::~Pool() = default;

std::string Pool::names() const {
  std::string text;
  for (const auto& host : hosts_) text += (text.empty() ? "" : ", ") + host->name;
  return text;
}

CUcontext Pool::primary_context(CUdevice device) const {
  return handle_cast<CUcontext>(
      Handle(HandleKind::context, static_cast<std::uint32_t>(device) + 1, 1, host_of(device).value()));
}

std::optional<CUdevice> Pool::device_of_primary(CUcontext context) const {
  for (CUdevice device = 0; facts_.device(device); ++device)
    if (primary_context(device) == context) return device;
  return std::nullopt;
}

Session& Pool::session_of(CUdevice device) { return begin(owners_.at(static_cast<std::size_t>(device))); }

Session& Pool::first() {
  Session* const session = usual();
  return session ? *session : session_of(0);
}

Session* Pool::begun_of(CUdevice device) const {
  const auto number = static_cast<std::size_t>(device);
  return device >= 0 && number < owners_.size() ? begun(owners_[number]) : nullptr;
}

Session& Pool::begin(unsigned origin) {
  Member& host = *hosts_[origin];
  if (Session* const session = host.session.load(std::memory_order_acquire)) return *session;
  const std::lock_guard lock(host.beginning);
  if (Session* const session = host.session.load(std::memory_order_acquire)) return *session;
  if (host.failure) throw *host.failure;
  Place place{.origin = origin, .devices = facts_.devices};
  int first = 0;
  for (unsigned before = 0; before < origin; ++before) first += static_cast<int>(hosts_[before]->facts.devices.size());
  for (std::size_t i = 0; i < place.devices.size(); ++i) {
    int& ordinal = place.devices[i].worker_ordinal;
    ordinal = owners_[i] == origin ? ordinal - first : -1;
  }
  try {
    Session* const session = host.begin(place).release();
    DeviceWindows::add(session->terms.device_window);
    DeviceWindows::add(session->terms.driver_band);
    session->waits.heed([this, session] {
      bool held = false;
      for_each([&](const Session& other) { held = held || (&other != session && other.waits.held_for_program()); });
      return held;
    });
    host.session.store(session, std::memory_order_release);
    Session* none = nullptr;
    usual_.compare_exchange_strong(none, session);
    if (at_begin_) at_begin_(*session);
    return *session;
  } catch (const DialError& error) {
    log::error("{}. Every call to its devices returns CUDA_ERROR_DEVICE_UNAVAILABLE", error.what());
    host.failure = error;
    throw;
  }
}

Session* Pool::with_device_memory(std::uint64_t address) const {
  Session* found = nullptr;
  for_each([&](Session& session) {
    const Terms& terms = session.terms;
    if (terms.device_window.contains(address)) found = &session;
    if (found || !terms.driver_band.contains(address)) return;
    if (session.map.find(address)) found = &session;
  });
  return found;
}

Session* Pool::knowing(std::uint64_t address) const {
  Session* found = nullptr;
  for_each([&](Session& session) {
    if (!found && (session.terms.device_window.contains(address) || session.terms.host_window.contains(address) ||
                   session.map.find(address)))
      found = &session;
  });
  return found;
}

bool Pool::lose(const Session& session) {
  if (hosts_[session.terms.origin]->lost.exchange(true)) return false;
  Session* next = nullptr;
  for_each([&](Session& one) {
    if (!lost(one)) next = &one;
  });
  auto* before = const_cast<Session*>(&session);
  usual_.compare_exchange_strong(before, next);
  return true;
}

bool Pool::lost(const Session& session) const {
  return hosts_[session.terms.origin]->lost.load(std::memory_order_acquire);
}

}  // namespace fargpu::client
