#pragma once
// The session's handles and what they stand for in the driver.

#include <cuda.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "protocol/handle.h"

namespace fargpu::server {

/// Parameter layout of a function or kernel.
struct FunctionLayout {
  struct Parameter {
    std::uint32_t offset = 0;
    std::uint32_t bytes = 0;
  };
  std::vector<Parameter> parameters;
  std::uint32_t bytes = 0;  ///< of the whole block
  /// Of a thread's local memory; asked for when it is first launched, which loads it.
  std::optional<std::uint32_t> local_bytes;
  std::uint64_t held_by = 0;  ///< number of the DriverMemory that was last found to hold it; 0: none yet
};

/// Handles of all kinds. A lookup is one index and one comparison; nothing a client sends can lead outside of the
/// tables. Objects that kernels see go by the driver's own values: of those, the session's are remembered, each by its
/// context too, for other contexts have equal values. Used by the executor only.
class Handles {
 public:
  /// `origin`: of all its handles.
  explicit Handles(unsigned origin = 0) : origin_(origin) {}

  /// All handles of a kind that the worker may give are given.
  struct Exhausted : std::exception {
    const char* what() const noexcept override { return "no handle is left for an object of the driver's"; }
  };

  struct Entry {
    std::uint64_t value = 0;    ///< the driver's
    std::uint32_t context = 0;  ///< id of the context it dies with; 0 for none
    std::uint16_t generation = 0;
    bool live = false;
    std::shared_ptr<FunctionLayout> layout = nullptr;  ///< of functions and kernels, once known
    std::uint64_t owner = 0;                           ///< handle of the object that this one goes with; 0 for none
    bool going = false;                                ///< see hide()
  };

  /// The entry of a live handle, or null. Not of objects that kernels see, nor of hidden ones.
  Entry* find(HandleKind kind, Handle handle) {
    Entry* const entry = find_live(kind, handle);
    return entry && !entry->going ? entry : nullptr;
  }

  /// The entry of an object that kernels see, or null.
  Entry* find_visible(HandleKind kind, Handle handle, std::uint32_t context) {
    const auto found = visible_[number(kind)].find({context, handle.value()});
    return found == visible_[number(kind)].end() ? nullptr : &found->second;
  }

  /// Whether any context has an object that kernels see by this value.
  bool in_any_context(HandleKind kind, Handle handle) const {
    const auto& visible = visible_[number(kind)];
    return std::any_of(visible.begin(), visible.end(),
                       [&](const auto& one) { return one.first.second == handle.value(); });
  }

  /// Whether the client may give this handle to a new object. The object that had its index before may still live, for
  /// its end comes behind what is held back.
  bool adoptable(HandleKind kind, Handle handle) {
    if (!handle.well_formed(kind, origin_) || handle.index() >= Handle::worker_index_first || handle.index() == 0)
      return false;
    const Entry& entry = slot_of(kind, handle);
    if (!entry.live) return !lingering_.contains(handle.value());
    return entry.generation != handle.generation() && lingering_.size() < lingering_max &&
           !lingering_.contains(handle.value());
  }
  /// Takes a handle that the client gave.
  void adopt(Handle handle, std::uint64_t value, std::uint32_t context) {
    Entry& entry = slot_of(handle.kind(), handle);
    if (entry.live)
      lingering_.emplace(Handle(handle.kind(), handle.index(), entry.generation, origin_).value(), std::move(entry));
    entry = {value, context, static_cast<std::uint16_t>(handle.generation()), true, nullptr, 0};
    by_value_[number(handle.kind())][value] = handle.id();
  }

  /// The object that another one goes with: itself if it goes with none.
  Handle root_of(Handle handle) {
    const Entry* const entry = find(handle.kind(), handle);
    return entry && entry->owner ? Handle(entry->owner) : handle;
  }
  /// From now on a live object goes with another one.
  void give(Handle part, Handle owner) {
    owner = root_of(owner);
    Entry* const entry = find(part.kind(), part);
    if (!entry || owner == part) return;
    entry->owner = owner.value();
    auto& owned = owned_[owner.value()];
    owned.push_back(part);
    // What went with it does so now too.
    const auto found = owned_.find(part.value());
    if (found == owned_.end()) return;
    const std::vector<Handle> moved = std::move(found->second);
    owned_.erase(found);
    for (const Handle one : moved) give(one, owner);
  }

  /// How many objects of a kind may have handles of the worker's at a time.
  static constexpr std::size_t worker_handles_max = Handle::index_max - Handle::worker_index_first + 1;
  /// Whether reveal() has a handle for one more object.
  bool has_room(HandleKind kind) const {
    return free_[number(kind)].size() > reused_late || tables_[number(kind)][1].size() < worker_handles_max;
  }
  /// Throws Exhausted if it has none: before an object is made that nobody could name.
  void require_room(HandleKind kind) const {
    if (!has_room(kind)) throw Exhausted();
  }
  /// The handle of a driver object: the known one, or a new one of the worker's. Null for null. What is found in
  /// `source` (a function in a module, a node in a graph), or through what was found there, goes with it. Throws
  /// Exhausted.
  Handle reveal(HandleKind kind, std::uint64_t value, std::uint32_t context, Handle source = Handle()) {
    if (value == 0) return Handle();
    if (device_visible(kind)) {
      visible_[number(kind)][{context, value}] = {value, context, 0, true, nullptr, 0};
      return Handle(value);
    }
    auto& known = by_value_[number(kind)];
    if (const auto found = known.find(value); found != known.end()) {
      const Handle handle = Handle::from_id(kind, found->second, origin_);
      const Entry* const entry = find(kind, handle);
      // A graph or node that went with another owner was destroyed with a part of that, and the driver has used its
      // place again.
      const bool within_graph = kind == HandleKind::graph || kind == HandleKind::node;
      if (!within_graph || !source || !entry->owner || Handle(entry->owner) == root_of(source)) return handle;
      forget(kind, handle);
    }
    auto& free = free_[number(kind)];
    require_room(kind);
    std::uint32_t index;
    if (free.size() > reused_late) {
      index = free.front();
      free.erase(free.begin());
    } else {
      index = Handle::worker_index_first + static_cast<std::uint32_t>(tables_[number(kind)][1].size());
    }
    Handle handle(kind, index, 0, origin_);
    Entry& entry = slot_of(kind, handle);
    handle = Handle(kind, index, (entry.generation + 1u) & Handle::generation_max, origin_);
    entry = {value, context, static_cast<std::uint16_t>(handle.generation()), true, nullptr, 0};
    if (const Entry* const found = source ? find_live(source.kind(), source) : nullptr) {
      entry.going = found->going;
      entry.owner = found->owner ? found->owner : source.value();
      if (context != 0 && found->context != 0) entry.context = found->context;  // whichever was current
      auto& owned = owned_[entry.owner];
      if (owned.size() == owned.capacity())
        std::erase_if(owned, [&](Handle part) { return !find_live(part.kind(), part); });
      owned.push_back(handle);
    }
    known[value] = handle.id();
    return handle;
  }
  /// As reveal(), for an object that was made just now: calls `destroy()` before it throws.
  template <class Destroy>
  Handle reveal_made(HandleKind kind, std::uint64_t value, std::uint32_t context, Destroy&& destroy) {
    try {
      return reveal(kind, value, context);
    } catch (const Exhausted&) {
      destroy();
      throw;
    }
  }

  /// The handle of a driver object that has one; null for others, which may not even exist any more.
  Handle known(HandleKind kind, std::uint64_t value) const {
    const auto& known = by_value_[number(kind)];
    const auto found = known.find(value);
    return found == known.end() ? Handle() : Handle::from_id(kind, found->second, origin_);
  }

  /// Objects of the driver's are made anew, and have other values: for each its old and its new one.
  void rename(HandleKind kind, const std::vector<std::pair<std::uint64_t, std::uint64_t>>& values) {
    auto& known = by_value_[number(kind)];
    std::vector<std::pair<std::uint32_t, std::uint64_t>> found;  // a new value may be the old one of another object
    for (const auto& [before, now] : values)
      if (const auto one = known.extract(before)) found.emplace_back(one.mapped(), now);
    for (const auto& [id, now] : found) {
      find(kind, Handle::from_id(kind, id, origin_))->value = now;
      known[now] = id;
    }
  }

  /// The object is about to be destroyed beside the executor, and all that goes with it: the driver may use their
  /// places again before it is forgotten. What is found there is another object from now on, and these are found no
  /// more. Calls `visit(handle)` for each of them.
  template <class Visit>
  void hide(Handle handle, Visit&& visit) {
    Entry* const entry = find(handle.kind(), handle);
    if (!entry) return;
    visit(handle);
    unname(handle, *entry);
    entry->going = true;
    const auto owned = owned_.find(handle.value());
    if (owned == owned_.end()) return;
    for (const Handle part : owned->second) hide(part, visit);
  }
  /// The driver has refused to destroy it.
  void show(Handle handle) {
    Entry* const entry = find_live(handle.kind(), handle);
    if (!entry || !entry->going) return;
    entry->going = false;
    by_value_[number(handle.kind())].try_emplace(entry->value, handle.id());
    const auto owned = owned_.find(handle.value());
    if (owned == owned_.end()) return;
    for (const Handle part : owned->second) show(part);
  }

  /// An object that kernels see is gone.
  void forget_visible(HandleKind kind, Handle handle, std::uint32_t context) {
    visible_[number(kind)].erase({context, handle.value()});
  }
  /// Any other object is.
  void forget(HandleKind kind, Handle handle) {
    Entry* const entry = find_live(kind, handle);
    if (!entry) return;
    if (const auto owned = owned_.find(handle.value()); owned != owned_.end()) {
      const std::vector<Handle> gone = std::move(owned->second);
      owned_.erase(owned);
      for (const Handle part : gone) forget(part.kind(), part);
    }
    unname(handle, *entry);
    if (lingering_.erase(handle.value()) > 0) return;
    entry->live = false;
    entry->layout.reset();
    if (handle.index() >= Handle::worker_index_first) free_[number(kind)].push_back(handle.index());
  }

  /// Calls visit(handle, entry) for every live handle of a kind.
  template <class Visit>
  void for_each(HandleKind kind, Visit&& visit) {
    for (auto& [key, entry] : visible_[number(kind)]) visit(Handle(key.second), entry);
    for (auto& [value, entry] : lingering_)
      if (Handle(value).kind() == kind) visit(Handle(value), entry);
    for (unsigned half = 0; half < 2; ++half) {
      auto& table = tables_[number(kind)][half];
      for (std::uint32_t slot = 0; slot < table.size(); ++slot) {
        if (!table[slot].live) continue;
        visit(Handle(kind, slot + half * Handle::worker_index_first, table[slot].generation, origin_), table[slot]);
      }
    }
  }

 private:
  Entry* find_live(HandleKind kind, Handle handle) {
    if (number(kind) > handle_kind_max) return nullptr;  // that of a handle itself, which a client made up
    if (!handle.well_formed(kind, origin_)) return nullptr;
    auto& table = table_of(kind, handle.index());
    const std::uint32_t slot = handle.index() & (Handle::worker_index_first - 1);
    if (slot >= table.size()) return nullptr;
    Entry& entry = table[slot];
    if (entry.generation == handle.generation()) return entry.live ? &entry : nullptr;
    if (lingering_.empty()) return nullptr;
    const auto found = lingering_.find(handle.value());
    return found == lingering_.end() ? nullptr : &found->second;
  }
  // An object that had a handle when the client gave it another one is known by the newer one.
  void unname(Handle handle, const Entry& entry) {
    auto& known = by_value_[number(handle.kind())];
    if (const auto found = known.find(entry.value); found != known.end() && found->second == handle.id())
      known.erase(found);
  }
  static constexpr unsigned number(HandleKind kind) { return static_cast<unsigned>(kind); }
  std::vector<Entry>& table_of(HandleKind kind, std::uint32_t index) {
    return tables_[number(kind)][index >= Handle::worker_index_first ? 1 : 0];
  }
  Entry& slot_of(HandleKind kind, Handle handle) {
    auto& table = table_of(kind, handle.index());
    const std::uint32_t slot = handle.index() & (Handle::worker_index_first - 1);
    if (slot >= table.size()) table.resize(slot + 1);
    return table[slot];
  }

  static constexpr std::size_t lingering_max = 65536;
  static constexpr std::size_t reused_late = 256;  // free indices of a kind, so that stale handles stay recognisable

  const unsigned origin_;
  std::vector<Entry> tables_[handle_kind_max + 1][2];
  std::unordered_map<std::uint64_t, std::vector<Handle>> owned_;  // by their owner; some may be gone
  std::unordered_map<std::uint64_t, std::uint32_t> by_value_[handle_kind_max + 1];
  std::unordered_map<std::uint64_t, Entry> lingering_;  // by handle: their index has been given to a newer object
  std::vector<std::uint32_t> free_[handle_kind_max + 1];
  std::map<std::pair<std::uint32_t, std::uint64_t>, Entry> visible_[handle_kind_max + 1];  // by context and value
};

}  // namespace fargpu::server
