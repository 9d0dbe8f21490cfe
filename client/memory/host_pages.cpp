#include "host_pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "cuda_facts.h"
#include "client/base/log.h"
#include "operations.capnp.h"
#include "client/base/life.h"
#include "client/base/pages.h"
#include "protocol/changed_runs.h"
#include "protocol/errors.h"
#include "protocol/limits.h"
#include "client/call/remote_call.h"
#include "client/base/threads.h"

namespace fargpu::client {
namespace {

// Between changed words: what is less goes along, which costs less than a frame.
constexpr std::size_t gap_bytes = 128;

// Calls visit(offset, bytes) for the pages of anonymous memory that are there at all: the others have never been
// touched. All of them where the system does not say.
template <class Visit>
void for_present_pages(std::uint64_t base, std::uint64_t bytes, Visit&& visit) {
  constexpr std::uint64_t present = std::uint64_t{1} << 63, swapped = std::uint64_t{1} << 62;
  const int pages = ::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  std::array<std::uint64_t, 512> entries;
  for (std::uint64_t offset = 0; offset < bytes;) {
    const std::size_t wanted = std::min<std::size_t>(entries.size(), (bytes - offset) / page_bytes);
    const auto place = static_cast<off_t>((base + offset) / page_bytes * sizeof(entries[0]));
    const bool told = pages >= 0 && ::pread(pages, entries.data(), wanted * sizeof(entries[0]), place) ==
                                        static_cast<ssize_t>(wanted * sizeof(entries[0]));
    for (std::size_t i = 0; i < wanted; ++i, offset += page_bytes)
      if (!told || (entries[i] & (present | swapped))) visit(offset, page_bytes);
  }
  if (pages >= 0) ::close(pages);
}

}  // namespace

HostPages::HostPages(const Parts& parts, const Window& window)
    : PagedMemory(parts, "fargpu-host-pages", {window, Window{}}, Use::at_once) {}

bool HostPages::adopt(Context& context, std::uint64_t base, std::uint64_t bytes, std::span<const std::byte> known) {
  // So few granules a block that their protection never takes more mappings than a process may have.
  constexpr std::uint64_t granules_max = 8192;
  // Until it is one of ours: threads that write there meanwhile fault, and wait here.
  const std::lock_guard lock(mutex_);
  prepare();
  auto block = std::make_unique<Block>();
  block->base = base;
  block->bytes = bytes;
  block->context = &context;
  block->granule = std::max(granule_bytes, std::bit_ceil((bytes + granules_max - 1) / granules_max));
  if (!make_alias(*block, known.empty() ? State::fresh : State::ours)) return false;
  if (::mprotect(bytes_at(base), bytes, PROT_READ) != 0) {
    drop_alias(*block);
    return false;
  }
  for_present_pages(base, bytes, [&](std::uint64_t offset, std::uint64_t length) {
    std::memcpy(block->alias + offset, bytes_at(base + offset), length);
  });
  if (!make_visible(*block, PROT_READ | PROT_WRITE)) {
    ::mprotect(bytes_at(base), bytes, PROT_READ | PROT_WRITE);
    drop_alias(*block);
    return false;
  }
  if (!known.empty()) {
    for (std::size_t granule = 0; granule < block->states.size(); ++granule) {
      const std::uint64_t begin = offset_of(granule, *block), end = offset_of(granule + 1, *block);
      auto& twin = block->twins[granule];
      twin.assign(block->alias + begin, block->alias + end);
      if (begin < known.size())
        std::memcpy(twin.data(), known.data() + begin, std::min<std::size_t>(end, known.size()) - begin);
    }
    touched_while_busy_ = true;
  }
  blocks_.emplace(base, std::move(block));
  touched_ = true;
  renew_.notify_one();
  if (!renewing_) start_thread("fargpu-pages", [this] { keep_renewing(); });
  renewing_ = true;
  return true;
}

void HostPages::forsake(std::uint64_t base) {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(base);
  if (found != blocks_.end()) drop(*found->second);
}

void HostPages::send_range(Thread& thread, Block& block, std::uint64_t offset, std::uint64_t bytes) {
  for (const std::uint64_t end = offset + bytes; offset < end;) {
    const std::uint64_t part = std::min<std::uint64_t>(end - offset, limits::bulk_bytes_max);
    RemoteCall<wire::WriteHostBlock> call(calls_, thread);
    call.in().setAddress(block.base + offset);
    call.bulk({block.alias + offset, part});
    call.tell();
    offset += part;
  }
}

bool HostPages::send_changes(Thread& thread, Block& block, std::uint64_t offset, std::span<const std::byte> known) {
  if (!calls_.serves(Opcode::changeHostBlock)) return false;
  const std::span<const std::byte> now(block.alias + offset, known.size());
  std::vector<std::byte> both;
  for_changed_stretches(now, known, gap_bytes, [&](std::size_t begin, std::size_t bytes) {
    for (const std::size_t end = begin + bytes; begin < end; begin += both.size() / 2) {
      const std::size_t part = std::min(end - begin, limits::bulk_bytes_max / 2);
      both.assign(&now[begin], &now[begin] + part);
      both.insert(both.end(), &known[begin], &known[begin] + part);
      RemoteCall<wire::ChangeHostBlock> call(calls_, thread);
      call.in().setAddress(block.base + offset + begin);
      call.bulk(both);
      call.tell();
      changed_ = block.base + offset + begin;
      unheard_ = true;
    }
  });
  return true;
}

// A block that is gone has no more to ask for: the program hears when it waits for something else.
void HostPages::ask_behind_changes(Thread& thread) {
  std::array<std::byte, change_bytes> word;  // not the program's, which may have that page by now
  if (find(changed_)) (void)read(thread, changed_, word);
}

void HostPages::fetch_range(Thread& thread, Block& block, std::uint64_t offset, std::uint64_t bytes) {
  CUresult result = CUDA_SUCCESS;
  for (const std::uint64_t end = offset + bytes; offset < end && result == CUDA_SUCCESS;) {
    const std::uint64_t part = std::min<std::uint64_t>(end - offset, limits::host_read_bytes_max);
    result = read(thread, block.base + offset, {block.alias + offset, part});
    offset += part;
  }
  // What the GPU wrote is lost with the session, as every CUDA call tells from then on; the program's own memory is
  // not.
  if (result != CUDA_SUCCESS && serving())
    throw SystemError("pinned memory could not be fetched from the GPU's host: " + std::string(result_name(result)));
}

// What the worker has at this moment.
CUresult HostPages::read(Thread& thread, std::uint64_t address, std::span<std::byte> into) {
  if (!serving()) return CUDA_ERROR_DEVICE_UNAVAILABLE;
  RemoteCall<wire::ReadHostBlock> call(calls_, thread);
  auto in = call.in();
  in.setAddress(address);
  in.setBytes(into.size());
  call.target(into);
  try {
    const CUresult result = call.wait();
    return result == CUDA_SUCCESS && call.arrived_bytes() != into.size() ? CUDA_ERROR_UNKNOWN : result;
  } catch (const ChannelClosed& error) {
    lose_for(calls_.events, error.what());
    return CUDA_ERROR_DEVICE_UNAVAILABLE;
  }
}

// A program may look at memory that a running kernel writes, and a kernel at memory that the program writes, for as
// long as they like and without another call. It is slow to find out, and slower the longer nothing else happens.
void HostPages::keep_renewing() {
  using namespace std::chrono_literals;
  constexpr std::chrono::milliseconds first = 1ms, last = 32ms;
  auto pause = first;
  while (serving()) {
    {
      std::unique_lock lock(mutex_);
      if (!touched_while_busy_) pause = first;
      renew_.wait(lock, [&] { return touched_while_busy_.load(); });
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, last);
    try {
      after_wait(Thread::current());
    } catch (const std::exception& error) {
      lose_for(calls_.events, error.what());
    }
  }
}

}  // namespace fargpu::client
