#pragma once
// Functions and kernels as the client knows them: parameter layout, attributes, and which launches have been tried.

#include <cuda.h>

#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "client/base/handle_map.h"
#include "operations.capnp.h"
#include "protocol/limits.h"

namespace fargpu::client {

struct Context;

struct Parameter {
  std::uint32_t offset = 0;
  std::uint32_t bytes = 0;
};

/// The bytes of a kernel's arguments in which an address of pinned memory shows that it uses this: all but tables with
/// leftovers (leftovers.h). What lies beyond the parameters counts with the last of them.
std::vector<Parameter> evidence_of(std::string_view kernel, std::span<const Parameter> parameters);

/// A CUfunction or CUkernel; programs pass either where a function is wanted.
struct Function {
  Handle handle;
  Handle owner;  ///< module or library
  std::string name;
  std::vector<Parameter> parameters;
  std::uint32_t parameter_bytes = 0;
  bool gaps = false;                ///< there are bytes between them
  bool described = false;           ///< what is said of them holds: there was code for it where it was found
  std::vector<Parameter> evidence;  ///< evidence_of() its parameters
  std::uint32_t context = 0;        ///< id of the context that a function is for; 0 where that is not known

  std::mutex mutex;
  /// A kernel has here its function in each context, by context id. Such a function has its kernel.
  std::map<std::uint32_t, Handle> functions;
  Handle kernel;
  /// Attributes by device, -1 for a function's own: a value and the driver's result for each.
  struct Attributes {
    std::vector<int> values;
    std::vector<CUresult> results;
    /// The value, if the driver gave one.
    std::optional<int> value(CUfunction_attribute attribute) const {
      const auto index = static_cast<std::size_t>(attribute);
      if (index >= values.size() || results[index] != CUDA_SUCCESS) return std::nullopt;
      return values[index];
    }
  };
  static Attributes read(wire::FunctionAttributesReply::Reader reply);
  std::map<int, Attributes> attributes;
  /// Bits by attribute: those that were set through this function, and so go before what its kernel is given, whichever
  /// comes first.
  std::uint32_t own_attributes = 0;
  /// How often attributes of it, or of what it is one with, were set: what was asked for before such a change is not
  /// kept after it.
  std::uint64_t changes = 0;
  /// Answers about clusters, by question. They go with every change.
  std::map<std::string, int> clusters;
  /// Under `mutex`: something that answers depend on has changed.
  void changed() {
    ++changes;
    clusters.clear();
    for (auto& known : launched) known = 0;  // what was accepted may not be any more, and the other way round
  }

  /// The cluster it was compiled for, zeros for none: known once a launch was accepted.
  std::array<std::atomic<unsigned>, 3> cluster{};

  /// Fingerprints of launch classes that are accepted.
  std::array<std::atomic<std::uint64_t>, 16> launched{};
  unsigned next_launched = 0;
  /// The worker has been asked to look at its code (look_at_code in launch_arguments.cpp).
  std::atomic<bool> looked_at{false};
  /// It was found to have atomics or fences of the whole system.
  std::atomic<bool> whole_system{false};

  bool launch_known(std::uint64_t fingerprint) const {
    for (const auto& known : launched)
      if (known.load(std::memory_order_relaxed) == fingerprint) return true;
    return false;
  }
  std::uint64_t changes_now() {
    const std::lock_guard lock(mutex);
    return changes;
  }
  /// The class is accepted, as was asked or found out after so many changes.
  void learn_launch(std::uint64_t fingerprint, std::uint64_t changes_then) {
    const std::lock_guard lock(mutex);
    if (changes == changes_then)
      launched[next_launched++ % launched.size()].store(fingerprint, std::memory_order_relaxed);
  }
  /// What the calls of CUDA 1 to 3 set for its next launch; under mutex.
  struct Legacy {
    std::array<unsigned, 3> block{1, 1, 1};
    unsigned shared_bytes = 0;
    unsigned parameter_bytes = 0;
    std::vector<std::byte> parameters;
  };
  Legacy legacy;

  /// Under which device the attributes of this one are kept: a function belongs to one anyway.
  int attribute_device(int device) const { return handle.kind() == HandleKind::kernel ? device : -1; }
  void reset();
};

class Functions {
 public:
  /// `origin`: of all their handles.
  explicit Functions(unsigned origin = 0)
      : functions_(HandleKind::function, origin), kernels_(HandleKind::kernel, origin) {}

  /// The record of a live function or kernel handle, or null.
  Function* find(CUfunction function) const {
    const Handle handle = handle_of(function);
    if (Function* const known = functions_.find(handle)) return known;
    return kernels_.find(handle);
  }
  Function* find_kernel(CUkernel kernel) const { return kernels_.find(handle_of(kernel)); }

  /// Takes in what the worker says of one that was asked for in this context, which may be null. Throws ProtocolError
  /// for a handle that no worker gives.
  Function* learn(wire::FunctionReply::Reader reply, const Context* context);
  /// A kernel of a library, or a function of a module, that is known by its name; or null.
  Function* find_named(Handle owner, const std::string& name) const;
  struct Module {
    std::uint32_t context = 0;
    Handle library;  ///< that it is behind; null for none
  };
  /// A module was loaded into a context, or is there behind a library: its functions go with the one and the other.
  void note_module(Handle handle, const Module& module);
  std::optional<Module> module(Handle handle) const;
  /// Forgets all functions of a module or library that is unloaded.
  void forget_owner(Handle owner);
  /// The function that a kernel has in a context, by a handle of the client's own and as far as the kernel's facts
  /// tell; null if they do not tell enough. It is there once it is published. Under the kernel's mutex.
  Function* derive(const Function& kernel, const Context& context);
  void publish(const Function& function) { functions_.publish(function.handle); }
  void withdraw(const Function& function) { functions_.erase(function.handle); }
  /// Forgets what there was in a context that is closed: the functions of its modules, those that kernels have in it.
  void forget_context(const Context& context);
  /// A green context is closed: its functions go on as those of its primary context.
  void forget_green(std::uint32_t context);
  /// An attribute was set, when so many changes of the function were known: what is known of it changes, and of the
  /// kernel or functions that it is one with. These are returned, itself among them.
  std::vector<Handle> attribute_changed(Function& function, int device, CUfunction_attribute attribute, int value,
                                        std::uint64_t changes);

  /// Attributes of it may be its own or its kernel's.
  bool may_have_kernel(const Function& function) const {
    return function.owner.kind() == HandleKind::kernel || library_modules_;
  }
  /// The program has the module that is behind a library: functions found in it are those of the library's kernels,
  /// unknown to us.
  bool knows_modules_of_libraries() const { return library_modules_; }

 private:
  std::atomic<bool> library_modules_{false};
  HandleMap<Function> functions_;
  HandleMap<Function> kernels_;
  mutable std::mutex mutex_;
  std::map<std::pair<std::uint64_t, std::string>, Handle> named_;  // by library or module, and name
  std::map<std::uint64_t, Module> modules_;
};

}  // namespace fargpu::client
