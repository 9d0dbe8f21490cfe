#include "route.h"

#include <utility>
#include <vector>

#include "client/base/log.h"
#include "client/connect/dial_error.h"
#include "pool.h"
#include "session.h"

namespace fargpu::client {

struct Route::Way {
  Thread& thread;
  bool decided = false, changed = false;
  CUresult error = CUDA_SUCCESS;
  // The thread's own meanwhile.
  std::vector<Context*> contexts;
  Session* session = nullptr;
  Calls* calls = nullptr;

  // Null while the calls of the thread would go to the first session, and none has begun that is not lost.
  Session* current() const {
    if (const Context* const context = thread.context()) return context->session;
    return thread.session ? thread.session : Pool::of_process()->usual();
  }
  void put(std::vector<Context*> other) {
    contexts = std::exchange(thread.contexts(), std::move(other));
    session = thread.session;
    calls = thread.calls;
    changed = true;
  }
  void go(Context& context) {
    decided = true;
    if (context.session != current() || !thread.context()) put({&context});
  }
  void go(Session& other) {
    decided = true;
    if (&other == current()) return;
    Context* const context = other.contexts.any_active();
    put(context ? std::vector<Context*>{context} : std::vector<Context*>{});
    thread.session = &other;
    thread.calls = &other.calls;
  }
};

Route::Way* Route::open(Thread& thread) { return new Way{thread}; }

void Route::close() noexcept {
  if (way_->changed) {
    way_->thread.contexts() = std::move(way_->contexts);
    way_->thread.session = way_->session;
    way_->thread.calls = way_->calls;
  }
  delete way_;
}

void Route::to(Session& session) { way_->go(session); }

void Route::stream(CUstream stream) {
  if (way_->decided) return;
  if (stream == nullptr || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD) {
    way_->decided = way_->thread.context() != nullptr;
    return;
  }
  way_->decided = true;
  const Handle handle = handle_of(stream);
  Session* const session = Pool::of_process()->begun(handle.origin());
  const Stream* const found = session ? session->streams.find(handle) : nullptr;
  if (found && found->context->session != way_->current()) way_->go(*found->context);
}

void Route::object(Handle handle) {
  if (way_->decided || !handle || !handle.well_formed(handle.kind())) return;
  Session* const session = Pool::of_process()->begun(handle.origin());
  if (!session || session == way_->current()) {
    way_->decided = session != nullptr;
    return;
  }
  Context* context = nullptr;
  if (handle.kind() == HandleKind::event) {
    if (const Event* const event = session->events.find(handle)) context = event->context;
  } else if (handle.kind() == HandleKind::module) {
    if (const auto module = session->functions.module(handle)) context = session->contexts.find_id(module->context);
  } else if (handle.kind() == HandleKind::function) {
    if (const Function* const function = session->functions.find(handle_cast<CUfunction>(handle)))
      context = session->contexts.find_id(function->context);
  }
  if (context && context->active) way_->go(*context);
  else way_->go(*session);
}

void Route::context(CUcontext context) {
  if (way_->decided || !context) return;
  Session* const session = Pool::of_process()->begun(handle_of(context).origin());
  Context* const found = session ? session->contexts.find(context) : nullptr;
  if (found && found->session != way_->current()) way_->go(*found);
  way_->decided = found != nullptr;
}

void Route::device(CUdevice device) {
  if (way_->decided) return;
  const Pool& pool = *Pool::of_process();
  if (!pool.facts().device(device)) return;
  way_->go(Pool::of_process()->session_of(device));
}

void Route::address(std::uint64_t address) {
  if (way_->decided || address == 0) return;
  Session* const session = Pool::of_process()->knowing(address);
  if (!session || session == way_->current()) {
    way_->decided = session != nullptr;
    return;
  }
  const auto region = session->map.find(address);
  if (region && region->context && region->context->active) way_->go(*region->context);
  else way_->go(*session);
}

Handle Route::twin_of(Handle handle) {
  const bool kernel = handle.well_formed(HandleKind::kernel);
  if (way_->error != CUDA_SUCCESS || (!kernel && !handle.well_formed(HandleKind::library))) return handle;
  Pool& pool = *Pool::of_process();
  Session* const owner = pool.begun(handle.origin());
  if (!owner) return handle;
  Session* const session = way_->decided || way_->thread.context() || way_->thread.session ? way_->current() : nullptr;
  if (!session) way_->go(*owner);
  if (!session || session == owner) return handle;
  way_->error = kernel ? pool.twins.twin_kernel(way_->thread, *session, *owner, handle)
                       : pool.twins.twin_library(way_->thread, *session, handle);
  return handle;
}

// A session that is lost serves no call.
CUresult Route::outcome() {
  if (way_->error != CUDA_SUCCESS) return way_->error;
  const Session* const session = way_->current();
  return session && Pool::of_process()->lost(*session) ? CUDA_ERROR_DEVICE_UNAVAILABLE : CUDA_SUCCESS;
}

CUresult Route::failed() noexcept {
  try {
    throw;
  } catch (const DialError&) {
    return CUDA_ERROR_DEVICE_UNAVAILABLE;  // the line about it has been written
  } catch (const std::bad_alloc&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    log::error("{}", error.what());
  } catch (...) {}
  return CUDA_ERROR_DEVICE_UNAVAILABLE;
}

}  // namespace fargpu::client
