#pragma once
// In a process with several sessions: which of them a call is for.

#include <cuda.h>

#include <cstdint>
#include <type_traits>

#include "client/base/life.h"
#include "client/objects/thread.h"
#include "protocol/handle.h"

namespace fargpu::client {

/// For the time of one call: it goes to the session of what it names, in a context there if its own is another one's.
/// What is said first decides; calls that name nothing stay with the current context. Costs a process with one session
/// no more than a pointer that is null.
class Route {
 public:
  Route() = default;
  /// Straight to a session.
  Route(Thread& thread, Session& session) : way_(open(thread)) { to(session); }
  Route(const Route&) = delete;
  Route& operator=(const Route&) = delete;
  ~Route() {
    if (way_) [[unlikely]]
      close();
  }

  /// Calls `name(*this)`, which says what the call names. An error is the call's.
  template <class Name>
  CUresult begin(Name&& name) noexcept {
    if (const CUresult bad = unavailable(); bad != CUDA_SUCCESS) return bad;
    try {
      way_ = open(Thread::current());
      name(*this);
      return outcome();
    } catch (...) {
      return failed();
    }
  }

  /// A session that is known.
  void to(Session& session);
  /// The default streams are the current context's, and so is a call that names one.
  void stream(CUstream stream);
  /// An event, a graph, a module and the like.
  void object(Handle handle);
  void context(CUcontext context);
  void device(CUdevice device);
  void location(const CUmemLocation* location) {
    if (location && location->type == CU_MEM_LOCATION_TYPE_DEVICE) device(location->id);
  }
  void address(std::uint64_t address);
  /// What the library or kernel is in the session that the call goes to.
  template <class T>
  T twin(T object) {
    if (const Handle handle = handle_of(object); handle) return handle_cast<T>(twin_of(handle));
    return object;
  }

 private:
  struct Way;

  static Way* open(Thread& thread);
  void close() noexcept;
  Handle twin_of(Handle handle);
  CUresult outcome();
  static CUresult failed() noexcept;

  Way* way_ = nullptr;
};

/// Of calls that name nothing by which they go anywhere.
struct NoRoute {};

}  // namespace fargpu::client
