#pragma once
// Where the session's device memory is: on its devices, or in the memory of the host while others have theirs there.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/worker/memory/device_memory.h"
#include "server/worker/base/device_range.h"
#include "server/worker/memory/evicted_contents.h"
#include "server/worker/memory/evicted_portion.h"
#include "control.capnp.h"
#include "protocol/channel.h"
#include "server/quota/host_budget.h"
#include "server/worker/call/blocking_calls.h"
#include "server/worker/objects/captures.h"
#include "server/worker/objects/contexts.h"
#include "server/worker/objects/handles.h"
#include "server/worker/order/completions.h"

namespace fargpu::server {

/// A word of the broker: memory is to leave its devices.
struct EvictOrder {
  std::uint64_t number = 0;
  std::vector<std::uint64_t> bytes;       ///< of each device, at least; none: all of them
  std::uint64_t host_bytes_max = 0;       ///< of the host's memory that may hold it
  std::uint64_t disk_bytes_max = 0;       ///< of the file, where that has no room
  Descriptor file;                        ///< none where nothing may be on disk
  std::chrono::milliseconds patience{0};  ///< for which work that was given may take
};

/// Room on devices that the session wants; by its devices.
struct RoomWish {
  std::uint64_t request = 0;
  std::vector<std::uint64_t> bytes;
  bool needed = false;  ///< its memory is away: it goes on only with this
};

/// What the broker hears.
struct ResidencyNews {
  using State = wire::Residency;
  State state = State::RESIDENT;
  std::vector<std::uint64_t> away;  ///< bytes of each device
  std::vector<std::uint64_t> rest;  ///< that has not left, and could
  std::uint64_t host_bytes = 0, disk_bytes = 0;
  std::string refusal;      ///< why it stays, though it was to leave
  bool busy = false;        ///< because it is at work
  std::uint64_t order = 0;  ///< number of the last order
};

/// Memory was away, and is back: since when it was what.
struct ResidencyReturn {
  using Clock = std::chrono::steady_clock;
  std::uint64_t bytes = 0;
  Clock::time_point leaving, away, waiting, returning;
};

struct ResidencyOptions {
  /// None: there is no broker to ask (tests), and memory that the driver has no room for is refused at once.
  std::function<void(const RoomWish&)> want;
  std::function<void(const ResidencyNews&)> tell;
  bool others_leave = false;  ///< the host evicts, so that others may make room
};

/// Memory leaves between two calls of the program, when everything that it gave is complete: as much as is wanted, and
/// later more perhaps. The next call that needs any of it has all of it come back, as there is room for one portion or
/// another: first what that call needs. A call is executed as soon as its memory is there. Kernels may use any, so that
/// they wait for all. So nothing can tell, but for the time that this takes. Addresses and the program's handles stay.
/// What others have too, memory that is mapped nowhere, arrays, and what the driver keeps by itself stay where they
/// are.
///
/// All on the executor, but for what `hear`s. While it `holds_calls`, none is executed that it does not admit, but for
/// questions.
class Residency {
 public:
  using State = ResidencyNews::State;
  /// `at_work`: why the session's memory may be in use, apart from streams with work; empty if it is not. `returned` is
  /// called on the executor.
  Residency(DriverTable& driver, Contexts& contexts, DeviceMemory& memory, Handles& handles, Completions& completions,
            const Captures& captures, BlockingCalls& blocking_calls, Waker& waker, std::optional<AccountPlace> place,
            std::size_t devices, ResidencyOptions options, std::function<std::string()> at_work,
            std::function<void(const ResidencyReturn&)> returned)
      : driver_(driver),
        contexts_(contexts),
        memory_(memory),
        handles_(handles),
        completions_(completions),
        captures_(captures),
        blocking_calls_(blocking_calls),
        waker_(waker),
        place_(std::move(place)),
        devices_(devices),
        options_(std::move(options)),
        at_work_(std::move(at_work)),
        returned_(std::move(returned)) {}
  Residency(const Residency&) = delete;
  Residency& operator=(const Residency&) = delete;

  // --- words of the broker, on any thread ---------------------------------------------------------------------------

  void hear(EvictOrder order);
  /// There may be room now for this wish; or there is nobody more that could make room.
  void hear_room(std::uint64_t request, bool made);
  /// Another broker is there, which does not know what this one has said.
  void hear_of_new_broker();

  // --- the executor's -----------------------------------------------------------------------------------------------

  /// Does what is due. Returns whether anything was done.
  bool poll();
  bool holds_calls() const { return state_ != State::RESIDENT; }
  /// Device memory that a call uses; nothing: it may use any.
  using Needs = std::optional<std::vector<DeviceRange>>;
  /// Whether the call that comes next may be executed now. If not, it waits, and its memory comes back first.
  bool admits(Needs needs);
  /// Whether it is on its devices: else a call that was executed now would find what is not there.
  bool there(const Needs& needs) const;
  /// What the host holds of a device's memory.
  std::uint64_t away_bytes(int device) const;
  /// When poll() has something to do if nothing else happens.
  Channel::Timeout due() const;
  /// Not empty: the memory is lost, and the session with it.
  const std::string& lost() const { return lost_; }

  /// What is wanted of a device where nobody knows how much the driver takes: about a context. It is not wasted where
  /// less is needed, as others find room there.
  static constexpr std::uint64_t room_for_the_driver = 512u << 20;
  /// Whether others may make room for memory that the driver has none for.
  bool may_wait() const { return options_.want && options_.others_leave && !no_room_; }
  /// What waited for room tries for the last time now, because there is none.
  bool last_try() const { return no_room_; }
  bool may_wait_for(const DeviceMemory::Shortage& shortage) const;
  /// Runs `job`, which tries again, when there may be room, and once more, when may_wait() is false, if there is none.
  void wait_for_room(const DeviceMemory::Shortage& shortage, std::function<void()> job);

 private:
  using Clock = std::chrono::steady_clock;
  struct Waiting {
    DeviceMemory::Shortage shortage;
    std::function<void()> job;
  };

  void take_words();
  void begin_to_leave(EvictOrder order);
  bool leave_when_idle();
  void leave();
  std::vector<DeviceMemory::Piece> pieces() const;
  EvictedStore* store_for(EvictedPortion& portion, std::uint64_t bytes, std::uint64_t store_bytes,
                          std::uint64_t all_bytes);
  bool find_place(EvictedPortion& portion, std::uint64_t store_bytes, std::uint64_t all_bytes);
  std::string no_room_for(std::uint64_t bytes) const;
  using Renamed = std::vector<std::pair<std::uint64_t, std::uint64_t>>;  // handles of the driver's, before and now
  void left(CUresult result, std::vector<DeviceMemory::Piece> gone, const Renamed& renamed);
  std::uint64_t part_bytes(int device) const;
  void stay(const std::string& why, bool busy = false);
  void forget(EvictedPortion& portion);
  void follow_work();
  void come_back();
  void return_next();
  EvictedPortion* next_to_return();
  CUresult place(EvictedPortion& portion);
  CUresult take_away(EvictedPortion& portion);
  CUresult move(DeviceMemory::Piece& piece, CUresult (DeviceMemory::*where)(DeviceMemory::Piece&));
  void arrived(EvictedPortion& portion, CUresult result);
  void lose(const EvictedPortion& portion, CUresult result);
  void end_return();
  void count_rest();
  void want_room();
  void serve_waiting(bool made);
  bool dirty() const;
  std::string error_text(CUresult result) const;
  std::string copy_error(CUresult result, const EvictedPortion& portion) const;
  void enter(State state, const std::string& refusal = "", bool busy = false);
  void follow_course(State next);

  DriverTable& driver_;
  Contexts& contexts_;
  DeviceMemory& memory_;
  Handles& handles_;
  Completions& completions_;
  const Captures& captures_;
  BlockingCalls& blocking_calls_;
  Waker& waker_;
  const std::optional<AccountPlace> place_;
  const std::size_t devices_;
  const ResidencyOptions options_;
  const std::function<std::string()> at_work_;
  const std::function<void(const ResidencyReturn&)> returned_;

  State state_ = State::RESIDENT;
  ResidencyReturn course_;  // of this time
  std::uint64_t order_number_ = 0;
  Clock::time_point deadline_{};  // of leaving
  EvictOrder leaving_by_;         // that it leaves by
  std::unique_ptr<EvictedPortion> leaving_;
  std::vector<EvictedPortion> portions_;    // that are away
  std::unique_ptr<EvictedInMemory> store_;  // of all of them; kept from one time to the next
  std::vector<std::uint64_t> rest_;         // of each device, as long as anything is away
  std::vector<std::uint64_t> missing_;      // of each device: for which there was no room when it was to come back
  bool any_back_ = false;                   // since then
  bool call_waits_ = false;
  Needs needs_;                     // of the call that waits
  CUresult failed_ = CUDA_SUCCESS;  // of work that was to complete first
  std::string lost_;

  std::vector<Waiting> waiting_;
  bool no_room_ = false;  // while those that wait try for the last time
  std::uint64_t requests_ = 0;
  std::optional<RoomWish> wish_;  // that is not answered
  Clock::time_point asked_{};
  std::optional<Clock::time_point> ask_again_;

  std::atomic<bool> heard_{false};  // there are words
  std::mutex mutex_;                // over them
  std::optional<EvictOrder> order_;
  std::optional<std::pair<std::uint64_t, bool>> room_;
  bool new_broker_ = false;
};

}  // namespace fargpu::server
