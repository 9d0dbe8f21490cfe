#include "managed_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>

#include "calls_stream.capnp.h"
#include "cuda_facts.h"
#include "fault_handler.h"
#include "operations.capnp.h"
#include "protocol/changed_runs.h"
#include "protocol/errors.h"
#include "remote_call.h"
#include "session.h"
#include "system_calls.h"

namespace fargpu::client {
namespace {

constexpr std::uint64_t page_bytes = 4096;
constexpr std::size_t fetch_ahead_max = 64;

std::byte* at(std::uint64_t address) { return reinterpret_cast<std::byte*>(address); }
std::uint64_t round_up(std::uint64_t bytes, std::uint64_t to) { return (bytes + to - 1) / to * to; }

[[noreturn]] void fail(const char* what) { throw SystemError(std::string(what) + ": " + std::strerror(errno)); }

}  // namespace

ManagedMemory::ManagedMemory(Session& session, const Window& window, const Window& driver_band)
    : session_(session), window_(window), driver_band_(driver_band) {}

// Nothing of this exists in programs that use no managed memory.
void ManagedMemory::prepare() {
  if (file_ < 0) {
    const int file = ::memfd_create("fargpu-managed", MFD_CLOEXEC);
    if (file < 0) fail("memfd_create");
    if (::ftruncate(file, static_cast<off_t>(window_.bytes + driver_band_.bytes)) != 0) {
      ::close(file);
      fail("memory file for managed memory");
    }
    file_ = file;
  }
  watch_faults(*this);
  watch_system_calls(*this, {window_, driver_band_});
}

off_t ManagedMemory::place_in_file(std::uint64_t address) const {
  return static_cast<off_t>(window_.contains(address) ? address - window_.base : window_.bytes + (address - driver_band_.base));
}

// Null if there is no room for the pages.
std::unique_ptr<ManagedMemory::Block> ManagedMemory::make_block(Context& context, std::uint64_t base, std::uint64_t bytes, State state,
                                                                int access) {
  auto block = std::make_unique<Block>();
  block->base = base;
  block->bytes = bytes;
  block->context = &context;
  block->states.assign((bytes + granule_bytes - 1) / granule_bytes, state);
  block->advice.emplace(0, ManagedAdvice());
  void* const alias = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file_, place_in_file(base));
  if (alias == MAP_FAILED) return nullptr;
  if (::mmap(at(base), bytes, access, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, file_, place_in_file(base)) == MAP_FAILED) {
    ::munmap(alias, bytes);
    return nullptr;
  }
  block->alias = static_cast<std::byte*>(alias);
  return block;
}

void ManagedMemory::drop(const Block& block) {
  // The addresses stay reserved, so that nothing else of the program comes to lie there.
  ::mmap(at(block.base), block.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  ::munmap(block.alias, block.bytes);
  ::fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, place_in_file(block.base), static_cast<off_t>(block.bytes));
  blocks_.erase(block.base);
}

CUresult ManagedMemory::allocate(Thread& thread, Context& context, std::uint64_t bytes, std::uint64_t& address) {
  if (bytes > window_.bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  {
    const std::lock_guard lock(mutex_);
    prepare();
  }
  DeviceMemory& memory = session_.device_memory();
  const CUresult result = memory.allocate(thread, context, bytes, address, memory.pools().managed_of(context.device));
  if (result != CUDA_SUCCESS) return result;
  const std::uint64_t whole = round_up(bytes, page_bytes);
  auto block = make_block(context, address, whole, State::fresh, PROT_READ | PROT_WRITE);
  if (!block) {
    memory.free(thread, address);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  block->parts.emplace(0, whole);
  {
    const std::lock_guard lock(mutex_);
    blocks_.emplace(address, std::move(block));
    touched_ = true;
  }
  open_to_devices(thread, context.device);
  return CUDA_SUCCESS;
}

// Where devices cannot reach each other's memory, kernels of the others find nothing there.
void ManagedMemory::open_to_devices(Thread& thread, int owner) {
  for (const int device : session_.devices_in_use())
    if (device != owner && session_.peers().possible(device, owner))
      session_.peers().set(thread, *session_.device_memory().pools().managed_of(owner), device, true);
}

void ManagedMemory::context_opened(Thread& thread) {
  std::set<int> owners;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [base, block] : blocks_)
      if (window_.contains(base)) owners.insert(block->context->device);
  }
  for (const int owner : owners) open_to_devices(thread, owner);
}

void ManagedMemory::dropped(std::uint64_t address) {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(address);
  if (found != blocks_.end()) drop(*found->second);
}

// --- variables --------------------------------------------------------------------------------------------------------------------

bool ManagedMemory::adopt(Thread& thread, Context& context, std::uint64_t address, std::uint64_t bytes) {
  if (bytes == 0 || !driver_band_.contains(address) || bytes > driver_band_.bytes - (address - driver_band_.base)) return false;
  const std::lock_guard lock(mutex_);
  prepare();
  const std::uint64_t end = address + bytes;
  for (std::uint64_t granule = address / granule_bytes * granule_bytes; granule < end;) {
    Block* block = find(granule);
    if (!block) {
      // As far as the variable goes, or to what is here already.
      const auto next = blocks_.lower_bound(granule);
      const std::uint64_t stop = std::min(round_up(end, granule_bytes), next == blocks_.end() ? ~std::uint64_t{0} : next->first);
      auto made = make_block(context, granule, stop - granule, State::theirs, PROT_NONE);
      if (!made) return false;
      block = blocks_.emplace(granule, std::move(made)).first->second.get();
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

// --- contents ---------------------------------------------------------------------------------------------------------------------

std::uint64_t ManagedMemory::offset_of(std::size_t granule, const Block& block) const {
  return std::min(granule * granule_bytes, block.bytes);
}

void ManagedMemory::protect(const Block& block, std::size_t first, std::size_t end, int access) const {
  const std::uint64_t begin = offset_of(first, block);
  if (::mprotect(at(block.base + begin), offset_of(end, block) - begin, access) != 0) fail("mprotect of managed memory");
}

ManagedMemory::Block* ManagedMemory::find(std::uint64_t address) const {
  auto it = blocks_.upper_bound(address);
  if (it == blocks_.begin()) return nullptr;
  Block* const block = std::prev(it)->second.get();
  return address - block->base < block->bytes ? block : nullptr;
}

// Copies of ours run on a stream of their own, which waits for nothing: the program may touch managed memory in a host function, when
// the stream that runs it does not go on.
Stream& ManagedMemory::stream_of(Thread& thread, Context& context) {
  if (Stream* const known = session_.streams().find(context.managed_stream)) return *known;
  Stream* const made = session_.make_hidden_stream(thread, context, CU_STREAM_NON_BLOCKING);
  if (!made) throw SystemError("no stream for the contents of managed memory");
  context.managed_stream = made->handle;
  return *made;
}

void ManagedMemory::hand_over(Thread& thread) {
  const std::lock_guard lock(mutex_);
  touched_ = false;
  touched_while_busy_ = false;
  const bool several = session_.devices_in_use().size() > 1;
  for (auto& [base, block] : blocks_) {
    if (!block->context->active) continue;
    if (send(thread, *block) && several) await_sent(thread, *block->context);
  }
}

// Work in a block's own context comes behind what was sent there; that of other devices does not by itself.
void ManagedMemory::await_sent(Thread& thread, Context& context) {
  RemoteCall<wire::CuStreamSynchronize> call(thread, Opcode::cuStreamSynchronize, ContextNeed::none);
  call.in_context(&context);
  call.in().setHStream(stream_of(thread, context).wire());
  call.wait();  // should it fail, the context's next call says so
}

bool ManagedMemory::send(Thread& thread, Block& block) {
  bool sent = false;
  const auto send_range = [&](std::uint64_t offset, std::uint64_t bytes) {
    this->send_range(thread, block, offset, bytes);
    sent = true;
  };
  auto& states = block.states;
  for (std::size_t first = 0; first < states.size();) {
    const State state = states[first];
    const bool twinned = block.twins.contains(first);
    std::size_t end = first + 1;
    while (!twinned && end < states.size() && states[end] == state && !block.twins.contains(end)) ++end;
    const std::uint64_t begin = offset_of(first, block), stop = offset_of(end, block);
    if (state != State::theirs) protect(block, first, end, PROT_NONE);  // first, so that nothing is written behind our back
    if (twinned) {
      const auto& twin = block.twins[first];
      for_changed_runs(std::span<const std::byte>(block.alias + begin, stop - begin), twin,
                       [&](std::size_t offset, std::size_t bytes) { send_range(begin + offset, bytes); });
    } else if (state == State::ours) {
      send_range(begin, stop - begin);
    } else if (state == State::fresh) {
      // Only what the program has touched so far is there at all.
      const off_t file_begin = place_in_file(block.base + begin);
      const off_t file_end = file_begin + static_cast<off_t>(stop - begin);
      for (off_t data = ::lseek(file_, file_begin, SEEK_DATA); data >= 0 && data < file_end;) {
        const off_t hole = std::min(::lseek(file_, data, SEEK_HOLE), file_end);
        send_range(begin + static_cast<std::uint64_t>(data - file_begin), static_cast<std::uint64_t>(hole - data));
        data = hole < file_end ? ::lseek(file_, hole, SEEK_DATA) : -1;
      }
    }
    std::fill(states.begin() + static_cast<std::ptrdiff_t>(first), states.begin() + static_cast<std::ptrdiff_t>(end), State::theirs);
    first = end;
  }
  block.twins.clear();
  return sent;
}

// Calls act(offset, bytes) for what the GPU has of a range.
template <class Act>
void for_parts(const std::map<std::uint64_t, std::uint64_t>& parts, std::uint64_t offset, std::uint64_t bytes, Act&& act) {
  const std::uint64_t end = offset + bytes;
  auto part = parts.upper_bound(offset);
  if (part != parts.begin()) --part;
  for (; part != parts.end() && part->first < end; ++part) {
    const std::uint64_t first = std::max(offset, part->first), last = std::min(end, part->first + part->second);
    if (first < last) act(first, last - first);
  }
}

void ManagedMemory::send_range(Thread& thread, Block& block, std::uint64_t offset, std::uint64_t bytes) {
  const Stream& stream = stream_of(thread, *block.context);
  for_parts(block.parts, offset, bytes, [&](std::uint64_t at, std::uint64_t rest) {
    while (rest > 0) {
      const std::uint64_t part = std::min<std::uint64_t>(rest, limits::bulk_bytes_max);
      RemoteCall<wire::CopyIn> call(thread, Opcode::copyIn, ContextNeed::none);
      call.in_context(block.context);
      auto in = call.in();
      in.setStream(stream.wire());
      auto shape = in.initShape();
      shape.setWidth(part);
      shape.setHeight(1);
      shape.setDepth(1);
      in.initTarget().setAddress(block.base + at);
      in.setComplete(true);  // whatever comes later, on any stream, finds it
      in.getSource().setBulk();
      call.bulk({block.alias + at, part});
      call.tell();
      at += part;
      rest -= part;
    }
  });
}

void ManagedMemory::fetch_range(Thread& thread, Block& block, std::uint64_t offset, std::uint64_t bytes) {
  for_parts(block.parts, offset, bytes, [&](std::uint64_t at, std::uint64_t length) {
    RemoteCall<wire::CopyOut> call(thread, Opcode::copyOut, ContextNeed::none);
    call.in_context(block.context);
    auto in = call.in();
    in.setStream(stream_of(thread, *block.context).wire());
    auto shape = in.initShape();
    shape.setWidth(length);
    shape.setHeight(1);
    shape.setDepth(1);
    in.initSource().setAddress(block.base + at);
    in.getTarget().setReply();
    call.target({block.alias + at, length});
    const CUresult result = call.wait();
    if (result != CUDA_SUCCESS || call.arrived_bytes() != length)
      throw SystemError("managed memory could not be fetched from the GPU: " + std::string(result_name(result)));
  });
}

void ManagedMemory::fetch(Thread& thread, Block& block, std::size_t granule) {
  block.fetch_ahead = granule == block.next_fetch && granule != 0 ? std::min(2 * block.fetch_ahead, fetch_ahead_max) : 1;
  std::size_t end = granule + 1;
  while (end < block.states.size() && end - granule < block.fetch_ahead && block.states[end] == State::theirs) ++end;
  block.next_fetch = end;
  const std::uint64_t begin = offset_of(granule, block);
  fetch_range(thread, block, begin, offset_of(end, block) - begin);
  std::fill(block.states.begin() + static_cast<std::ptrdiff_t>(granule), block.states.begin() + static_cast<std::ptrdiff_t>(end),
            State::shared);
  protect(block, granule, end, PROT_READ);
}

bool ManagedMemory::fault(std::uint64_t address, bool writing) {
  const std::lock_guard lock(mutex_);
  Block* const block = find(address);
  if (!block) return false;
  open(*block, (address - block->base) / granule_bytes, writing);
  return true;
}

void ManagedMemory::touch(std::uint64_t address, std::uint64_t bytes, bool writing) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t end = address + std::min(bytes, ~address);
  while (address < end) {
    Block* const block = find(address);
    if (!block) return;
    const std::size_t granule = (address - block->base) / granule_bytes;
    open(*block, granule, writing);
    address = block->base + offset_of(granule + 1, *block);
  }
}

// Nothing is left to do where another thread met the same fault before.
void ManagedMemory::open(Block& block, std::size_t granule, bool writing) {
  State& state = block.states[granule];
  if (state == State::fresh || state == State::ours) return;
  if (state == State::theirs) {
    fetch(Thread::current(), block, granule);
  } else if (!writing) {
    return;
  }
  touched_ = true;
  const bool busy = !session_.idle();
  if (busy) touched_while_busy_ = true;
  if (!writing) return;
  if (busy) {
    const std::uint64_t begin = offset_of(granule, block);
    block.twins[granule].assign(block.alias + begin, block.alias + offset_of(granule + 1, block));
  }
  state = State::ours;
  protect(block, granule, granule + 1, PROT_READ | PROT_WRITE);
}

// --- advice -----------------------------------------------------------------------------------------------------------------------

std::map<std::uint64_t, ManagedAdvice>::iterator ManagedMemory::split(Block& block, std::uint64_t offset) {
  const auto behind = block.advice.upper_bound(offset);
  const auto holds = std::prev(behind);
  return holds->first == offset ? holds : block.advice.emplace_hint(behind, offset, holds->second);
}

bool ManagedMemory::advise(std::uint64_t address, std::uint64_t bytes, const std::function<void(ManagedAdvice&)>& change) {
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
  for (auto it = std::prev(block->advice.upper_bound(begin)); it != block->advice.end() && it->first < begin + bytes; ++it)
    visit(it->second);
  return true;
}

}  // namespace fargpu::client
