#pragma once
// Objects by handle, found without a lock: the table behind streams, events, contexts, functions and the like.

#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "protocol/handle.h"

namespace fargpu::client {

/// Maps handles of one kind to objects of type T. Objects are never freed while the table lives; erasing one makes its
/// handle stale and keeps the object, so that a racing reader never meets freed memory. T must have `void reset()`,
/// which is called before an object is used for another handle: the next of its index if that is the client's to give;
/// long after, and for any, if it is the worker's, which may be hostile and name an index again while threads read what
/// stood there. Threads: find() from any thread without a lock; the rest is serialised inside.
template <class T>
class HandleMap {
 public:
  /// `origin`: of all its handles. `kept`: threads keep pointers to objects after their handles are stale. Then no
  /// object is used for another handle before some thousand others have been.
  explicit HandleMap(HandleKind kind, unsigned origin = 0, bool kept = false)
      : kind_(kind), origin_(origin), kept_(kept) {}

  /// The object of a live handle, or null.
  T* find(Handle handle) const {
    if (!handle.well_formed(kind_, origin_)) return nullptr;
    Slot* slot = slot_at(handle.index());
    if (!slot || slot->live.load(std::memory_order_acquire) != handle.id() + 1ull) return nullptr;
    return slot->object.load(std::memory_order_acquire);
  }
  T* find_id(std::uint32_t id) const { return find(Handle::from_id(kind_, id, origin_)); }

  /// A new handle of the client's own range, with its object still invisible: fill it, then publish(), or give_up().
  /// Returns a null handle when the range is used up.
  std::pair<Handle, T*> create() {
    const std::lock_guard lock(mutex_);
    std::uint32_t index = 0;
    // Freed indices wait in line, so that a stale handle stays recognisable for as long as possible.
    if (free_.size() > 1024 || (next_ >= Handle::worker_index_first && !free_.empty())) {
      index = free_.front();
      free_.pop_front();
    } else if (next_ < Handle::worker_index_first) {
      index = next_++;
    } else {
      return {Handle(), nullptr};
    }
    Slot& slot = make_slot(index);
    slot.generation = (slot.generation + 1) & Handle::generation_max;
    T* object = slot.object.load(std::memory_order_relaxed);
    if (kept_ && slot.generation > 1) {
      replaced_.push_back(object);
      object = unread_object();
      slot.object.store(object, std::memory_order_release);
    }
    object->reset();
    return {Handle(kind_, index, slot.generation, origin_), object};
  }

  /// Makes an object findable under its handle.
  void publish(Handle handle) {
    slot_at(handle.index())->live.store(handle.id() + 1ull, std::memory_order_release);
    count_.fetch_add(1, std::memory_order_relaxed);
  }

  /// Takes a handle back that was not published, and that the worker has not taken for an object.
  void give_up(Handle handle) {
    const std::lock_guard lock(mutex_);
    free_.push_back(handle.index());
  }

  /// The object of a handle that the worker gave: the one already known, or a new one that `fill` completes. Null for a
  /// new one in the client's own range, which no worker gives.
  template <class Fill>
  T* learn(Handle handle, Fill&& fill) {
    if (T* const known = find(handle)) return known;
    if (!handle.well_formed(kind_, origin_) || handle.index() < Handle::worker_index_first) return nullptr;
    const std::lock_guard lock(mutex_);
    Slot& slot = make_slot(handle.index());
    T* const before = slot.object.load(std::memory_order_relaxed);
    const std::uint64_t live = slot.live.load(std::memory_order_relaxed);
    if (live == handle.id() + 1ull) return before;
    T* const object = unread_object();
    fill(*object);
    slot.generation = handle.generation();
    slot.object.store(object, std::memory_order_release);  // before anyone looks for it
    slot.live.store(handle.id() + 1ull, std::memory_order_release);
    if (live == 0) count_.fetch_add(1, std::memory_order_relaxed);
    replaced_.push_back(before);
    return object;
  }

  /// Makes the handle stale. Returns false if it was so already.
  bool erase(Handle handle) {
    const std::lock_guard lock(mutex_);
    Slot* slot = handle.well_formed(kind_, origin_) ? slot_at(handle.index()) : nullptr;
    if (!slot || slot->live.load(std::memory_order_relaxed) != handle.id() + 1ull) return false;
    slot->live.store(0, std::memory_order_release);
    if (handle.index() < Handle::worker_index_first) free_.push_back(handle.index());
    count_.fetch_sub(1, std::memory_order_relaxed);
    return true;
  }

  /// Whether the handle was given once and its object is gone. After some thousand objects at one index this is
  /// forgotten.
  bool was(Handle handle) {
    const std::lock_guard lock(mutex_);
    Slot* const slot = handle.well_formed(kind_, origin_) ? slot_at(handle.index()) : nullptr;
    return slot && slot->live.load(std::memory_order_relaxed) != handle.id() + 1ull && handle.generation() != 0 &&
           handle.generation() <= slot->generation;
  }

  /// Whether the object of this handle is gone, no other one has taken its place yet, and `test` holds of it.
  template <class Test>
  bool gone(Handle handle, Test&& test) {
    const std::lock_guard lock(mutex_);
    Slot* const slot = handle.well_formed(kind_, origin_) ? slot_at(handle.index()) : nullptr;
    return slot && slot->live.load(std::memory_order_relaxed) == 0 && handle.generation() == slot->generation &&
           test(*slot->object.load(std::memory_order_relaxed));
  }

  /// Calls visit(handle, object) for each live object.
  template <class Visit>
  void for_each(Visit&& visit) {
    for (Chunk* chunk = first_.load(std::memory_order_acquire); chunk;
         chunk = chunk->next.load(std::memory_order_acquire)) {
      const std::uint32_t used = chunk->used.load(std::memory_order_acquire);
      for (std::uint32_t i = 0; i < used; ++i) {
        Slot& slot = chunk->slots[i];
        const std::uint64_t live = slot.live.load(std::memory_order_acquire);
        if (live)
          visit(Handle::from_id(kind_, static_cast<std::uint32_t>(live - 1), origin_),
                *slot.object.load(std::memory_order_acquire));
      }
    }
  }

  std::size_t size() const { return count_.load(std::memory_order_relaxed); }

 private:
  struct Slot {
    std::atomic<std::uint64_t> live{0};  // id + 1 of the handle, 0 while there is none
    std::uint32_t generation = 0;
    T first{};
    std::atomic<T*> object{&first};  // another one once it was learned
  };
  static constexpr std::size_t replaced_max = 4096;
  static constexpr std::uint32_t chunk_bits = 8;
  static constexpr std::uint32_t chunk_count = (Handle::index_max + 1) >> chunk_bits;
  static constexpr std::uint32_t chunk_slots = 1u << chunk_bits;
  struct Chunk {
    std::array<Slot, chunk_slots> slots;
    std::atomic<std::uint32_t> used{0};  // slots up to the last that was ever taken
    std::atomic<Chunk*> next{nullptr};   // in the order in which they were made
  };

  Slot* slot_at(std::uint32_t index) const {
    Chunk* chunk = chunks_[index >> chunk_bits].load(std::memory_order_acquire);
    return chunk ? &chunk->slots[index % chunk_slots] : nullptr;
  }

  // An object that nobody reads any more: a new one until so many wait that the first of them was replaced long ago.
  // Under mutex_.
  T* unread_object() {
    if (replaced_.size() < replaced_max) return learned_.emplace_back(std::make_unique<T>()).get();
    T* const object = replaced_.front();
    replaced_.pop_front();
    object->reset();
    return object;
  }

  Slot& make_slot(std::uint32_t index) {  // under mutex_
    auto& place = chunks_[index >> chunk_bits];
    Chunk* chunk = place.load(std::memory_order_relaxed);
    if (!chunk) {
      std::atomic<Chunk*>& before = owned_.empty() ? first_ : owned_.back()->next;
      owned_.push_back(std::make_unique<Chunk>());
      chunk = owned_.back().get();
      place.store(chunk, std::memory_order_release);
      before.store(chunk, std::memory_order_release);
    }
    const std::uint32_t slot = index % chunk_slots;
    if (chunk->used.load(std::memory_order_relaxed) <= slot) chunk->used.store(slot + 1, std::memory_order_release);
    return chunk->slots[slot];
  }

  const HandleKind kind_;
  const unsigned origin_;
  const bool kept_;
  std::array<std::atomic<Chunk*>, chunk_count> chunks_{};
  std::atomic<Chunk*> first_{nullptr};
  std::mutex mutex_;
  std::vector<std::unique_ptr<Chunk>> owned_;
  std::vector<std::unique_ptr<T>> learned_;
  std::deque<T*> replaced_;  // oldest first
  std::deque<std::uint32_t> free_;
  std::uint32_t next_ = 1;
  std::atomic<std::size_t> count_{0};
};

}  // namespace fargpu::client
