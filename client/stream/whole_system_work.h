#pragma once
// Kernels with atomics or fences of the whole system (PTX ISA, "Scope").

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <set>

#include "client/base/counted.h"

namespace fargpu::client {

class Calls;
class Fences;
class StreamWaits;
class Thread;
struct Stream;

/// Such a kernel and the program mean to use the same memory at the same time. Where each has a copy of it, they take
/// turns instead: while such a kernel is under way, the program waits where it touches paged memory that the kernel may
/// have changed. What either does comes before or after all that the other does, and nothing is lost. A kernel that
/// itself waits for the program would wait for ever: the program goes on where the oldest one has not ended for
/// `patience`, and after some of these no longer waits in this session. Threads: any.
class WholeSystemWork {
 public:
  static constexpr std::chrono::seconds patience{3};
  static constexpr std::chrono::seconds patience_in_all{30};  ///< of one look, however many kernels come and go
  static constexpr unsigned looks_in_vain_max = 3;
  /// A launch waits so long for threads that wait for their turn: a loop of launches does not keep them for ever.
  static constexpr std::chrono::milliseconds courtesy{100};

  WholeSystemWork(Calls& calls, Fences& fences, const StreamWaits& stream_waits)
      : calls_(calls), fences_(fences), stream_waits_(stream_waits) {}

  /// A kernel of the program is one of these.
  void found() { exists_ = true; }
  bool exists() const { return exists_.load(); }
  /// Whether the GPU may be executing such a kernel.
  bool under_way() const;
  /// A graph has such a kernel: any graph may be the one.
  void captured() { in_graphs_ = true; }
  bool in_graphs() const { return in_graphs_.load(std::memory_order_relaxed); }

  /// From now on work of any kind is counted while it is given to a stream.
  void watch_giving() { watched_ = true; }
  /// A guard for the time in which work is given to a stream, from before changes of the program are sent.
  Counted giving() { return watched_.load(std::memory_order_relaxed) ? Counted(given_) : Counted(); }
  /// Whether some is being given, for which the program's changes may have been sent: it does not have what the program
  /// changes from now on, and may come before what the program fetches now.
  bool being_given() const { return given_.load() > 0; }

  /// A guard for the time in which a kernel is given to a stream. `whole_system`: the kernel has such operations, and
  /// is under way until the stream is past it.
  class Launch {
   public:
    Launch(WholeSystemWork& work, Thread& thread, Stream& stream, bool whole_system)
        : given_(work.giving()), thread_(thread), stream_(stream) {
      if (whole_system) [[unlikely]]
        begin(work);
    }
    ~Launch() {
      if (work_) [[unlikely]]
        end();
    }
    Launch(const Launch&) = delete;
    Launch& operator=(const Launch&) = delete;

   private:
    void begin(WholeSystemWork& work);
    void end() noexcept;

    const Counted given_;
    WholeSystemWork* work_ = nullptr;  // null: the kernel has no such operations
    Thread& thread_;
    Stream& stream_;
    std::uint64_t number_ = 0;
  };

  /// The program touches memory that such kernels may have changed.
  class Look {
   public:
    explicit Look(WholeSystemWork& work) : work_(work) {}
    ~Look();
    Look(const Look&) = delete;
    Look& operator=(const Look&) = delete;
    /// Whether none of these kernels is under way, or the program does not wait for them: on threads of our own, in a
    /// host function, and while a stream waits for a value in memory. To be asked under the lock that a launch takes
    /// for sending the program's changes; holds for as long as that lock is held.
    bool is_turn() { return !work_.exists() || in_vain_ || work_.is_turn(); }
    /// Returns when it may be the program's turn. Without that lock.
    void wait() { work_.wait(*this); }

   private:
    friend WholeSystemWork;
    WholeSystemWork& work_;
    bool counted_ = false;
    bool in_vain_ = false;
    std::chrono::steady_clock::time_point begun_{};
  };

 private:
  std::uint64_t begin();
  void end(std::uint64_t number) noexcept;
  bool is_turn();
  bool is_turn_locked() const;
  void wait(Look& look) noexcept;

  Calls& calls_;
  Fences& fences_;
  const StreamWaits& stream_waits_;
  std::atomic<bool> exists_{false};
  std::atomic<bool> in_graphs_{false};
  std::atomic<bool> watched_{false};
  std::atomic<unsigned> given_{0};
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::set<std::uint64_t> under_way_;
  std::uint64_t next_ = 1;
  std::uint64_t in_vain_ = 0;  // launches up to here are waited for no more
  unsigned looks_ = 0;         // that wait, or open pages
  unsigned looks_in_vain_ = 0;
};

}  // namespace fargpu::client
