#pragma once
// Streams, contexts and events as the worker keeps them beside the driver's objects.

#include <cuda.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

namespace fargpu::server {

class DriverMemory;
class CopyMark;
class Staging;
struct ContextState;

/// The work that a stream was given before it was captured.
struct BeforeCapture {
  bool over = false;
  std::vector<std::function<void(CUresult)>> waiting;  ///< for its end
};

/// Work on a stream is counted when it is given to the driver; `passed` is how far the GPU is known to be.
struct StreamState {
  CUstream cuda = nullptr;
  ContextState* context = nullptr;
  std::uint64_t handle = 0;      ///< `legacy_stream` for a context's own, 0 for one that the client has destroyed
  std::uint64_t retirement = 0;  ///< the number of that one (Contexts::retire_stream)
  bool blocking = true;          ///< synchronises with the legacy stream
  bool apart = false;            ///< does not wait for what all of its context waits for
  unsigned number = 0;  ///< by which LaunchCrew divides streams: one for all that synchronise with the legacy stream
  std::uint64_t submitted = 0;
  std::uint64_t passed = 0;
  std::uint64_t looked_at = 0;  ///< as `submitted`, up to where its completion is being looked for
  std::uint64_t full = 0;  ///< holds back what comes (StreamOrder) while the driver has enough of it; 0 if it has not
  std::uint64_t last_item = 0;                    ///< the last work on it that is held back (StreamOrder); 0 for none
  std::uint64_t copy_mark_seen = 0;               ///< see ContextState::copy_marks_made
  std::shared_ptr<BeforeCapture> before_capture;  ///< of the last capture; null for none, or no work
  bool dirty() const { return submitted != passed; }
  std::uint64_t pending() const { return submitted - passed; }

  // What Turns knows of it.
  unsigned marks = 0;                  ///< events of its own that are still to pass
  std::chrono::nanoseconds marked{0};  ///< when the last was recorded
  bool unmarked = false;               ///< there is work behind that
  bool active = false;                 ///< it is not known to be idle
};

struct ContextState {
  CUcontext cuda = nullptr;
  std::uint32_t id = 0;
  int device = 0;
  bool primary = false;
  CUgreenCtx green = nullptr;  ///< the source of the conversion: it has streams only, the rest is the primary context's
  CUgreenCtx part = nullptr;   ///< the session's part of the device (partition.h), if this is the primary context
  CUcontext whole = nullptr;   ///< the driver's primary context then
  std::shared_ptr<DriverMemory> driver_memory;
  std::shared_ptr<Staging> staging;
  std::unique_ptr<StreamState> legacy;
  std::vector<StreamState*> streams;  ///< all of it, the legacy one first
  std::vector<CUevent> free_events;   ///< for completions
  /// A copy to the device that the program takes for done must not be overtaken by later work (TakenCopies).
  /// Its number, and whether it was on the legacy stream, which blocking streams do not overtake anyway.
  std::uint64_t copy_marks_made = 0;
  /// What stands behind the last of them; and behind earlier ones that somebody waits for.
  std::vector<std::shared_ptr<CopyMark>> copy_marks;
  bool copy_mark_on_legacy = false;
  std::uint64_t last_wait = 0;  ///< the last wait of the whole context that is held back (StreamOrder); 0 for none
};

}  // namespace fargpu::server
