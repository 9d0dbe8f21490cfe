#include "managed_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <string>
#include <utility>

#include "calls_copy.capnp.h"
#include "calls_stream.capnp.h"
#include "cuda_facts.h"
#include "operations.capnp.h"
#include "protocol/changed_runs.h"
#include "protocol/errors.h"
#include "protocol/copy.h"
#include "protocol/limits.h"
#include "client/base/log.h"
#include "client/base/pages.h"
#include "client/call/remote_call.h"
#include "client/objects/contexts.h"
#include "client/stream/streams.h"
#include "device_memory.h"
#include "peer_access.h"

namespace fargpu::client {
namespace {

constexpr unsigned changes_under_way_max = 64;  // granules

}  // namespace

ManagedMemory::ManagedMemory(const Parts& parts, const Window& window, const Window& driver_band)
    : PagedMemory({parts.calls, parts.contexts, parts.whole_system_work}, "fargpu-managed", {window, driver_band},
                  Use::in_turns),
      parts_(parts),
      window_(window),
      driver_band_(driver_band) {}

// Null if there is no room for the pages.
std::unique_ptr<ManagedMemory::Block> ManagedMemory::make_block(Context& context, std::uint64_t base,
                                                                std::uint64_t bytes, State state, int access) {
  auto block = std::make_unique<Block>();
  block->base = base;
  block->bytes = bytes;
  block->context = &contexts_.home(context);  // which outlasts a green one
  block->advice.emplace(0, ManagedAdvice());
  if (!make_alias(*block, state)) return nullptr;
  if (make_visible(*block, access)) return block;
  drop_alias(*block);
  return nullptr;
}

CUresult ManagedMemory::allocate(Thread& thread, Context& context, std::uint64_t bytes, std::uint64_t& address) {
  if (bytes > window_.bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  {
    const std::lock_guard lock(mutex_);
    prepare();
  }
  DeviceMemory& memory = parts_.device_memory;
  const CUresult result = memory.allocate(thread, context, bytes, address, memory.pools().managed_of(context.device));
  if (result == CUDA_ERROR_OUT_OF_MEMORY && !told_of_room_.exchange(true))
    log::warn(
        "managed memory is memory of the device here, from its allocation on: there is no room for {} bytes, although "
        "a "
        "local driver might give them (docs/concepts/memory-model.md)",
        bytes);
  if (result != CUDA_SUCCESS) return result;
  const std::uint64_t whole = round_up(bytes);
  // A kernel that is under way may be given the address, and write there first.
  const bool idle = contexts_.idle();
  auto block = make_block(context, address, whole, idle ? State::fresh : State::theirs,
                          idle ? PROT_READ | PROT_WRITE : PROT_NONE);
  if (!block) {
    memory.free(thread, address, /*noticed=*/false);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  block->parts.emplace(0, whole);
  {
    const std::lock_guard lock(mutex_);
    make_zero(thread, *blocks_.emplace(address, std::move(block)).first->second);
    if (idle) touched_ = true;
  }
  open_to_devices(thread, context.device);
  return CUDA_SUCCESS;
}

// Programs rely on zeros, though CUDA does not promise them, and the block has old bytes. All later work, on any
// stream, comes behind the memset, hence the wait for its stream.
void ManagedMemory::make_zero(Thread& thread, const PagedMemory::Block& block) {
  Stream& stream = stream_of(thread, *block.context);
  RemoteCall<wire::CuMemsetD8Async> set(thread, block.context);
  auto in = set.in();
  in.setDstDevice(block.base);
  in.setN(block.bytes);
  in.setHStream(stream.wire());
  set.tell();
  if (contexts_.several()) return wait_for_sent(thread, *block.context);
  RemoteCall<wire::CuStreamSynchronize> wait(thread, block.context);
  wait.in().setHStream(stream.wire());
  wait.tell();
  block.context->own_work = true;
}

// Where devices cannot reach each other's memory, kernels of the others find nothing there.
void ManagedMemory::open_to_devices(Thread& thread, int owner) {
  for (const int device : contexts_.devices_in_use())
    if (device != owner && parts_.peers.possible(device, owner))
      parts_.peers.set(thread, *parts_.device_memory.pools().managed_of(owner), device, true);
}

void ManagedMemory::context_opened(Thread& thread) {
  std::set<int> owners;
  {
    const std::lock_guard lock(mutex_);
    std::set<Context*> homes;
    for (const auto& [base, block] : blocks_) {
      if (window_.contains(base)) owners.insert(block->context->device);
      if (block->context->active && block->context->managed_stream) homes.insert(block->context);
    }
    for (Context* const home : homes) wait_for_sent(thread, *home);
  }
  for (const int owner : owners) open_to_devices(thread, owner);
}

void ManagedMemory::dropped(std::uint64_t address) {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(address);
  if (found == blocks_.end()) return;
  // What was sent to the memory goes before the memory does.
  Context& context = *found->second->context;
  if (context.active && context.own_work) wait_for_sent(Thread::current(), context);
  drop(*found->second);
}

// --- variables ------------------------------------------------------------------------------------------------------

bool ManagedMemory::adopt(Thread& thread, Context& context, std::uint64_t address, std::uint64_t bytes) {
  if (bytes == 0 || !driver_band_.contains(address) || bytes > driver_band_.bytes - (address - driver_band_.base))
    return false;
  const Thread::AnswersOnly answers_only(thread);
  const std::lock_guard lock(mutex_);
  prepare();
  const std::uint64_t end = address + bytes;
  for (std::uint64_t granule = address / granule_bytes * granule_bytes; granule < end;) {
    Block* block = find(granule);
    if (!block) {
      // As far as the variable goes, or to what is here already.
      const auto next = blocks_.lower_bound(granule);
      const std::uint64_t stop =
          std::min(round_up(end, granule_bytes), next == blocks_.end() ? ~std::uint64_t{0} : next->first);
      auto made = make_block(context, granule, stop - granule, State::theirs, PROT_NONE);
      if (!made) return false;
      block = made.get();
      blocks_.emplace(granule, std::move(made));
    }
    const std::uint64_t first = std::max(address, block->base), last = std::min(end, block->base + block->bytes);
    if (block->parts.emplace(first - block->base, last - first).second) {
      // Where the program may look already, its first contents are due now.
      for (std::uint64_t offset = first - block->base; offset < last - block->base;) {
        const std::size_t index = offset / granule_bytes;
        const std::uint64_t stop = std::min(offset_of(index + 1, *block), last - block->base);
        if (block->states[index] != State::theirs) fetch_range(thread, *block, offset, stop - offset);
        offset = stop;
      }
    }
    granule = block->base + block->bytes;
  }
  return true;
}

void ManagedMemory::forsake(std::uint64_t address, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  for (const std::uint64_t end = address + bytes; address < end;) {
    Block* const block = find(address);
    if (!block) return;
    block->parts.erase(address - block->base);
    address = block->base + block->bytes;
    if (block->parts.empty()) drop(*block);
  }
}

// What the worker has of a variable lies with its module or library, and is there for any context. A block may have
// variables of several contexts: those of the closed one are forsaken.
void ManagedMemory::hand_on_variables(Thread& thread, Context& from, Context& to) {
  const std::lock_guard lock(mutex_);
  bool any = false;
  for (auto block = blocks_.lower_bound(driver_band_.base);
       block != blocks_.end() && driver_band_.contains(block->first); ++block) {
    if (block->second->context != &from) continue;
    // What was sent by way of the context is there before the context goes.
    if (!std::exchange(any, true) && from.own_work) wait_for_sent(thread, from);
    block->second->context = &to;
  }
}

// --- contents -------------------------------------------------------------------------------------------------------

// Copies of ours run on a stream of their own, which waits for nothing: the program may touch managed memory in a host
// function, when the stream that runs it does not go on, nor what waits for that. Work whose results a fetch must see
// has been waited for, and so has each copy to managed memory that the program takes for done.
Stream& ManagedMemory::stream_of(Thread& thread, Context& context) {
  if (Stream* const known = parts_.streams.find(context.managed_stream)) return *known;
  Stream* const made = parts_.streams.make_hidden(thread, context, CU_STREAM_NON_BLOCKING, /*apart=*/true);
  if (!made) throw SystemError("no stream for the contents of managed memory");
  context.managed_stream = made->handle;
  return *made;
}

// Calls act(offset, bytes) for what the GPU has of a range.
template <class Act>
void for_parts(const std::map<std::uint64_t, std::uint64_t>& parts, std::uint64_t offset, std::uint64_t bytes,
               Act&& act) {
  const std::uint64_t end = offset + bytes;
  auto part = parts.upper_bound(offset);
  if (part != parts.begin()) --part;
  for (; part != parts.end() && part->first < end; ++part) {
    const std::uint64_t first = std::max(offset, part->first), last = std::min(end, part->first + part->second);
    if (first < last) act(first, last - first);
  }
}

// Work in a block's own context comes behind what was sent there; that of other contexts does not by itself.
void ManagedMemory::handed_over(Thread& thread) {
  const std::set<Context*> sent_to = std::exchange(sent_to_, {});
  if (!contexts_.several()) return;
  for (Context* const context : sent_to) wait_for_sent(thread, *context);
}

void ManagedMemory::wait_for_sent(Thread& thread, Context& context) {
  const Thread::AnswersOnly answers_only(thread);
  RemoteCall<wire::CuStreamSynchronize> call(thread, &context);
  call.in().setHStream(stream_of(thread, context).wire());
  call.wait();  // should it fail, the context's next call says so
  context.own_work = false;
}

void ManagedMemory::send_range(Thread& thread, PagedMemory::Block& block, std::uint64_t offset, std::uint64_t bytes) {
  const Stream& stream = stream_of(thread, *block.context);
  sent_to_.insert(block.context);
  block.context->own_work = true;
  for_parts(static_cast<const Block&>(block).parts, offset, bytes, [&](std::uint64_t at, std::uint64_t rest) {
    while (rest > 0) {
      const std::uint64_t part = std::min<std::uint64_t>(rest, limits::bulk_bytes_max);
      RemoteCall<wire::CopyIn> call(thread, block.context);
      auto in = call.in();
      in.setStream(stream.wire());
      encode({.width = part}, {}, {.kind = CopySide::Kind::device, .place = block.base + at}, in.initCopy());
      in.setTakenForDone(true);  // whatever comes later, on any stream, finds it
      call.bulk({block.alias + at, part});
      call.tell();
      at += part;
      rest -= part;
    }
  });
}

// Of a granule all that lies between its first changed word and its last one goes in one call, because the stream is
// held until the worker has compared it.
bool ManagedMemory::send_changes(Thread& thread, PagedMemory::Block& block, std::uint64_t offset,
                                 std::span<const std::byte> known) {
  static_assert(2 * granule_bytes <= limits::bulk_bytes_max);
  if (!calls_.serves(Opcode::changeHostBlock)) return false;  // a worker that compares does so for all memory
  for_parts(static_cast<const Block&>(block).parts, offset, known.size(), [&](std::uint64_t at, std::uint64_t bytes) {
    const std::span<const std::byte> now(block.alias + at, bytes), before = known.subspan(at - offset, bytes);
    for_changed_stretches(now, before, granule_bytes, [&](std::size_t first, std::size_t length) {
      send_change(thread, *block.context, block.base + at + first, now.subspan(first, length),
                  before.subspan(first, length));
    });
  });
  return true;
}

void ManagedMemory::send_change(Thread& thread, Context& context, std::uint64_t address, std::span<const std::byte> now,
                                std::span<const std::byte> known) {
  std::vector<std::byte> both(now.begin(), now.end());
  both.insert(both.end(), known.begin(), known.end());
  {
    RemoteCall<wire::CopyIn> call(thread, &context);
    auto in = call.in();
    in.setStream(stream_of(thread, context).wire());
    encode({.width = now.size()}, {.kind = CopySide::Kind::changes}, {.kind = CopySide::Kind::device, .place = address},
           in.initCopy());
    in.setTakenForDone(true);  // whatever comes later, on any stream, finds it
    call.bulk(both);
    call.tell();
  }
  sent_to_.insert(&context);
  context.own_work = true;
  changed_in_.insert(context.cuda());
  unheard_ = true;
  // The worker keeps what it has not compared yet.
  if (++changes_under_way_ < changes_under_way_max) return;
  wait_for_sent(thread, context);
  changes_under_way_ = 0;
}

void ManagedMemory::ask_behind_changes(Thread& thread) {
  changes_under_way_ = 0;
  for (const CUcontext name : std::exchange(changed_in_, {}))
    if (Context* const context = contexts_.find(name); context && context->active) wait_for_sent(thread, *context);
}

// Where a kernel, or the loss of the session, has ended the context of managed memory, the program keeps what it last
// saw there, and may look at it on its way out.
void ManagedMemory::fetch_range(Thread& thread, PagedMemory::Block& block, std::uint64_t offset, std::uint64_t bytes) {
  const auto failed = [&] {
    const CUresult failure = block.context->failure;
    if (failure == CUDA_SUCCESS) return false;
    const std::string name(result_name(failure));
    log::write_once(log::Level::warn, "managed memory after " + name,
                    "managed memory has what the program last saw there: its context has failed (" + name + ")");
    return true;
  };
  if (failed()) return;
  for_parts(static_cast<const Block&>(block).parts, offset, bytes, [&](std::uint64_t at, std::uint64_t length) {
    RemoteCall<wire::CopyOut> call(thread, block.context);
    auto in = call.in();
    in.setStream(stream_of(thread, *block.context).wire());
    encode({.width = length}, {.kind = CopySide::Kind::device, .place = block.base + at}, {}, in.initCopy());
    call.target({block.alias + at, length});
    const CUresult result = call.wait();
    if ((result != CUDA_SUCCESS || call.arrived_bytes() != length) && !failed())
      throw SystemError("managed memory could not be fetched from the GPU: " + std::string(result_name(result)));
  });
}

// --- advice ---------------------------------------------------------------------------------------------------------

std::map<std::uint64_t, ManagedAdvice>::iterator ManagedMemory::split(Block& block, std::uint64_t offset) {
  const auto behind = block.advice.upper_bound(offset);
  const auto holds = std::prev(behind);
  return holds->first == offset ? holds : block.advice.emplace_hint(behind, offset, holds->second);
}

bool ManagedMemory::advise(std::uint64_t address, std::uint64_t bytes,
                           const std::function<void(ManagedAdvice&)>& change) {
  const std::lock_guard lock(mutex_);
  Block* const block = find(address);
  if (!block || bytes == 0 || bytes > block->bytes - (address - block->base)) return false;
  const std::uint64_t begin = address - block->base;
  const auto first = split(*block, begin);
  const auto end = begin + bytes < block->bytes ? split(*block, begin + bytes) : block->advice.end();
  for (auto it = first; it != end; ++it) change(it->second);
  return true;
}

bool ManagedMemory::visit(std::uint64_t address, std::uint64_t bytes,
                          const std::function<void(const ManagedAdvice&)>& visit) const {
  const std::lock_guard lock(mutex_);
  const Block* const block = find(address);
  if (!block || bytes == 0 || bytes > block->bytes - (address - block->base)) return false;
  const std::uint64_t begin = address - block->base;
  for (auto it = std::prev(block->advice.upper_bound(begin)); it != block->advice.end() && it->first < begin + bytes;
       ++it)
    visit(it->second);
  return true;
}

}  // namespace fargpu::client
