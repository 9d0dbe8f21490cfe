#pragma once
// What the session wants of its client: functions called, memory fetched, memory filled.

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "control.capnp.h"
#include "server/quota/host_budget.h"
#include "output.h"

namespace fargpu::server {

/// Used by the executor only. What a client answers unasked is a ProtocolError.
class ClientRequests {
 public:
  ClientRequests(Output& output, HostBudget& budget) : output_(output), budget_(budget) {}

  /// Has the client run the callback of this number, or a function that is part of a graph.
  void call(std::uint64_t number, CUresult result, std::function<void()> done);
  void call_part(std::uint64_t part, std::function<void()> done);
  /// The callback of this number is not called; only to a client that wants to hear that.
  void skip(std::uint64_t number, CUresult result);

  /// Pinned memory of the client, or memory that is part of a graph; fewer bytes come if the program has freed that.
  struct Wanted {
    std::uint64_t address = 0;
    std::uint64_t part = 0;
    std::uint64_t bytes = 0;
  };
  /// Fetches it when there is room for it here: its copy has returned success, so that it is not refused where room can
  /// come. One fetch of at most `bulk_bytes_max` goes on without room, so that it never waits for what the program does
  /// next. A larger one gets OUT_OF_MEMORY then.
  void fetch(const Wanted& wanted, std::function<void(CUresult, const std::vector<std::byte>&)> done);
  /// Fetches memory that is part of a graph. `take` puts the bytes, which come in pieces, from the beginning, where
  /// there is room for them; `done` hears how many came.
  void fetch_part(std::uint64_t part, std::uint64_t bytes,
                  std::function<void(std::uint64_t, std::span<const std::byte>)> take,
                  std::function<void(std::uint64_t)> done);
  /// Goes on with fetches that wait for room. Returns whether it did.
  bool poll() { return !waiting_.empty() && begin_waiting(); }

  /// Chunks of a transfer to the worker may come.
  struct Chunks {
    std::uint32_t transfer = 0;
    std::uint32_t chunks = 0;
    bool over = false;      ///< and no others
    bool in_order = false;  ///< behind all bytes that the client was sent
  };
  void want(const Chunks& wanted);
  /// An event has happened, or its work has failed, of which this query and earlier ones were told that it had not.
  void event_passed(std::uint64_t event, std::uint32_t query, bool failed);
  /// No more chunks of a transfer to the client come.
  void end_transfer(std::uint32_t transfer);

  /// Sends bytes for a host block of the client, from where they lie; `release` runs when they have left. `copy`: that
  /// the client gave this number; 0: none. The client counts what comes: returns the number of this one, from 1 on.
  std::uint64_t deliver(std::uint64_t address, std::span<const std::byte> bytes, Output::Release release,
                        std::uint32_t copy = 0);
  /// Nothing is delivered of a copy any more.
  void end_delivery(std::uint32_t copy);
  /// Sends the bytes of a part of a graph, as they are now.
  void deliver_part(std::uint64_t part, std::span<const std::byte> bytes);
  /// Nothing needs this part of the client any more; 0 is none.
  void release_part(std::uint64_t part);

  /// What the client was asked and has not answered, and what waits to be asked.
  std::size_t unanswered() const { return calls_.size() + fetches_.size() + waiting_.size(); }

  // What the client answers.
  void called(wire::CallbackDone::Reader answer);
  void fetched(wire::Pulled::Reader answer, std::span<const std::byte> bytes);

 private:
  struct Waiting {
    Wanted wanted;
    std::function<void(CUresult, const std::vector<std::byte>&)> done;
  };
  struct Fetch {
    std::uint64_t wanted = 0;
    std::uint64_t received = 0;
    std::function<void(std::uint64_t, std::span<const std::byte>)> take;
    std::function<void(std::uint64_t)> done;
  };
  bool begin_waiting();
  void keep(Waiting fetch, HostCharge charge);
  void ask(const Wanted& wanted, Fetch fetch);

  Output& output_;
  HostBudget& budget_;
  std::map<std::uint64_t, std::function<void()>> calls_;
  std::map<std::uint64_t, Fetch> fetches_;
  std::deque<Waiting> waiting_;  // for room
  std::size_t kept_ = 0;         // fetches whose bytes are kept here
  std::uint64_t next_fetch_ = 1;
  std::uint64_t next_part_call_ = 1;
  std::uint64_t deliveries_ = 0;
};

}  // namespace fargpu::server
