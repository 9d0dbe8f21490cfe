#include "pushes.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "client/base/log.h"
#include "client/call/trace.h"
#include "client/call/waiting_prints.h"
#include "client/call/remote_call.h"
#include "client/memory/conflicts.h"
#include "client/memory/system_calls.h"
#include "cuda_facts.h"
#include "link_news.h"
#include "protocol/errors.h"
#include "protocol/limits.h"
#include "protocol/program_memory.h"
#include "protocol/text.h"
#include "waits.h"

namespace fargpu::client {

void Pushes::on_push(wire::Control::Reader push, std::span<std::byte> bulk) {
  switch (push.which()) {
    case wire::Control::LATE_ERROR: on_late_error(push.getLateError()); return;
    case wire::Control::PASSED: parts_.fences.passed(push.getPassed().getFence()); return;
    case wire::Control::EVENT_PASSED: on_event(push.getEventPassed()); return;
    case wire::Control::CALLBACK: on_callback(push.getCallback()); return;
    case wire::Control::PULL: on_pull(push.getPull()); return;
    case wire::Control::DELIVER: on_deliver(push.getDeliver(), bulk); return;
    case wire::Control::WANTED: {
      const auto wanted = push.getWanted();
      parts_.lanes.wanted(wanted.getTransfer(), wanted.getChunks(), wanted.getOver());
      return;
    }
    case wire::Control::ARRIVING: parts_.lanes.wait_for_chunks(push.getArriving().getChunks()); return;
    case wire::Control::RELEASED: release_part(push.getReleased().getPart()); return;
    case wire::Control::PRINTED: on_printed(push.getPrinted()); return;
    case wire::Control::NOTICE: log::warn("{}: {}", host_, printable(push.getNotice().cStr(), 512)); return;
    case wire::Control::RETURNED: on_returned(push.getReturned()); return;
    case wire::Control::LINK_LOST:
      tell_link_loss(parts_.calls, push.getLinkLost().getLink(), push.getLinkLost().getText().cStr());
      return;
    case wire::Control::SETTLED: parts_.calls.credit.settled(push.getSettled().getBytes()); return;
    case wire::Control::GOODBYE:
      throw ChannelClosed(host_ + " ended the session: " + printable(push.getGoodbye().getText().cStr(), 512));
    default: throw ProtocolError("a control message that a worker does not send");
  }
}

// Nobody asks any more about one that the program has destroyed meanwhile.
void Pushes::on_event(wire::EventPassed::Reader passed) {
  if (Event* const event = parts_.events.find(Handle(passed.getEvent())))
    event->hear(passed.getCall(), passed.getFailed());
}

void Pushes::on_callback(wire::Callback::Reader callback) {
  if (callback.getPart() != 0) return call_part(callback.getCallback(), callback.getPart());
  const auto result = static_cast<CUresult>(callback.getResult());
  if (callback.getSkipped()) {
    parts_.stream_waits.remove(callback.getCallback());
    return parts_.callbacks.skip(callback.getCallback(), result);
  }
  if (!parts_.stream_waits.due(callback.getCallback(), result)) parts_.callbacks.due(callback.getCallback(), result);
}

// On another thread: sending may have to wait until the worker reads, which this thread must not.
void Pushes::on_pull(wire::Pull::Reader pull) {
  answer_aside(
      [this, id = pull.getPull(), address = pull.getAddress(), bytes = pull.getBytes(), part = pull.getPart()] {
        if (part == 0) answer_pull(id, address, bytes);
        else answer_part_pull(id, part, bytes);
      });
}

void Pushes::on_deliver(wire::Deliver::Reader deliver, std::span<const std::byte> bytes) {
  if (deliver.getPart() != 0) deliver_part(deliver.getPart(), deliver.getAddress(), bytes);
  else parts_.host_memory.delivered(deliver.getAddress(), bytes, deliver.getCopy(), deliver.getOver());
}

void Pushes::on_printed(wire::Printed::Reader text) {
  if (text.getDescriptor() != 1 && text.getDescriptor() != 2)
    throw ProtocolError("a kernel's output is for neither standard output nor standard error");
  waiting_prints.add(text.getDescriptor() == 1 ? WaitingPrints::output : WaitingPrints::errors,
                     {text.getText().asChars().begin(), text.getText().size()});
}

void Pushes::on_returned(wire::Returned::Reader back) {
  trace::memory_returned(host_, back.getBytes(),
                         {{{"device memory leaves", back.getLeavingUs()},
                           {"device memory is away", back.getAwayUs()},
                           {"device memory waits for room", back.getWaitingUs()},
                           {"device memory returns", back.getReturningUs()}}});
}

void Pushes::call_part(std::uint64_t callback, std::uint64_t part) {
  const auto function = parts_.graph_parts.function(part);
  if (!function) throw ProtocolError("a function was called that is part of no graph");
  if (function->destructor) parts_.graph_parts.release(part);  // once
  else if (!parts_.graphs.any_launched())
    throw ProtocolError("a function of a graph was called while no graph is launched");
  count_job();
  parts_.callbacks.call(callback, [this, function] {
    function->call(function->argument);
    --jobs_;
  });
}

// Giving memory back may send, which this thread must not.
void Pushes::release_part(std::uint64_t part) {
  const auto allocation = parts_.graph_parts.allocation(part);
  parts_.graph_parts.release(part);
  if (allocation)
    answer_aside([this, address = allocation->address, part] {
      parts_.graph_memory.released(Thread::current(), address, part);
    });
}

std::span<std::byte> Pushes::place_delivery(wire::Deliver::Reader deliver, std::size_t bytes) {
  if (deliver.getPart() == 0 && !parts_.host_memory.awaits(deliver.getAddress(), bytes)) return {};
  arriving_.resize(bytes);
  return arriving_;
}

// Pinned memory that was freed meanwhile must not be touched; of other memory only the program knows.
bool Pushes::still_there(const GraphParts::Memory& memory) const {
  if (!host_window_.contains(memory.begin())) return true;
  const auto region = parts_.map.find(memory.begin());
  return region && region->contains(memory.begin(), memory.extent());
}

bool Pushes::pinned(const GraphParts::Memory& memory) const {
  const auto region = parts_.map.find(memory.begin());
  return region && region->on_host() && region->contains(memory.begin(), memory.extent());
}

void Pushes::deliver_part(std::uint64_t part, std::uint64_t offset, std::span<const std::byte> bytes) {
  const auto memory = parts_.graph_parts.memory(part);
  if (!memory || offset > memory->shape.bytes() || bytes.size() > memory->shape.bytes() - offset)
    throw ProtocolError("bytes were delivered that are part of no graph");
  if (memory->source || !parts_.graphs.any_launched())
    throw ProtocolError(memory->source ? "bytes were delivered to memory that a graph only reads"
                                       : "bytes of a graph were delivered while no graph is launched");
  if (!still_there(*memory)) return;
  if (!parts_.host_memory.at_worker(memory->begin())) return memory->scatter(offset, bytes);
  // Since the launch kernels have come to use the memory: its pages come by calls, for whose answers this thread cannot
  // wait.
  answer_aside([this, memory = *memory, offset, copy = std::vector<std::byte>(bytes.begin(), bytes.end())] {
    if (still_there(memory)) memory.scatter(offset, copy);
  });
}

void Pushes::on_late_error(wire::LateError::Reader error) {
  if (const std::uint64_t word = error.getAddress(); word != 0) {
    if (static_cast<Opcode>(error.getOpcode()) != Opcode::copyIn) return parts_.host_memory.lost(word);
    const auto memory = parts_.map.find(word);
    const bool there = memory && memory->managed();
    return note_conflict(word, "managed", there ? memory->base : 0, there ? memory->bytes : 0);
  }
  const auto result = static_cast<CUresult>(error.getResult());
  const std::string_view call = opcode_name(error.getOpcode());
  log::info("{} failed: {}", call, result_name(result));
  // Every thread hears of what has ended a context, and work of one that is gone concerns none.
  const bool ends = ends_context(result);
  if (ends) parts_.contexts.fail_with(error.getContext(), result);
  // The program has not made this call, and asks by itself from now on: the worker would not tell.
  if (static_cast<Opcode>(error.getOpcode()) == Opcode::watchEvent) {
    parts_.asks_each_time = true;
    return;
  }
  Thread::deliver_error(error.getThread(), result, call,
                        /*concerns_others=*/!ends && parts_.contexts.lives(error.getContext()));
}

void Pushes::answer_pull(std::uint64_t pull, std::uint64_t address, std::uint64_t bytes) {
  const auto region = parts_.map.find(address);
  if (!region || !region->contains(address, bytes)) return say_gone(pull);
  std::vector<std::byte> part(std::min<std::uint64_t>(bytes, limits::bulk_bytes_max));
  for (const std::uint64_t end = address + bytes; address < end; address += part.size()) {
    part.resize(std::min<std::uint64_t>(end - address, part.size()));
    if (!read_pinned(region->buffer_id, address, part)) return say_gone(pull);
    send_pulled(pull, part);
  }
}

// The program may have freed or unregistered it since, or do so now: where the kernel finds no memory, it is gone, too.
// Pages that the GPU has come first, unless another thread gives them back meanwhile.
bool Pushes::read_pinned(std::uint64_t buffer_id, std::uint64_t address, std::span<std::byte> into) const {
  for (int looks = 0; looks < calls_again_max; ++looks) {
    const auto region = parts_.map.find(address);
    if (!region || !region->on_host() || region->buffer_id != buffer_id || !region->contains(address, into.size()))
      return false;
    touch_pages(address, into.size(), /*writing=*/false);
    if (read_program_memory(reinterpret_cast<const void*>(address), into.data(), into.size())) return true;
  }
  return false;
}

void Pushes::answer_part_pull(std::uint64_t pull, std::uint64_t part, std::uint64_t bytes) {
  const auto memory = parts_.graph_parts.memory(part);
  if (!memory || memory->shape.bytes() != bytes) {
    parts_.calls.events.lose("the worker asked for memory that is part of no graph");
    // What a conditional node may copy to is asked for as well. Its body may copy to pinned memory only.
  } else if (!still_there(*memory) || (!memory->source && !pinned(*memory))) {
    say_gone(pull);
  } else {
    send_pulled(pull, memory->gather());
  }
}

void Pushes::say_gone(std::uint64_t pull) {
  tell_worker([&](wire::Control::Builder control) {
    auto pulled = control.initPulled();
    pulled.setPull(pull);
    pulled.setGone(true);
  });
}

void Pushes::send_pulled(std::uint64_t pull, std::span<const std::byte> rest) {
  while (!rest.empty()) {
    const auto part = rest.first(std::min(rest.size(), limits::bulk_bytes_max));
    tell_worker([&](wire::Control::Builder control) { control.initPulled().setPull(pull); }, part);
    rest = rest.subspan(part.size());
  }
}

// The function finds what the GPU wrote, also in pages that another thread had opened before that.
void Pushes::function_due() {
  try {
    parts_.waits.after_work(Thread::current());
  } catch (const std::exception& error) {
    lose_for(parts_.calls.events, error.what());
  }
}

// What the function wrote to memory that the GPU sees goes ahead of the work behind it, which the worker has already.
void Pushes::function_done(std::uint64_t number) {
  try {
    parts_.waits.before_held_work(Thread::current());
  } catch (const std::exception& error) {
    lose_for(parts_.calls.events, error.what());
    return;
  }
  tell_worker([&](wire::Control::Builder control) { control.initCallbackDone().setCallback(number); });
}

// The connection may be lost, or memory run out, in the middle of it.
void Pushes::answer_aside(std::function<void()> answer) {
  count_job();
  parts_.answers.run([this, answer = std::move(answer)] {
    try {
      answer();
    } catch (const std::exception& error) {
      lose_for(parts_.calls.events, error.what());
    }
    --jobs_;
  });
}

// Counts what the worker has queued for other threads. The bound keeps a hostile worker from filling memory.
void Pushes::count_job() {
  if (jobs_.fetch_add(1) >= limits::waits_max)
    throw ProtocolError("the worker has more requests without an answer than there can be");
}

template <class Fill>
void Pushes::tell_worker(Fill&& fill, std::span<const std::byte> bulk) {
  try {
    parts_.calls.say(fill, bulk);
  } catch (const std::exception& error) {
    lose_for(parts_.calls.events, error.what());
  }
}

}  // namespace fargpu::client
