#pragma once
// The hosts of a program that has devices of several.

#include <cuda.h>

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "between.h"
#include "client/connect/control_connection.h"
#include "client/connect/facts.h"
#include "place.h"
#include "protocol/handle.h"
#include "twins.h"

namespace fargpu::client {

class Session;

/// Devices are numbered across hosts, and what a program asks of a device before it uses it is answered from what the
/// hosts told with the lease. A session begins when one of its devices is first used. Threads: any.
class Pool {
 public:
  static constexpr std::size_t hosts_max = Handle::origin_max + 1;

  struct Host {
    std::string name;                                             ///< for messages
    Facts facts;                                                  ///< of the devices that the lease has there
    std::function<std::unique_ptr<Session>(const Place&)> begin;  ///< throws DialError
    std::unique_ptr<ControlConnection> lease = nullptr;           ///< holds it, if this process does
  };
  /// The process's; null for a program with one session. Set by Process.
  static Pool* of_process() { return of_process_.load(std::memory_order_acquire); }
  static void set_of_process(Pool* pool) { of_process_.store(pool, std::memory_order_release); }

  /// `visible`: CUDA_VISIBLE_DEVICES, if it is set.
  Pool(std::vector<Host> hosts, const std::optional<std::string>& visible);
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool();

  /// Facts of all devices that the program sees.
  const Facts& facts() const { return facts_; }
  std::string names() const;
  /// The number of the host that a device is of, which is that of its session; nothing for what is no device.
  std::optional<unsigned> host_of(CUdevice device) const {
    if (!facts_.device(device)) return std::nullopt;
    return owners_[static_cast<std::size_t>(device)];
  }
  /// The handle of a device's primary context, which is the same before and after the session begins: a session's table
  /// gives its first handles to these.
  CUcontext primary_context(CUdevice device) const;
  /// The device that a handle is the primary context of; nothing for all other handles.
  std::optional<CUdevice> device_of_primary(CUcontext context) const;
  /// The session of a device that the program sees. Begins it, once; throws DialError.
  Session& session_of(CUdevice device);
  /// What is done with each session that has begun, before calls find it.
  void at_begin(std::function<void(Session&)> action) { at_begin_ = std::move(action); }
  /// For calls of threads without a context: one that has begun and is not lost; null if there is none.
  Session* usual() const { return usual_.load(std::memory_order_acquire); }
  /// The usual one; where there is none, the session of device 0 begins. Throws as above.
  Session& first();
  /// Null if it has not begun.
  Session* begun(unsigned origin) const {
    return origin < hosts_.size() ? hosts_[origin]->session.load(std::memory_order_acquire) : nullptr;
  }
  /// The session that this device has begun, or null.
  Session* begun_of(CUdevice device) const;
  /// In whose device memory the address lies; null for memory of the host, and all else.
  Session* with_device_memory(std::uint64_t address) const;
  /// Whether it lies in device memory of another session than this one.
  bool elsewhere(const Session& session, std::uint64_t address) const {
    const Session* const holder = with_device_memory(address);
    return holder && holder != &session;
  }
  /// That knows the address, as memory of whatever kind; or null.
  Session* knowing(std::uint64_t address) const;
  template <class Action>
  void for_each(Action&& action) const {
    for (const auto& host : hosts_)
      if (Session* const session = host->session.load(std::memory_order_acquire)) action(*session);
  }

  /// The session is lost: returns whether it was not before.
  bool lose(const Session& session);
  bool lost(const Session& session) const;

  Twins twins;
  Between between{[this](std::uint64_t address) { return knowing(address); }};

 private:
  struct Member : Host {
    explicit Member(Host host) : Host(std::move(host)) {}
    std::mutex beginning;
    std::optional<DialError> failure;
    std::atomic<Session*> session{nullptr};  // never deleted
    std::atomic<bool> lost{false};
  };
  Session& begin(unsigned origin);

  static std::atomic<Pool*> of_process_;
  std::function<void(Session&)> at_begin_;
  std::atomic<Session*> usual_{nullptr};

  std::vector<std::unique_ptr<Member>> hosts_;
  Facts facts_;
  std::vector<unsigned> owners_;  // of each device the host
};

}  // namespace fargpu::client
