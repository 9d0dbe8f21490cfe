#pragma once
// Learning when the GPU is done with something, without waiting for it.

#include <cuda.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <unordered_map>
#include <vector>

#include "driver_table.h"
#include "streams.h"

namespace fargpu::server {

/// Records an event at the present end of a stream and calls back when it has fired, from poll(). Used by the executor only.
class Completions {
 public:
  using Done = std::function<void(CUresult)>;

  /// What a completion does. Deliveries send what the client is owed; signals tell it of the completion. No signal is given before
  /// every delivery that is complete at that time, so that a client that was told finds its bytes.
  enum class Kind { delivery, signal };

  /// `passed` hears of every event of ours that has fired, before what it stands for is called back.
  Completions(DriverTable& driver, std::function<void(CUevent)> passed) : driver_(driver), passed_(std::move(passed)) {}

  /// `done` gets the stream's result once everything submitted to it so far is complete. The stream must not be capturing, and its
  /// context must be current.
  void after(StreamState& stream, Kind kind, Done done);
  /// The same for an event of the program's own, which must live until then.
  void after_event(CUevent event, ContextState& context, Done done);
  /// Calls `done` at the next poll.
  void soon(Kind kind, CUresult result, Done done);

  /// Calls back what is complete. Returns whether anything was.
  bool poll();
  bool empty() const { return queues_.empty() && events_.empty() && soon_.empty(); }

  /// The stream or context is gone: what waited for it is called back with this result.
  void abandon(StreamState& stream, CUresult result);
  void abandon(ContextState& context, CUresult result);

 private:
  struct Entry {
    CUevent event = nullptr;
    std::uint64_t submitted = 0;
    Kind kind = Kind::signal;
    Done done;
  };
  struct EventEntry {
    CUevent event = nullptr;
    ContextState* context = nullptr;
    Done done;
  };
  struct Ready {
    CUresult result;
    Done done;
  };

  CUresult query(CUevent event);
  CUresult take_event(ContextState& context, CUevent& event);
  bool sweep(Kind wanted, std::vector<Ready>& ready);

  DriverTable& driver_;
  const std::function<void(CUevent)> passed_;
  std::unordered_map<StreamState*, std::deque<Entry>> queues_;  // streams with something to wait for
  std::vector<EventEntry> events_;
  std::vector<std::pair<Kind, Ready>> soon_;
};

}  // namespace fargpu::server
