#include "paged_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <string>

#include "client/base/pages.h"
#include "client/objects/context.h"
#include "fault_handler.h"
#include "protocol/changed_runs.h"
#include "protocol/errors.h"
#include "protocol/limits.h"
#include "client/call/calls.h"
#include "conflicts.h"
#include "system_calls.h"
#include "vector_calls.h"
#include "client/objects/thread.h"
#include "client/stream/whole_system_work.h"

namespace fargpu::client {
namespace {

constexpr std::uint64_t fetch_bytes_max = limits::bulk_bytes_max;

/// The first granule from here on that is not theirs, of which most blocks have few.
template <class State>
std::size_t next_here(const std::vector<State>& states, std::size_t from) {
  static_assert(sizeof(State) == 1 && static_cast<int>(State::theirs) == 0);
  std::uint64_t eight = 0;
  while (from < states.size() && states[from] == State::theirs) {
    while (from + 8 <= states.size() && (std::memcpy(&eight, &states[from], 8), eight == 0)) from += 8;
    if (from < states.size() && states[from] == State::theirs) ++from;
  }
  return from;
}

[[noreturn]] void fail(const std::string& what) { throw SystemError(what + ": " + std::strerror(errno)); }

}  // namespace

PagedMemory::PagedMemory(const Parts& parts, const char* name, const std::array<Window, 2>& windows, Use use)
    : calls_(parts.calls),
      contexts_(parts.contexts),
      whole_system_work_(parts.whole_system_work),
      name_(name),
      windows_(windows),
      use_(use) {}

void PagedMemory::prepare() {
  if (file_ < 0) {
    const int file = ::memfd_create(name_, MFD_CLOEXEC);
    if (file < 0) fail("memfd_create");
    if (::ftruncate(file, static_cast<off_t>(windows_[0].bytes + windows_[1].bytes)) != 0) {
      ::close(file);
      fail(std::string("a memory file, ") + name_);
    }
    file_ = file;
  }
  exists_ = true;
  const auto kind = static_cast<std::size_t>(use_);
  watch_faults(*this, kind);
  watch_system_calls(*this, kind, windows_);
  watch_vector_calls();
  whole_system_work_.watch_giving();
}

off_t PagedMemory::place_in_file(std::uint64_t address) const {
  return static_cast<off_t>(windows_[0].contains(address) ? address - windows_[0].base
                                                          : windows_[0].bytes + (address - windows_[1].base));
}

bool PagedMemory::make_alias(Block& block, State state) {
  block.states.assign((block.bytes + block.granule - 1) / block.granule, state);
  void* const alias = ::mmap(nullptr, block.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file_,
                             place_in_file(block.base));
  if (alias == MAP_FAILED) return false;
  block.alias = static_cast<std::byte*>(alias);
  return true;
}

bool PagedMemory::make_visible(const Block& block, int access) {
  return ::mmap(bytes_at(block.base), block.bytes, access, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, file_,
                place_in_file(block.base)) != MAP_FAILED;
}

void PagedMemory::drop_alias(const Block& block) {
  ::munmap(block.alias, block.bytes);
  ::fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, place_in_file(block.base),
              static_cast<off_t>(block.bytes));
}

void PagedMemory::drop(const Block& block) {
  // Nothing else of the program may come to lie there.
  ::mmap(bytes_at(block.base), block.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  drop_alias(block);
  blocks_.erase(block.base);
}

std::uint64_t PagedMemory::offset_of(std::size_t granule, const Block& block) const {
  return std::min(granule * block.granule, block.bytes);
}

bool PagedMemory::try_protect(const Block& block, std::size_t first, std::size_t end, int access) const {
  const std::uint64_t begin = offset_of(first, block);
  if (::mprotect(bytes_at(block.base + begin), offset_of(end, block) - begin, access) == 0) return true;
  if (errno != ENOMEM) fail(std::string("mprotect, ") + name_);
  return false;
}

void PagedMemory::protect(const Block& block, std::size_t first, std::size_t end, int access) const {
  if (!try_protect(block, first, end, access)) fail(std::string("mprotect, ") + name_);
}

PagedMemory::Granules PagedMemory::up_to_next(const Block& block, Granules some, State open, State between) const {
  std::size_t first = some.first, end = some.end;
  while (first > 0 && block.states[first - 1] == between) --first;
  while (end < block.states.size() && block.states[end] == between) ++end;
  const bool before = first > 0 && block.states[first - 1] == open;
  const bool behind = end < block.states.size() && block.states[end] == open;
  if (before && (!behind || some.first - first <= end - some.end)) return {first, some.end};
  if (behind) return {some.first, end};
  return {first, end};
}

PagedMemory::Block* PagedMemory::find(std::uint64_t address) const {
  auto it = blocks_.upper_bound(address);
  if (it == blocks_.begin()) return nullptr;
  Block* const block = std::prev(it)->second.get();
  return address - block->base < block->bytes ? block : nullptr;
}

void PagedMemory::make_private(const Block& block) const {
  ::mmap(bytes_at(block.base), block.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE | MAP_FIXED, file_,
         place_in_file(block.base));
}

void PagedMemory::become_private() {
  for (const auto& [base, block] : blocks_) make_private(*block);
  blocks_.clear();
}

// Whether work was submitted by one thread while another touched pages, between the hand-over and the submission.
bool PagedMemory::overtaken() const {
  return use_ == Use::at_once && touched_.load(std::memory_order_relaxed) &&
         touched_at_.load(std::memory_order_relaxed) < calls_.submitted();
}

void PagedMemory::hand_over(Thread& thread) {
  watch_vector_calls();  // of libraries that were loaded since: only from here on pages may be without access
  const std::lock_guard lock(mutex_);
  for (auto& [base, block] : blocks_) {
    if (!block->context->active) continue;
    // Managed memory goes to its own context, from which nothing comes back then.
    if (use_ == Use::in_turns && block->context->failure != CUDA_SUCCESS) continue;
    send(thread, *block);
  }
  handed_over(thread);
  // Last: a thread that finds nothing to hand over must not find old pages either.
  touched_ = false;
  touched_while_busy_ = false;
}

void PagedMemory::have_waited(Thread& thread) {
  if (touched_while_busy_ || overtaken()) hand_over(thread);
  settle_changes(thread);
}

void PagedMemory::settle_changes(Thread& thread) {
  if (!unheard_) return;
  const std::lock_guard lock(mutex_);
  const Thread::AnswersOnly answers_only(thread);
  ask_behind_changes(thread);
  unheard_ = false;  // at last: threads that wait meanwhile wait for this
}

void PagedMemory::send(Thread& thread, Block& block) {
  auto& states = block.states;
  // Whether the GPU may have worked since the program touched what is sent.
  const bool at_once = touched_while_busy_ || touched_at_.load() < calls_.submitted();
  for (std::size_t first = next_here(states, 0); first < states.size(); first = next_here(states, first)) {
    const State state = states[first];
    const bool twinned = block.twins.contains(first);
    std::size_t end = first + 1;
    while (!twinned && end < states.size() && states[end] == state && !block.twins.contains(end)) ++end;
    try {
      // First, so that nothing is written behind our back. All that follows in the block goes too: that takes no
      // mapping.
      if (!try_protect(block, first, end, PROT_NONE)) protect(block, first, states.size(), PROT_NONE);
      send_granules(thread, block, {first, end}, at_once);
    } catch (...) {
      open_as_they_are(block, first);
      throw;
    }
    block.twins.erase(first);
    std::fill(states.begin() + static_cast<std::ptrdiff_t>(first), states.begin() + static_cast<std::ptrdiff_t>(end),
              State::theirs);
    first = end;
  }
  block.twins.clear();
}

// Of one state; with a twin, it is one.
void PagedMemory::send_granules(Thread& thread, Block& block, Granules some, bool at_once) {
  const std::uint64_t begin = offset_of(some.first, block), stop = offset_of(some.end, block);
  const State state = block.states[some.first];
  if (const auto found = block.twins.find(some.first); found != block.twins.end()) {
    const auto& twin = found->second;
    if (at_once && send_changes(thread, block, begin, twin)) return;
    if (at_once) compare(thread, block, begin, twin);
    for_changed_runs({block.alias + begin, twin.size()}, twin,
                     [&](std::size_t offset, std::size_t bytes) { send_range(thread, block, begin + offset, bytes); });
  } else if (state == State::ours) {
    send_range(thread, block, begin, stop - begin);
  } else if (state == State::fresh) {
    // Only what the program has touched so far is there at all.
    const off_t file_begin = place_in_file(block.base + begin);
    const off_t file_end = file_begin + static_cast<off_t>(stop - begin);
    for (off_t data = ::lseek(file_, file_begin, SEEK_DATA); data >= 0 && data < file_end;) {
      const off_t hole = std::min(::lseek(file_, data, SEEK_HOLE), file_end);
      send_range(thread, block, begin + static_cast<std::uint64_t>(data - file_begin),
                 static_cast<std::uint64_t>(hole - data));
      data = hole < file_end ? ::lseek(file_, hole, SEEK_DATA) : -1;
    }
  }
}

// They were closed to be sent, which cannot be. The program finds its bytes there yet, and no fault that would have
// nothing to do.
void PagedMemory::open_as_they_are(const Block& block, std::size_t first) const noexcept {
  for (std::size_t end = first; first < block.states.size(); first = end) {
    const State state = block.states[first];
    while (end < block.states.size() && block.states[end] == state) ++end;
    if (state == State::theirs) continue;
    const int access = state == State::shared ? PROT_READ : PROT_READ | PROT_WRITE;
    const std::uint64_t begin = offset_of(first, block);
    ::mprotect(bytes_at(block.base + begin), offset_of(end, block) - begin, access);
  }
}

// For a worker that does not compare. What the GPU changes between this and the arrival of the program's change is lost
// without a word.
void PagedMemory::compare(Thread& thread, Block& block, std::uint64_t offset, std::span<const std::byte> known) {
  const std::span<std::byte> now(block.alias + offset, known.size());
  const std::vector<std::byte> ours(now.begin(), now.end());
  const Thread::AnswersOnly answers_only(thread);
  try {
    fetch_range(thread, block, offset, now.size());
    const std::size_t both = changed_by_both(ours, now, known);
    if (both < now.size() && block.context->failure == CUDA_SUCCESS)
      note_conflict(block.base + offset + both, use_ == Use::in_turns ? "managed" : "pinned", block.base, block.bytes);
  } catch (const SystemError&) {  // of a context that has failed: its calls say so
  }
  std::copy(ours.begin(), ours.end(), now.begin());
}

void PagedMemory::fetch(Thread& thread, Block& block, std::size_t granule) {
  const Thread::AnswersOnly answers_only(thread);  // of failures of calls the next call tells
  auto run = std::find_if(block.runs.begin(), block.runs.end(),
                          [&](const Block::Run& one) { return one.next == granule && granule != 0; });
  if (run == block.runs.end()) {
    run = block.runs.begin() + static_cast<std::ptrdiff_t>(block.oldest_run++ % block.runs.size());
    run->ahead = 1;
  } else {
    run->ahead =
        std::clamp<std::size_t>(2 * run->ahead, 1, std::max<std::uint64_t>(1, fetch_bytes_max / block.granule));
  }
  std::size_t end = granule + 1;
  while (end < block.states.size() && end - granule < run->ahead && block.states[end] == State::theirs) ++end;
  run->next = end;
  const std::uint64_t begin = offset_of(granule, block);
  fetch_range(thread, block, begin, offset_of(end, block) - begin);
  const auto become_shared = [&](std::size_t first, std::size_t last) {
    std::fill(block.states.begin() + static_cast<std::ptrdiff_t>(first),
              block.states.begin() + static_cast<std::ptrdiff_t>(last), State::shared);
  };
  if (try_protect(block, granule, end, PROT_READ)) return become_shared(granule, end);
  const Granules all = up_to_next(block, {granule, end}, State::shared, State::theirs);
  const auto fetch_more = [&](std::size_t first, std::size_t last) {
    if (first < last)
      fetch_range(thread, block, offset_of(first, block), offset_of(last, block) - offset_of(first, block));
  };
  fetch_more(all.first, granule);
  fetch_more(end, all.end);
  protect(block, all.first, all.end, PROT_READ);
  become_shared(all.first, all.end);
}

bool PagedMemory::within(std::uint64_t begin, std::uint64_t end) const {
  return std::any_of(windows_.begin(), windows_.end(),
                     [&](const Window& window) { return begin < window.base + window.bytes && window.base < end; });
}

bool PagedMemory::fault(std::uint64_t address, bool writing) {
  if (!covers(address)) return false;
  WholeSystemWork::Look look(whole_system_work_);
  std::unique_lock lock(mutex_);
  return open_in_turn(lock, look, address, writing);
}

// False if there is no block. Opened under the lock while it is the program's turn: a launch that begins now sends what
// was opened first. Nothing is left to do where another thread met the fault before.
bool PagedMemory::open_in_turn(std::unique_lock<std::mutex>& lock, WholeSystemWork::Look& look, std::uint64_t address,
                               bool writing) {
  for (;;) {
    Block* const block = find(address);
    if (!block) return false;
    const std::size_t granule = (address - block->base) / block->granule;
    const State state = block->states[granule];
    if (state != State::theirs && !(state == State::shared && writing)) return true;
    if (look.is_turn()) {
      open(*block, granule, writing);
      return true;
    }
    lock.unlock();
    look.wait();
    lock.lock();
  }
}

void PagedMemory::touch(std::uint64_t address, std::uint64_t bytes, bool writing) {
  const std::uint64_t end = address + std::min(bytes, ~address);
  // Without the lock: the thread that holds it may be in a system call on other memory.
  if (!within(address, end)) return;
  WholeSystemWork::Look look(whole_system_work_);
  std::unique_lock lock(mutex_);
  while (address < end && open_in_turn(lock, look, address, writing)) {
    const Block* const block = find(address);
    address = block->base + offset_of((address - block->base) / block->granule + 1, *block);
  }
}

// One of theirs, or for writing, one that is shared.
void PagedMemory::open(Block& block, std::size_t granule, bool writing) {
  State& state = block.states[granule];
  // Before anything is fetched: another thread that waits for work meanwhile must know that what comes may be old.
  if (!touched_) touched_at_ = calls_.submitted();
  touched_ = true;
  // In this order: work counts itself first, and then looks whether something was touched.
  const bool busy = whole_system_work_.being_given() || !contexts_.idle();
  if (busy && !touched_while_busy_.exchange(true)) touched_early();
  if (state == State::theirs) fetch(Thread::current(), block, granule);
  if (!writing) return;
  const auto know = [&](std::size_t each) {
    // Also where the page came while the GPU was at work, which nobody has waited for yet.
    if (!touched_while_busy_ && use_ != Use::at_once) return;
    const std::uint64_t begin = offset_of(each, block);
    block.twins[each].assign(block.alias + begin, block.alias + offset_of(each + 1, block));
  };
  Granules all{granule, granule + 1};
  know(granule);
  if (!try_protect(block, all.first, all.end, PROT_READ | PROT_WRITE)) {
    all = up_to_next(block, all, State::ours, State::shared);
    for (std::size_t each = all.first; each < all.end; ++each)
      if (each != granule) know(each);
    protect(block, all.first, all.end, PROT_READ | PROT_WRITE);
  }
  for (std::size_t each = all.first; each < all.end; ++each) block.states[each] = State::ours;
}

}  // namespace fargpu::client
