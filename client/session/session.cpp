#include "session.h"

#include <sys/prctl.h>

#include <algorithm>

#include "calls_context.capnp.h"
#include "calls_stream.capnp.h"
#include "cuda_facts.h"
#include "client/base/log.h"
#include "operations.capnp.h"
#include "client/call/waiting_prints.h"
#include "process.h"
#include "protocol/errors.h"
#include "protocol/text.h"
#include "client/call/remote_call.h"
#include "client/base/threads.h"

namespace fargpu::client {
namespace {

// On threads of ours, where nothing may be thrown. Even a reason may want memory that there is not: then one does that needs none.
void lose_for(Session& session, const char* why, const char* detail = "") noexcept {
  try {
    process().lose_session(session, std::string(why) + detail);
  } catch (const std::exception&) {
    process().lose_session(session, "out of memory");
  }
}

// The connection may be lost, or memory run out, in the middle of it.
void answer_aside(Session& session, std::function<void()> answer) {
  session.answers().run([&session, answer = std::move(answer)] {
    try {
      answer();
    } catch (const std::exception& error) {
      lose_for(session, error.what());
    }
  });
}

}  // namespace

Session::Session(std::unique_ptr<Channel> channel, Terms terms, std::chrono::nanoseconds spin)
    : channel_(std::move(channel)),
      terms_(std::move(terms)),
      receiver_(*channel_, *this, spin),
      lanes_(terms_.lanes, terms_.open_lane, terms_.compression),
      commands_(
          *channel_, [this] { return receiver_.confirmed(); }, [this] { wake_service(); }, terms_.compression),
      device_memory_(*this, terms_.device_window.base, terms_.device_window.bytes),
      host_memory_(*this, terms_.host_window.base, terms_.host_window.bytes),
      managed_(*this, terms_.device_window, terms_.driver_band),
      peers_(*this),
      shared_memory_(*this),
      fences_(*this),
      callbacks_([this](std::uint64_t number) { function_done(number); }),
      stream_waits_([this](std::uint64_t number) { function_done(number); }),
      liveness_(
          terms_.silence,
          {.heard = [this] { return receiver_.confirmed(); }, .beat = [this] { return beat(); }, .silent = [this] { lose_silent(); }}) {
  for (std::size_t device = 0; device < terms_.facts.devices.size(); ++device) {
    const auto [handle, context] = contexts_.create();
    context->handle = handle;
    context->device = static_cast<int>(device);
    context->primary = true;
    contexts_.publish(handle);
    primaries_.push_back(context);
  }
}

void Session::start() {
  start_thread("fargpu-service", [this] { serve(); });
  liveness_.start();
}

bool Session::worker_ordinal(CUdevice device, int& ordinal) const {
  const Device* const found = terms_.facts.device(device);
  if (found) ordinal = found->worker_ordinal;
  return found != nullptr;
}

CUdevice Session::client_ordinal(int worker_ordinal) const {
  for (std::size_t i = 0; i < terms_.facts.devices.size(); ++i)
    if (terms_.facts.devices[i].worker_ordinal == worker_ordinal) return static_cast<CUdevice>(i);
  return -1;
}

void Session::add_reservation(std::uint64_t base, std::uint64_t bytes) {
  const std::lock_guard lock(reservation_mutex_);
  reservations_[base] = bytes;
}

bool Session::reserved(std::uint64_t address, std::uint64_t bytes) const {
  const std::lock_guard lock(reservation_mutex_);
  auto it = reservations_.upper_bound(address);
  if (it == reservations_.begin()) return false;
  --it;
  const std::uint64_t offset = address - it->first;
  return offset <= it->second && it->second - offset >= bytes;
}

bool Session::remove_reservation(std::uint64_t base, std::uint64_t bytes) {
  const std::lock_guard lock(reservation_mutex_);
  const auto found = reservations_.find(base);
  if (found == reservations_.end() || found->second != bytes) return false;
  reservations_.erase(found);
  return true;
}

// --- contexts -----------------------------------------------------------------------------------------------------------

Context* Session::find_context(CUcontext context) { return contexts_.find(handle_of(context)); }

bool Session::was_context(CUcontext context) { return contexts_.was(handle_of(context)); }

Context* Session::make_context(int device, unsigned flags) {
  const auto [handle, context] = contexts_.create();
  if (!context) return nullptr;
  context->handle = handle;
  context->device = device;
  context->flags = flags;
  return context;
}

CUresult Session::open_context(Thread& thread, Context& context, Handle resources) {
  RemoteCall<wire::OpenContext> call(thread);
  if (!call) return call.error();
  auto in = call.in();
  in.setContext(context.handle.value());
  in.setDevice(terms_.facts.devices[static_cast<std::size_t>(context.device)].worker_ordinal);
  in.setPrimary(context.primary);
  in.setFlags(context.flags);
  in.setResources(resources.value());
  if (const CUresult result = call.wait(); result != CUDA_SUCCESS) return result;
  const auto out = call.out();
  context.number = out.getNumber();
  context.least_priority = out.getLeastPriority();
  context.greatest_priority = out.getGreatestPriority();
  context.processor_group.assign(out.getProcessorGroup().begin(), out.getProcessorGroup().end());
  context.processor_index.assign(out.getProcessorIndex().begin(), out.getProcessorIndex().end());
  context.failure = CUDA_SUCCESS;
  context.legacy.id = context.number << 32 | 1;
  context.active = true;
  if (!context.primary) contexts_.publish(context.handle);
  managed_.context_opened(thread);
  return CUDA_SUCCESS;
}

std::set<int> Session::devices_in_use() {
  std::set<int> devices;
  contexts_.for_each([&](Handle, Context& context) {
    if (context.active) devices.insert(context.device);
  });
  return devices;
}

// The green contexts of a primary context.
std::vector<Context*> Session::greens(const Context& primary) {
  std::vector<Context*> found;
  if (primary.primary) {
    contexts_.for_each([&](Handle, Context& context) {
      if (context.green && context.active && context.device == primary.device) found.push_back(&context);
    });
  }
  return found;
}

// Its streams have gone; what else was made in it is the primary context's.
void Session::close_green(Context& context) {
  Context& heir = home(context);
  events_.for_each([&](Handle, Event& event) {
    if (event.context == &context) event.context = &heir;
  });
  for (Region region : map_.extract([&](const Region& r) { return r.context == &context; })) {
    region.context = &heir;
    map_.add(region);
  }
  graph_memory_.inherit(context, heir);
  functions_.forget_green(context.id());
}

CUresult Session::close_context(Thread& thread, Context& context) {
  // Whatever an earlier call has to say, it is to be closed before what it had is used again.
  const CUresult late = thread.take_late_error();
  const Thread::AnswersOnly answers_only(thread);
  for (Context* const green : greens(context)) close_context(thread, *green);
  stream_waits_.forget(context);  // nobody may be left who would write what they wait for
  context.storage.clear(context.cuda());
  RemoteCall<wire::CloseContext> call(thread);
  call.in().setContext(context.handle.value());
  context.active = false;
  if (!context.green) take_variables([&](const Region& region) { return region.context == &context; });
  const CUresult closed = call.wait(), result = late != CUDA_SUCCESS ? late : closed;
  std::vector<std::pair<Handle, Stream*>> streams;
  std::vector<Handle> events;
  streams_.for_each([&](Handle handle, Stream& stream) {
    if (stream.context == &context) streams.emplace_back(handle, &stream);
  });
  events_.for_each([&](Handle handle, Event& event) {
    if (event.context == &context) events.push_back(handle);
  });
  for (const auto& [handle, stream] : streams) {
    captures_.forget(*stream);
    streams_.erase(handle);
  }
  captures_.context_closed(context);
  if (context.green) {
    close_green(context);
    replies_.clear();
    context.legacy.abandon();
    contexts_.erase(context.handle);
    return result;
  }
  for (const Handle handle : events) events_.erase(handle);
  functions_.forget_context(context);
  graph_memory_.context_closed(context);
  peers_.context_closed(thread, context);
  shared_memory_.context_closed(thread, context);
  device_memory_.context_closed(thread, context);
  host_memory_.context_closed(thread, context);
  replies_.clear();
  context.failure = CUDA_SUCCESS;
  raise(context.completed, call.number());
  context.legacy.abandon();
  if (!context.primary) contexts_.erase(context.handle);
  return result;
}

std::vector<Region> Session::take_variables(const std::function<bool(const Region&)>& which) {
  std::vector<Region> taken = map_.extract([&](const Region& r) { return r.kind == Region::Kind::global && which(r); });
  for (const Region& region : taken)
    if (region.managed_variable) managed_.forsake(region.base, region.bytes);
  return taken;
}

void Session::return_variables(Thread& thread, const std::vector<Region>& variables) {
  for (const Region& region : variables) {
    if (region.managed_variable && !managed_.adopt(thread, *region.context, region.base, region.bytes)) continue;  // no room any more
    map_.add(region);
  }
}

// --- order and waiting ----------------------------------------------------------------------------------------------------

CUresult Session::synchronize(Thread& thread, Context& context) {
  if (const CUresult bad = captures_.check_context(context); bad != CUDA_SUCCESS) return bad;
  const CUresult result = settle(thread, context);
  after_wait(thread);
  return result;
}

CUresult Session::synchronize(Thread& thread, Stream& stream) {
  if (const CUresult bad = captures_.check_query(thread, stream); bad != CUDA_SUCCESS) return bad;
  const bool unnoticed = !stream.idle() && stream.as_good_as_idle() && !shared_memory_.any();
  const CUresult result = unnoticed ? put_before_all(thread, stream) : settle(thread, stream);
  after_wait(thread);
  return result;
}

CUresult Session::settle(Thread& thread, Context& context) {
  RemoteCall<wire::CuCtxSynchronize> call(thread, &context);
  std::vector<Context*> all = greens(context);
  all.push_back(&context);
  const bool idle = std::all_of(all.begin(), all.end(), [](const Context* c) { return c->idle(); });
  if (idle && context.failure == CUDA_SUCCESS) return thread.take_late_error();
  std::vector<std::pair<Stream*, std::uint64_t>> items;
  const auto count = [&](Stream& stream) { items.emplace_back(&stream, stream.items.load()); };
  for (Context* const one : all) count(one->legacy);
  streams_.for_each([&](Handle, Stream& stream) {
    if (std::find(all.begin(), all.end(), stream.context) != all.end()) count(stream);
  });
  host_memory_.before_wait(thread);
  const CUresult result = call.wait();
  if (result == CUDA_SUCCESS) {
    for (Context* const one : all) raise(one->completed, call.number());
    for (const auto& [stream, n] : items) raise(stream->retired, n);
    if (const CUresult late = thread.take_late_error(); late != CUDA_SUCCESS) return late;
  }
  return result;
}

CUresult Session::settle(Thread& thread, Stream& stream) {
  if (stream.idle() && stream.context->failure == CUDA_SUCCESS) return thread.take_late_error();
  RemoteCall<wire::CuStreamSynchronize> call(thread, stream.context);
  call.in().setHStream(stream.wire());
  const std::uint64_t items = stream.items.load();
  host_memory_.before_wait(thread);
  const CUresult result = call.wait();
  if (result == CUDA_SUCCESS) {
    stream.complete(call.number(), items);
    if (const CUresult late = thread.take_late_error(); late != CUDA_SUCCESS) return late;
  }
  return result;
}

// Programs wait for each copy of pageable memory. What is left of it concerns nobody but later work on the device, which the worker
// keeps behind it, on all streams.
CUresult Session::put_before_all(Thread& thread, Stream& stream) {
  RemoteCall<wire::CuStreamSynchronize> call(thread, stream.context);
  call.in().setHStream(stream.wire());
  const std::uint64_t items = stream.items.load();
  if (const CUresult bad = call.post(); bad != CUDA_SUCCESS) return bad;
  stream.complete(call.number(), items);
  return CUDA_SUCCESS;
}

bool Session::idle() {
  bool idle = true;
  contexts_.for_each([&](Handle, Context& context) { idle = idle && (!context.active || context.idle()); });
  return idle;
}

void Session::note_wait(std::chrono::nanoseconds took) {
  const auto us = static_cast<std::uint32_t>(std::min<std::int64_t>(took.count() / 1000, limits::stream_credit_max));
  std::uint32_t shortest = shortest_wait_us_.load(std::memory_order_relaxed);
  while (us < shortest && !shortest_wait_us_.compare_exchange_weak(shortest, us, std::memory_order_relaxed)) {}
}

std::uint64_t Session::stream_credit() const {
  const std::uint32_t shortest = shortest_wait_us_.load(std::memory_order_relaxed);
  if (shortest == unknown_wait) return limits::stream_credit;
  return std::min<std::uint64_t>(limits::stream_credit + static_cast<std::uint64_t>(shortest * limits::stream_credit_per_us),
                                 limits::stream_credit_max);
}

void Session::take_credit(Thread& thread, Stream& stream) {
  if (stream.capture.load(std::memory_order_relaxed)) return;
  const std::uint64_t items = stream.items.load(std::memory_order_relaxed);
  std::uint64_t fenced = stream.fenced.load(std::memory_order_relaxed);
  if (items - fenced >= limits::stream_fence_interval && stream.fenced.compare_exchange_strong(fenced, items)) {
    fences_.after(thread, stream, [&stream, handle = stream.handle, items] {
      if (stream.handle == handle) raise(stream.retired, items);
    });
  }
  const auto has_room = [&] { return stream.items.load() - stream.retired.load() < stream_credit(); };
  if (has_room()) [[likely]]
    return;
  commands_.flush();
  receiver_.wait_until(has_room);
}

Stream* Session::make_hidden_stream(Thread& thread, Context& context, unsigned flags) {
  const auto [handle, stream] = streams_.create();
  if (!stream) return nullptr;
  stream->handle = handle;
  stream->context = &context;
  stream->flags = flags;
  stream->id = context.number << 32 | handle.id();
  RemoteCall<wire::CuStreamCreate> call(thread, &context);
  auto in = call.in();
  in.setPhStream(handle.value());
  in.setFlags(flags);
  call.tell();
  streams_.publish(handle);
  return stream;
}

Stream* Session::thread_default_stream(Thread& thread, Context& context) {
  if (const auto known = thread.default_streams.find(&context); known != thread.default_streams.end())
    if (Stream* const stream = streams_.find(known->second)) return stream;
  Stream* const stream = make_hidden_stream(thread, context, CU_STREAM_DEFAULT);
  if (stream) thread.default_streams[&context] = stream->handle;
  return stream;
}

// --- what the worker says by itself ------------------------------------------------------------------------------------------

void Session::on_push(wire::Control::Reader push, std::span<std::byte> bulk) {
  switch (push.which()) {
    case wire::Control::LATE_ERROR: on_late_error(push.getLateError()); return;
    case wire::Control::PASSED: fences_.passed(push.getPassed().getFence()); return;
    case wire::Control::CALLBACK: {
      const auto callback = push.getCallback();
      if (callback.getPart() == 0) {
        const auto result = static_cast<CUresult>(callback.getResult());
        if (!stream_waits_.due(callback.getCallback(), result)) callbacks_.due(callback.getCallback(), result);
        return;
      }
      call_part(callback.getCallback(), callback.getPart());
      return;
    }
    case wire::Control::PULL: {
      const auto pull = push.getPull();
      // On another thread: sending may have to wait until the worker reads, which this thread must not.
      answer_aside(*this, [this, id = pull.getPull(), address = pull.getAddress(), bytes = pull.getBytes(), part = pull.getPart()] {
        if (part == 0) answer_pull(id, address, bytes);
        else answer_part_pull(id, part, bytes);
      });
      return;
    }
    case wire::Control::DELIVER:
      if (push.getDeliver().getPart() != 0) deliver_part(push.getDeliver().getPart(), push.getDeliver().getAddress(), bulk);
      else if (!bulk.empty()) host_memory_.delivered(push.getDeliver().getAddress(), bulk);
      return;
    case wire::Control::RELEASED: release_part(push.getReleased().getPart()); return;
    case wire::Control::PRINTED: {
      const auto text = push.getPrinted();
      if (text.getDescriptor() != 1 && text.getDescriptor() != 2)
        throw ProtocolError("a kernel's output is for neither standard output nor standard error");
      waiting_prints.add(text.getDescriptor() == 1 ? WaitingPrints::output : WaitingPrints::errors,
                         {text.getText().asChars().begin(), text.getText().size()});
      return;
    }
    case wire::Control::GOODBYE:
      throw ChannelClosed(terms_.host + " ended the session: " + printable(push.getGoodbye().getText().cStr(), 512));
    default: throw ProtocolError("a control message that a worker does not send");
  }
}

void Session::call_part(std::uint64_t callback, std::uint64_t part) {
  const auto function = graph_parts_.function(part);
  if (!function) throw ProtocolError("a function was called that is part of no graph");
  if (function->destructor) graph_parts_.release(part);  // once
  else if (!graphs_.any_launched()) throw ProtocolError("a function of a graph was called while no graph is launched");
  callbacks_.call(callback, [function] { function->call(function->argument); });
}

// Giving memory back may send, which this thread must not.
void Session::release_part(std::uint64_t part) {
  const auto allocation = graph_parts_.allocation(part);
  graph_parts_.release(part);
  if (allocation)
    answer_aside(*this, [this, address = allocation->address, part] { graph_memory_.released(Thread::current(), address, part); });
}

std::span<std::byte> Session::place_delivery(wire::Deliver::Reader deliver, std::size_t bytes) {
  if (deliver.getPart() == 0 && !host_memory_.awaits(deliver.getAddress(), bytes)) return {};
  arriving_.resize(bytes);
  return arriving_;
}

// Pinned memory that was freed meanwhile must not be touched; of other memory only the program knows.
bool Session::still_there(const GraphParts::Memory& memory) const {
  if (!terms_.host_window.contains(memory.begin())) return true;
  const auto region = map_.find(memory.begin());
  return region && region->contains(memory.begin(), memory.end() - memory.begin());
}

void Session::deliver_part(std::uint64_t part, std::uint64_t offset, std::span<const std::byte> bytes) {
  const auto memory = graph_parts_.memory(part);
  if (!memory || offset > memory->bytes() || bytes.size() > memory->bytes() - offset)
    throw ProtocolError("bytes were delivered that are part of no graph");
  if (memory->source || !graphs_.any_launched())
    throw ProtocolError(memory->source ? "bytes were delivered to memory that a graph only reads"
                                       : "bytes of a graph were delivered while no graph is launched");
  if (still_there(*memory)) memory->scatter(offset, bytes);
}

void Session::fail_contexts(int device, CUresult result) {
  contexts_.for_each([&](Handle, Context& context) {
    CUresult none = CUDA_SUCCESS;
    if (context.device == device && context.active) context.failure.compare_exchange_strong(none, result);
  });
}

void Session::on_late_error(wire::LateError::Reader error) {
  const auto result = static_cast<CUresult>(error.getResult());
  log::info("{} failed: {}", opcode_name(error.getOpcode()), result_name(result));
  if (ends_context(result)) {
    contexts_.for_each([&](Handle handle, Context& context) {
      if (handle.id() == error.getContext()) fail_contexts(context.device, result);
    });
  }
  Thread::deliver_error(error.getThread(), result);
}

void Session::answer_pull(std::uint64_t pull, std::uint64_t address, std::uint64_t bytes) {
  const auto region = map_.find(address);
  if (!region || !region->on_host() || !region->contains(address, bytes)) {
    process().lose_session(*this, "the worker asked for memory that is not pinned");
    return;
  }
  send_pulled(pull, {reinterpret_cast<const std::byte*>(address), bytes});
}

void Session::answer_part_pull(std::uint64_t pull, std::uint64_t part, std::uint64_t bytes) {
  const auto memory = graph_parts_.memory(part);
  if (!memory || memory->bytes() != bytes) {
    process().lose_session(*this, "the worker asked for memory that is part of no graph");
  } else if (!memory->source) {
    process().lose_session(*this, "the worker asked for memory that a graph only writes");
  } else if (!still_there(*memory)) {
    tell_worker([&](wire::Control::Builder control) {
      auto pulled = control.initPulled();
      pulled.setPull(pull);
      pulled.setGone(true);
    });
  } else {
    send_pulled(pull, memory->gather());
  }
}

void Session::send_pulled(std::uint64_t pull, std::span<const std::byte> rest) {
  while (!rest.empty()) {
    // A copy: pages may have to come from the worker first, for which nothing could be sent while this is.
    const auto first = rest.begin(), end = first + static_cast<std::ptrdiff_t>(std::min(rest.size(), limits::bulk_bytes_max));
    const std::vector<std::byte> part(first, end);
    tell_worker([&](wire::Control::Builder control) { control.initPulled().setPull(pull); }, part);
    rest = rest.subspan(part.size());
  }
}

// What the function wrote to memory that the GPU sees goes ahead of the work behind it.
void Session::function_done(std::uint64_t number) {
  try {
    before_work(Thread::current());
  } catch (const std::exception& error) {
    process().lose_session(*this, error.what());
    return;
  }
  tell_worker([&](wire::Control::Builder control) { control.initCallbackDone().setCallback(number); });
}

template <class Fill>
void Session::tell_worker(Fill&& fill, std::span<const std::byte> bulk) {
  try {
    MessageWriter writer;
    fill(writer.root<wire::Control>());
    FrameHeader header;
    header.kind = FrameKind::control;
    commands_.append(header, writer.finish(), bulk, CommandStream::Urgency::now);
  } catch (const std::exception& error) {
    process().lose_session(*this, error.what());
  }
}

// --- the service thread --------------------------------------------------------------------------------------------------------

void Session::wake_service() {
  if (service_asleep_.load(std::memory_order_seq_cst)) service_waker_.signal();
}

// Sends what has gathered, and reads when nobody else does. While the program is busy it looks every 50 us; after a millisecond of
// quiet it sleeps until something happens.
void Session::serve() {
  using Clock = std::chrono::steady_clock;
  constexpr auto look = std::chrono::microseconds(50);
  constexpr auto quiet = std::chrono::milliseconds(1);
  const auto sleep_max = terms_.silence / limits::heartbeats_per_silence;
  ::prctl(PR_SET_TIMERSLACK, 1000);
  auto busy_until = Clock::now() + quiet;
  try {
    while (!ended_.load(std::memory_order_relaxed)) {
      const CommandStream::Left left = commands_.flush_some(CommandStream::Which::overdue);
      const bool received = receiver_.serve();
      const auto now = Clock::now();
      if (left == CommandStream::Left::young || received) busy_until = now + quiet;
      if (now < busy_until) {
        std::this_thread::sleep_for(look);
        continue;
      }
      service_asleep_.store(true, std::memory_order_seq_cst);
      if (const auto still = commands_.flush_some(CommandStream::Which::overdue); still != CommandStream::Left::young)
        channel_->wait({.readable = true, .writable = still == CommandStream::Left::stuck}, sleep_max, &service_waker_);
      service_asleep_.store(false, std::memory_order_relaxed);
      busy_until = Clock::now() + quiet;
    }
  } catch (const kj::Exception& error) {
    lose_for(*this, "malformed message: ", error.getDescription().cStr());
  } catch (const std::exception& error) {
    lose_for(*this, error.what());
  }
}

bool Session::beat() {
  try {
    if (!commands_.beat()) return false;
    commands_.flush_some(CommandStream::Which::all);
  } catch (const std::exception& error) {
    lose_for(*this, error.what());
  }
  return true;
}

std::string Session::excuse() const {
  const auto absence = liveness_.absence();
  if (absence.count() == 0) return {};
  return fmt::format("; this process was stopped for {} s, and a host ends the session of a client that is silent for {} s",
                     absence.count(), terms_.silence.count() / 1000);
}

void Session::lose_silent() {
  try {
    process().lose_session(*this, fmt::format("{} has not answered for {} s", terms_.host, terms_.silence.count() / 1000));
  } catch (const std::exception& error) {
    lose_for(*this, error.what());
  }
}

void Session::leave() noexcept {
  try {
    MessageWriter writer;
    writer.root<wire::Control>().initGoodbye().setText("the program ends");
    FrameHeader header;
    header.kind = FrameKind::control;
    commands_.append(header, writer.finish(), {}, CommandStream::Urgency::now);
  } catch (...) {
    // The worker notices that the connection is gone.
  }
  end();
}

void Session::end() {
  ended_ = true;
  service_waker_.signal();
  liveness_.end();
}

}  // namespace fargpu::client
