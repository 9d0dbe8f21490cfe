#pragma once
// Streams and events as the client knows them: enough to answer queries and idle synchronisations without asking.

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "protocol/handle.h"

namespace fargpu::client {

struct Context;
struct Capture;
class Thread;

/// Work on a stream is numbered by the calls that submit it. Fields that grow are atomics; a reader that races with a
/// writer sees one of the orders in which the two calls could have happened. What tells of calls that were sent
/// (submitted, awaited, items) is written in their order, under the command stream's lock, and so needs no locked
/// instructions.
struct Stream {
  Handle handle;  ///< null for legacy streams
  /// Stays when the stream is gone, as contexts do: a thread may be in a call about it while another one destroys the
  /// context.
  Context* context = nullptr;
  unsigned flags = 0;
  std::atomic<int> priority{0};
  std::uint64_t id = 0;  ///< cuStreamGetId

  bool without_green = false;  ///< it is gone because its green context was destroyed

  std::atomic<std::uint64_t> submitted{0};  ///< last call that gave it work
  std::atomic<std::uint64_t> awaited{0};    ///< the last of these but for copies to the device that go by themselves
  std::atomic<std::uint64_t> completed{0};  ///< everything up to this call is done, or as good as done
  std::atomic<std::uint64_t> settled{0};    ///< and of this it is known that no copy is under way
  std::atomic<std::uint64_t> ordered{0};    ///< later work of the whole context comes behind this call
  std::atomic<std::uint64_t> items{0};      ///< pieces of work given to it
  std::atomic<std::uint64_t> retired{0};    ///< how many of them are known to be done
  std::atomic<std::uint64_t> fenced{0};     ///< up to which item a fence was asked for

  /// The capture that this stream takes part in, or null. Read without a lock; Captures holds the truth.
  std::atomic<Capture*> capture{nullptr};

  bool legacy() const { return !handle; }
  bool blocking() const { return legacy() || !(flags & CU_STREAM_NON_BLOCKING); }
  /// Value on the wire.
  std::uint64_t wire() const { return legacy() ? 1 : handle.value(); }
  /// Everything given to it is known to be done; for a legacy stream also what blocking ones were given.
  bool idle() const;
  /// Nothing of what it was given itself uses memory any more: it was waited for, copies to the device included.
  bool finished() const;
  /// Nothing may be missing but copies to the device whose bytes were taken, or are being read from pinned memory. Once
  /// they are read, and later work comes behind them, they are as good as done.
  bool as_good_as_idle() const;
  /// Its work may come behind work of the legacy stream, and so of all other blocking ones, that is not known to be
  /// done.
  bool behind_legacy() const;
  /// Notes that everything submitted before call `number` is done.
  void complete(std::uint64_t number, std::uint64_t items_then);
  /// Or as good as done.
  void pass(std::uint64_t number, std::uint64_t items_then);
  /// Its context is closed: nothing of what it was given comes back.
  void abandon();
  void reset();

 private:
  bool reached(std::uint64_t call) const;
};

struct Event {
  Handle handle;
  Context* context = nullptr;  ///< stays, as a stream's
  unsigned flags = 0;
  std::atomic<std::uint64_t> recorded{0};   ///< call that recorded it last; 0 for never
  std::atomic<std::uint64_t> completed{0};  ///< that record is known to have happened
  /// The newest query that the worker has answered with "not yet", or that was sent behind a record to be told, by its
  /// call's number; the worker tells when the record has happened. It only grows, so it also says of which record the
  /// query was, whichever thread notes its last.
  std::atomic<std::uint64_t> watched{0};
  /// The program has asked about the last record when its outcome was not known here: it will about the next one.
  std::atomic<bool> polled{false};
  /// The call's number of the last such query that the worker has told of, twice, and one more if the work has failed.
  std::atomic<std::uint64_t> told{0};
  std::atomic<Stream*> stream{nullptr};  ///< where it was recorded last; another one by now if the handle differs
  std::atomic<std::uint64_t> stream_handle{0};
  /// A graph's launches record it, or kernels do (launch attributes): only the worker knows of its records.
  std::atomic<bool> recorded_by_work{false};
  /// Identity of the capture in which it was recorded last; 0 if outside of any.
  std::atomic<std::uint64_t> capture{0};

  /// Other processes may record it too, and act at once on what this one does with it: every call about it goes to the
  /// worker and is awaited (semantics of order between processes).
  bool shared() const { return flags & CU_EVENT_INTERPROCESS; }
  bool complete() const;
  enum class Watch {
    none,     ///< only the worker knows whether it has happened
    waiting,  ///< it had not, by what has been read of the connection
    over,     ///< it has
  };
  /// The worker says that the record has happened of which this call asked, by the low bits of its number.
  void hear(std::uint32_t call, bool failed);
  /// What is known of this record without asking.
  Watch watch(std::uint64_t record) const;
  /// The stream it was recorded on last, while that lives.
  Stream* recorded_on() const;
  void reset();
};

}  // namespace fargpu::client
