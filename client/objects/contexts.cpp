#include "contexts.h"

namespace fargpu::client {

Contexts::Contexts(std::size_t devices, Session& session, Calls& calls, HandleMap<Stream>& streams, unsigned origin)
    : session_(session), calls_(calls), streams_(streams), contexts_(HandleKind::context, origin, /*kept=*/true) {
  for (std::size_t device = 0; device < devices; ++device) {
    Context* const context = make(static_cast<int>(device), 0);
    context->primary = true;
    contexts_.publish(context->handle);
    primaries_.push_back(context);
  }
}

Context* Contexts::make(int device, unsigned flags) {
  const auto [handle, context] = contexts_.create();
  if (!context) return nullptr;
  context->session = &session_;
  context->calls = &calls_;
  context->handle = handle;
  context->device = device;
  context->flags = flags;
  return context;
}

void Contexts::opened(Context& context) {
  contexts_.for_each([&](Handle, const Context& other) {
    if (other.active && &other != &context) several_ = true;
  });
  context.failure = CUDA_SUCCESS;
  context.legacy.id = context.number << 32 | 1;
  context.active = true;
  if (!context.primary) contexts_.publish(context.handle);
}

void Contexts::closed(Context& context) {
  context.legacy.abandon();
  unsigned others = 0;
  contexts_.for_each([&](Handle, const Context& other) { others += other.active && &other != &context; });
  if (others < 2) several_ = false;
  if (!context.primary) contexts_.erase(context.handle);
}

std::set<int> Contexts::devices_in_use() {
  std::set<int> devices;
  contexts_.for_each([&](Handle, Context& context) {
    if (context.active) devices.insert(context.device);
  });
  return devices;
}

std::vector<Context*> Contexts::greens(const Context& primary) {
  std::vector<Context*> found;
  if (primary.primary) {
    contexts_.for_each([&](Handle, Context& context) {
      if (context.green && context.active && context.device == primary.device) found.push_back(&context);
    });
  }
  return found;
}

Context* Contexts::any_active() {
  Context* found = nullptr;
  contexts_.for_each([&](Handle, Context& context) {
    if (context.active && !context.green && (!found || context.primary)) found = &context;
  });
  return found;
}

Context* Contexts::heir_of(const Context& closing) {
  const auto fitness = [&](const Context& context) {
    return 2 * (context.failure == CUDA_SUCCESS) + (context.device == closing.device);
  };
  Context* found = nullptr;
  for_active([&](Context& context) {
    if (context.green || &context == &closing) return;
    if (!found || fitness(context) > fitness(*found)) found = &context;
  });
  return found;
}

bool Contexts::idle() {
  bool idle = true;
  contexts_.for_each([&](Handle, Context& context) { idle = idle && (!context.active || this->idle(context)); });
  return idle;
}

bool Contexts::quiet() {
  bool quiet = idle();
  for_active([&](const Context& context) { quiet = quiet && !context.own_work; });
  return quiet;
}

// In this order: a call's number reaches its streams under the lock under which it reaches their context, and a
// stream's work counts as orphaned before the stream is not to be found any more.
bool Contexts::idle(Context& context) {
  const std::uint64_t submitted = context.submitted.load();
  if (submitted <= context.completed.load()) return true;
  bool finished = context.legacy.finished();
  streams_.for_each([&](Handle, Stream& stream) {
    if (stream.context == &context && !stream.finished()) finished = false;
  });
  if (!finished || context.orphaned.load() > context.completed.load()) return false;
  raise(context.completed, submitted);
  return true;
}

void Contexts::fail(int device, CUresult result) {
  contexts_.for_each([&](Handle, Context& context) {
    CUresult none = CUDA_SUCCESS;
    if (context.device == device && context.active) context.failure.compare_exchange_strong(none, result);
  });
}

bool Contexts::lives(std::uint32_t id) {
  bool found = id == 0;
  contexts_.for_each([&](Handle handle, const Context& context) { found |= handle.id() == id && context.active; });
  return found;
}

void Contexts::fail_all(CUresult result) {
  contexts_.for_each([&](Handle, Context& context) { context.failure = result; });
}

void Contexts::fail_with(std::uint32_t id, CUresult result) {
  contexts_.for_each([&](Handle handle, Context& context) {
    if (handle.id() == id) fail(context.device, result);
  });
}

}  // namespace fargpu::client
