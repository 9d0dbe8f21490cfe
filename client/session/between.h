#pragma once
// Work of one host that needs what another one has: waits for events, copies. The stream that waits is parked at its
// worker, as for a function of the program, while this process goes between the two.

#include <cuda.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "client/base/job_thread.h"
#include "client/copy/program_copy.h"
#include "client/objects/context.h"
#include "client/objects/thread.h"
#include "links.h"

namespace fargpu::client {

class Session;
struct CopyPart;

/// Copies and waits go by a link between the two workers where there is one, and then this process has nothing to do
/// with them. Where there is none, a stream is parked, and contents come through here.
///
/// Threads: any. A stream is parked for work that was given to streams before, of whichever session, so that no two can
/// wait for each other.
class Between {
 public:
  /// `knowing`: the session that knows an address, or null.
  explicit Between(std::function<Session*(std::uint64_t)> knowing) : knowing_(std::move(knowing)) {}

  /// Where the sides of a copy lie; null for memory of the program.
  struct Sides {
    Session* source = nullptr;
    Session* target = nullptr;
  };

  /// The stream goes on when what the event of another session recorded last has happened.
  CUresult wait(Thread& thread, Stream& stream, const Event& event);
  /// A copy of which a side is of another session than the stream's: has its place in the stream, and no other.
  CUresult copy(Thread& thread, Stream& stream, const Copy& copy, Sides sides);
  /// A copy that is done when this returns. What must come before has been waited for.
  CUresult copy_now(Thread& thread, const Copy& copy, Sides sides);
  /// Whether the copy can be made; what copy() and copy_now() begin with.
  CUresult check(Thread& thread, const Copy& copy, Sides sides);
  /// Whether a side of a copy on a stream of `own` is pinned memory of another session, and has its time in the stream:
  /// it is written, or may be written until the stream gets there.
  bool has_its_time(const Session& own, const CopySide& side, bool written) const;
  /// Waits for all work of the session.
  CUresult finish(Thread& thread, Session& session);
  /// Waits for what is under way so far, of the session or of all: memory is about to go.
  void settle(const Session* session = nullptr);
  /// Streams of others go on that waited for it; the threads that made them wait have its loss as an error.
  void lost(const Session& session) noexcept;
  /// A worker says that a link is lost.
  void link_lost(const Calls& by, std::uint32_t number, const std::string& why) { links_.lost(by, number, why); }

  /// Bytes of copies from host to host that went directly, and through this process.
  std::uint64_t bytes_direct() const { return bytes_direct_; }
  std::uint64_t bytes_relayed() const { return bytes_relayed_; }

 private:
  struct Parked {
    Session* session = nullptr;  ///< the stream's
    std::uint64_t number = 0;    ///< by which its worker knows it
    std::uint32_t thread = 0;    ///< that made it wait
    std::set<const Session*> on;
    bool reached = false, passed = false;
  };
  CUresult park(Thread& thread, Stream& stream, std::set<const Session*> on, std::function<void()> reached,
                std::uint64_t& id);
  void note(std::uint64_t id, bool Parked::*what, CUresult result = CUDA_SUCCESS);
  void end(const Parked& parked) noexcept;
  CUresult perform(Thread& thread, const Copy& copy, Sides sides);
  void take_source(Copy& copy, std::shared_ptr<std::vector<std::byte>>& taken) const;
  Context* context_of(Session& session, const CopySide& side, Context* named);
  enum class Use {
    copies,
    reads,   ///< of a copy whose bytes go on to another session
    links,   ///< the side of copies by links that does not lead
    events,  ///< waits for them, which nothing else may come behind
  };
  Stream* hidden(Thread& thread, Context& context, Use use);
  JobThread& jobs(Session& session, Use use);
  CUresult run(Thread& thread, Stream& stream, const CopyShape& shape, const CopySide& source, const CopySide& target);
  CUresult settle(Thread& thread, Stream& stream);
  CUresult relay(Thread& thread, const Copy& copy, Stream& source, Stream& target);

  std::shared_ptr<Link> link_for(const Copy& copy, Sides sides);
  CUresult directly(Thread& thread, Stream& stream, const Copy& copy, Sides sides, Link& link);
  CUresult give_halves(Thread& thread, Stream& stream, Stream& other, Link& link, const CopyPart& part);
  CUresult wait_directly(Thread& thread, Stream& stream, const Event& event, Stream& witness, Link& link);

  bool pinned(const CopySide& side) const;

  const std::function<Session*(std::uint64_t)> knowing_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t next_ = 1;
  std::map<std::uint64_t, Parked> parked_;
  std::map<std::uint64_t, Sides> direct_;  // copies under way
  Links links_;
  std::atomic<std::uint64_t> bytes_direct_{0}, bytes_relayed_{0};
  std::mutex hiding_;  // never taken by what receives
  std::map<std::pair<Context*, Use>, Handle> hidden_;
  std::map<std::pair<Session*, Use>, std::unique_ptr<JobThread>> jobs_;
};

}  // namespace fargpu::client
