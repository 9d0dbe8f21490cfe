#pragma once
// What the session has: the driver's objects by the client's handles, the addresses of variables, and what is charged
// for objects.

#include <cuda.h>

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "contexts.h"
#include "handle_lives.h"
#include "handles.h"
#include "held_charges.h"
#include "known.h"
#include "protocol/invalid_handle.h"
#include "protocol/image_hash.h"
#include "server/worker/call/call.h"
#include "server/worker/memory/device_memory.h"

namespace fargpu::server {

/// Used by the executor only.
class Objects {
 public:
  /// Hears of each object that is forgotten, so that what is kept of it elsewhere goes too.
  using Forgotten = std::function<void(HandleKind, std::uint64_t)>;
  /// `origin`: of all its handles.
  Objects(DeviceMemory& memory, Contexts& contexts, unsigned origin, Forgotten forgotten)
      : memory_(memory), contexts_(contexts), forgotten_(std::move(forgotten)), handles_(origin) {}

  Handles& handles() { return handles_; }

  /// The driver's object behind a handle; false if the handle is none of this session. A stream may be `legacy_stream`,
  /// a function may be a kernel.
  template <class T>
  bool resolve(HandleKind kind, std::uint64_t value, T& object) {
    std::uint64_t raw = 0;
    if (!resolve_raw(kind, value, raw)) return false;
    if constexpr (std::is_pointer_v<T>) object = reinterpret_cast<T>(raw);
    else object = raw;
    return true;
  }
  /// The object of a handle, with the proof that the handle is one of this session; nothing if it is not.
  template <HandleKind kind>
  std::optional<Known<kind>> find(std::uint64_t value) {
    typename HandleType<kind>::Object object{};
    if (!resolve(kind, value, object)) return std::nullopt;
    return Known<kind>(Handle(value), object);
  }
  /// Whether the object is none, or one of another context than the current one: the driver lets it be destroyed, and
  /// does nothing.
  bool nothing_here(HandleKind kind, std::uint64_t value) const {
    return value == 0 || handles_.in_any_context(kind, Handle(value));
  }
  /// What a call with a bad handle of this kind returns.
  static CUresult invalid(HandleKind kind) { return invalid_handle_result(kind); }
  /// For handles that lie in a struct, which the driver takes.
  template <class T>
  CUresult resolve_in_place(HandleKind kind, T& handle) {
    return resolve(kind, raw_of(handle), handle) ? CUDA_SUCCESS : invalid(kind);
  }

  /// Before an object is made for which the client has given the handle. Throws ProtocolError for a handle that is not
  /// free.
  CUresult check_adoption(HandleKind kind, std::uint64_t value);
  template <class T>
  void adopt(HandleKind kind, std::uint64_t value, T object, const Call& call) {
    adopt_raw(kind, value, raw_of(object), call);
  }

  /// The handle of an object that the driver gave, found in `source` if that is not 0 (Handles::reveal).
  template <class T>
  Handle reveal(HandleKind kind, T object, const CallId& call, std::uint64_t source = 0) {
    const std::uint32_t context = lives_with_context(kind) ? call.context : 0;
    return handles_.reveal(kind, raw_of(object), device_visible(kind) ? home_of(contexts_.find(context)) : context,
                           Handle(source));
  }
  template <class T>
  Handle reveal(HandleKind kind, T object, const Call& call, std::uint64_t source = 0) {
    return reveal(kind, object, call.id(), source);
  }
  /// As reveal(), for an object that was made just now and that kernels do not see: calls `destroy()` before it throws.
  template <class T, class Destroy>
  Handle reveal_made(HandleKind kind, T object, const CallId& call, Destroy&& destroy) {
    return handles_.reveal_made(kind, raw_of(object), lives_with_context(kind) ? call.context : 0, destroy);
  }
  /// The handle of an object that was made just now: one that still means its place is of an object that went with a
  /// part of its owner.
  template <class T>
  Handle introduce(HandleKind kind, T object, const CallId& call, std::uint64_t source = 0) {
    handles_.forget(kind, known(kind, object));
    return reveal(kind, object, call, source);
  }
  template <class T>
  Handle introduce(HandleKind kind, T object, const Call& call, std::uint64_t source = 0) {
    return introduce(kind, object, call.id(), source);
  }
  /// The handle by which the client knows an object; null if it does not.
  template <class T>
  Handle known(HandleKind kind, T object) const {
    return handles_.known(kind, raw_of(object));
  }
  /// For handles that lie in a struct, which the driver gave.
  template <class T>
  CUresult known_in_place(HandleKind kind, T& handle) {
    handle = handle_cast<T>(known(kind, handle));
    return CUDA_SUCCESS;
  }
  std::uint64_t event_handle(CUevent event) const { return known(HandleKind::event, event).value(); }

  /// It is about to be destroyed beside the executor: see Handles::hide. Variables that go with it are no memory of the
  /// session's any more; should the destruction fail, they have to be asked for again.
  template <HandleKind kind>
  void hide(const Known<kind>& object) {
    hide(kind, object.value());
  }
  /// The driver has refused to destroy it.
  template <HandleKind kind>
  void show(const Known<kind>& object) {
    if (!device_visible(kind)) handles_.show(object.handle());
  }
  template <HandleKind kind>
  void forget(const Known<kind>& object) {
    forget(kind, object.value());
  }
  void forget(HandleKind kind, std::uint64_t value);
  /// With a context that closes go all its objects. Returns what the driver may look at until it has closed it.
  [[nodiscard]] std::vector<std::shared_ptr<const void>> context_closes(std::uint32_t context);
  /// A green context closes: its streams go, and its other objects are the heir's from now on.
  void green_closes(std::uint32_t context, std::uint32_t heir);

  /// A variable of a module or library: the session may use it as long as its owner lives.
  void add_global(std::uint64_t owner, std::uint64_t address, std::uint64_t bytes);
  /// What an object took of the device's memory: charged until the object is forgotten.
  void charge(Handle object, std::shared_ptr<Charge> charge) { charges_of(object)->keep(std::move(charge)); }
  const std::shared_ptr<HeldCharges>& charges_of(Handle object) {
    auto& held = charges_[object.value()];
    if (!held) held = std::make_shared<HeldCharges>();
    return held;
  }

  /// Which image a library or module was loaded from; null where that is not known.
  const ImageHash* image_of(Handle loaded) const {
    const auto found = loaded_images_.find(loaded.value());
    return found == loaded_images_.end() ? nullptr : &found->second.hash;
  }
  /// `kept`: lives as long as what was loaded.
  void note_image(Handle loaded, const ImageHash& hash, std::shared_ptr<const void> kept) {
    loaded_images_[loaded.value()] = {.hash = hash, .kept = std::move(kept)};
  }
  /// Whether the driver has loaded code of a library into a context, for which it may have to compile it. True for
  /// handles that no image is known of.
  bool entered(Handle library, std::uint32_t context) const {
    const auto found = loaded_images_.find(library.value());
    return found == loaded_images_.end() || found->second.entered.contains(context);
  }
  /// It has now. `slow`: that took long.
  void note_entered(Handle library, std::uint32_t context, bool slow) {
    const auto found = loaded_images_.find(library.value());
    if (found == loaded_images_.end()) return;
    found->second.entered.insert(context);
    found->second.slow |= slow;
  }
  bool slow(Handle library) const {
    const auto found = loaded_images_.find(library.value());
    return found != loaded_images_.end() && found->second.slow;
  }

 private:
  template <class T>
  static std::uint64_t raw_of(T object) {
    if constexpr (std::is_pointer_v<T>) return reinterpret_cast<std::uint64_t>(object);
    else return object;
  }
  bool resolve_raw(HandleKind kind, std::uint64_t value, std::uint64_t& raw);
  std::uint32_t home_of(const ContextState* context) const;
  void adopt_raw(HandleKind kind, std::uint64_t value, std::uint64_t raw, const Call& call);
  void hide(HandleKind kind, std::uint64_t value);
  void drop_globals(std::uint64_t owner);

  DeviceMemory& memory_;
  Contexts& contexts_;
  const Forgotten forgotten_;
  Handles handles_;
  std::set<std::pair<std::uint64_t, std::uint64_t>> globals_;                // owner and address
  std::unordered_map<std::uint64_t, std::shared_ptr<HeldCharges>> charges_;  // by handle
  struct LoadedImage {
    ImageHash hash{};
    std::shared_ptr<const void> kept;
    std::set<std::uint32_t> entered;  // contexts
    bool slow = false;
  };
  std::unordered_map<std::uint64_t, LoadedImage> loaded_images_;  // by handle of the library or module
};

}  // namespace fargpu::server
