#include "managed_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

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

ManagedMemory::ManagedMemory(Session& session, std::uint64_t window_base, std::uint64_t window_bytes)
    : session_(session), window_base_(window_base), window_bytes_(window_bytes) {}

// Nothing of this exists in programs that use no managed memory.
void ManagedMemory::prepare() {
  if (file_ < 0) {
    const int file = ::memfd_create("fargpu-managed", MFD_CLOEXEC);
    if (file < 0) fail("memfd_create");
    if (::ftruncate(file, static_cast<off_t>(window_bytes_)) != 0) {
      ::close(file);
      fail("memory file for managed memory");
    }
    file_ = file;
  }
  watch_faults(*this);
  watch_system_calls(*this, window_base_, window_bytes_);
}

CUresult ManagedMemory::allocate(Thread& thread, Context& context, std::uint64_t bytes, std::uint64_t& address) {
  if (bytes > window_bytes_) return CUDA_ERROR_OUT_OF_MEMORY;
  {
    const std::lock_guard lock(mutex_);
    prepare();
  }
  DeviceMemory& memory = session_.device_memory();
  const CUresult result = memory.allocate(thread, context, bytes, address, memory.pools().managed_of(context.device));
  if (result != CUDA_SUCCESS) return result;
  const std::uint64_t whole = round_up(bytes, page_bytes);
  auto block = std::make_unique<Block>();
  block->base = address;
  block->bytes = whole;
  block->context = &context;
  block->states.assign((whole + granule_bytes - 1) / granule_bytes, State::fresh);
  block->advice.emplace(0, ManagedAdvice());
  const auto offset = static_cast<off_t>(address - window_base_);
  void* const alias = ::mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file_, offset);
  void* const seen = alias == MAP_FAILED
                         ? MAP_FAILED
                         : ::mmap(at(address), whole, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, file_, offset);
  if (seen == MAP_FAILED) {
    if (alias != MAP_FAILED) ::munmap(alias, whole);
    memory.free(thread, address);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  block->alias = static_cast<std::byte*>(alias);
  const std::lock_guard lock(mutex_);
  blocks_.emplace(address, std::move(block));
  touched_ = true;
  return CUDA_SUCCESS;
}

void ManagedMemory::dropped(std::uint64_t address) {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(address);
  if (found == blocks_.end()) return;
  const Block& block = *found->second;
  // The addresses stay reserved, so that nothing else of the program comes to lie there.
  ::mmap(at(block.base), block.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  ::munmap(block.alias, block.bytes);
  ::fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(block.base - window_base_),
              static_cast<off_t>(block.bytes));
  blocks_.erase(found);
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
  for (auto& [base, block] : blocks_) {
    if (!block->context->active) continue;
    send(thread, *block);
  }
}

void ManagedMemory::send(Thread& thread, Block& block) {
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
                       [&](std::size_t offset, std::size_t bytes) { send_range(thread, block, begin + offset, bytes); });
    } else if (state == State::ours) {
      send_range(thread, block, begin, stop - begin);
    } else if (state == State::fresh) {
      // Only what the program has touched so far is there at all.
      const auto file_begin = static_cast<off_t>(block.base - window_base_ + begin);
      const auto file_end = static_cast<off_t>(block.base - window_base_ + stop);
      for (off_t data = ::lseek(file_, file_begin, SEEK_DATA); data >= 0 && data < file_end;) {
        const off_t hole = std::min(::lseek(file_, data, SEEK_HOLE), file_end);
        send_range(thread, block, begin + static_cast<std::uint64_t>(data - file_begin), static_cast<std::uint64_t>(hole - data));
        data = hole < file_end ? ::lseek(file_, hole, SEEK_DATA) : -1;
      }
    }
    std::fill(states.begin() + static_cast<std::ptrdiff_t>(first), states.begin() + static_cast<std::ptrdiff_t>(end), State::theirs);
    first = end;
  }
  block.twins.clear();
}

void ManagedMemory::send_range(Thread& thread, Block& block, std::uint64_t offset, std::uint64_t bytes) {
  const Stream& stream = stream_of(thread, *block.context);
  while (bytes > 0) {
    const std::uint64_t part = std::min<std::uint64_t>(bytes, limits::bulk_bytes_max);
    RemoteCall<wire::CopyIn> call(thread, Opcode::copyIn, ContextNeed::none);
    call.in_context(block.context);
    auto in = call.in();
    in.setStream(stream.wire());
    auto shape = in.initShape();
    shape.setWidth(part);
    shape.setHeight(1);
    shape.setDepth(1);
    in.initTarget().setAddress(block.base + offset);
    in.setComplete(true);  // whatever comes later, on any stream, finds it
    in.getSource().setBulk();
    call.bulk({block.alias + offset, part});
    call.tell();
    offset += part;
    bytes -= part;
  }
}

void ManagedMemory::fetch(Thread& thread, Block& block, std::size_t granule) {
  block.fetch_ahead = granule == block.next_fetch && granule != 0 ? std::min(2 * block.fetch_ahead, fetch_ahead_max) : 1;
  std::size_t end = granule + 1;
  while (end < block.states.size() && end - granule < block.fetch_ahead && block.states[end] == State::theirs) ++end;
  block.next_fetch = end;
  const std::uint64_t begin = offset_of(granule, block);
  const std::uint64_t bytes = offset_of(end, block) - begin;
  RemoteCall<wire::CopyOut> call(thread, Opcode::copyOut, ContextNeed::none);
  call.in_context(block.context);
  auto in = call.in();
  in.setStream(stream_of(thread, *block.context).wire());
  auto shape = in.initShape();
  shape.setWidth(bytes);
  shape.setHeight(1);
  shape.setDepth(1);
  in.initSource().setAddress(block.base + begin);
  in.getTarget().setReply();
  call.target({block.alias + begin, bytes});
  const CUresult result = call.wait();
  if (result != CUDA_SUCCESS || call.arrived_bytes() != bytes)
    throw SystemError("managed memory could not be fetched from the GPU: " + std::string(result_name(result)));
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
