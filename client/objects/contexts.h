#pragma once
// The contexts of a session.

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <set>
#include <vector>

#include "client/base/handle_map.h"
#include "context.h"

namespace fargpu::client {

/// A table: the worker is told of contexts by Session, which opens and closes them. Threads: any.
class Contexts {
 public:
  /// Has the primary contexts of so many devices, none of them active. `session` and `calls` are those of every
  /// context, `streams` has the streams of all, `origin` is that of all their handles.
  Contexts(std::size_t devices, Session& session, Calls& calls, HandleMap<Stream>& streams, unsigned origin = 0);

  /// The primary context of a device, active or not.
  Context& primary(int device) { return *primaries_[static_cast<std::size_t>(device)]; }
  /// The context of a live handle (a primary one need not be active), or null.
  Context* find(CUcontext context) { return contexts_.find(handle_of(context)); }
  Context* find_id(std::uint32_t id) { return contexts_.find_id(id); }
  /// Whether a call of this context on the wire (0: of none) is of one that lives.
  bool lives(std::uint32_t id);
  /// Whether it was a context and is destroyed.
  bool was(CUcontext context) { return contexts_.was(handle_of(context)); }
  /// The context that memory, events and code of this one belong to: itself, but for green ones.
  Context& home(Context& context) { return context.green ? primary(context.device) : context; }
  /// The green contexts of a primary context; none of others.
  std::vector<Context*> greens(const Context& primary);
  /// The devices that contexts are open on.
  std::set<int> devices_in_use();
  /// Whether there are two: what the worker puts before all later work of a context is not before that of another one.
  bool several() const { return several_.load(std::memory_order_relaxed); }
  template <class Act>
  void for_active(Act&& act) {
    contexts_.for_each([&](Handle, Context& context) {
      if (context.active) act(context);
    });
  }
  /// An active one, or null if there is none.
  Context* any_active();
  /// The one that takes over what outlives `closing`: one that has not failed, and of its device, if possible. Null if
  /// no other one is active.
  Context* heir_of(const Context& closing);
  /// Nothing is under way in any context, as far as is known without asking. Programs wait for streams more often than
  /// for a context: where the context as a whole is not known to be idle, each of its streams is looked at.
  bool idle();
  /// idle(), and nothing is under way that fargpu itself has given.
  bool quiet();

  /// A created (not primary) context, not to be found yet. Null if there are too many.
  Context* make(int device, unsigned flags);
  /// It could not be opened. A primary one stays.
  void give_up(const Context& context) {
    if (!context.primary) contexts_.give_up(context.handle);
  }
  void opened(Context& context);
  void closed(Context& context);

  /// A kernel of the device left an error behind: all contexts on it have it, as on NVIDIA's driver.
  void fail(int device, CUresult result);
  /// Nothing is served in any context any more.
  void fail_all(CUresult result);
  /// Fails all contexts on the device of the context that has this number on the wire, if it lives.
  void fail_with(std::uint32_t id, CUresult result);

  /// Held while contexts are opened and closed, and by what must find them as they are.
  std::recursive_mutex& mutex() { return mutex_; }

 private:
  bool idle(Context& context);

  Session& session_;
  Calls& calls_;
  HandleMap<Stream>& streams_;
  std::recursive_mutex mutex_;  // destructors of context-local values may call back
  HandleMap<Context> contexts_;
  std::deque<Context*> primaries_;
  std::atomic<bool> several_{false};
};

}  // namespace fargpu::client
