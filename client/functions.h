#pragma once
// Functions and kernels as the client knows them: parameter layout, attributes, and which launches have been tried.

#include <cuda.h>

#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "handle_map.h"
#include "operations.capnp.h"
#include "protocol/limits.h"

namespace fargpu::client {

struct Context;

struct Parameter {
  std::uint32_t offset = 0;
  std::uint32_t bytes = 0;
};

/// A CUfunction or CUkernel; programs pass either where a function is wanted.
struct Function {
  Handle handle;
  Handle owner;  ///< module or library
  std::string name;
  std::vector<Parameter> parameters;
  std::uint32_t parameter_bytes = 0;
  bool gaps = false;  ///< there are bytes between them
  std::uint32_t context = 0;  ///< id of the context that a kernel's function is for; 0 where that is not known

  std::mutex mutex;
  /// Of a kernel: its function in each context, by context id. Of such a function: the kernel.
  std::map<std::uint32_t, Handle> functions;
  Handle kernel;
  /// Attributes by device (-1 for a function's own); a negative result code where the driver refuses one.
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

  /// The cluster it was compiled for, zeros for none: known once a launch was accepted.
  std::array<std::atomic<unsigned>, 3> cluster{};

  /// Fingerprints of launch classes that the worker has accepted. Racing writers only cost a further barrier.
  std::array<std::atomic<std::uint64_t>, 16> launched{};
  std::atomic<unsigned> next_launched{0};

  bool launch_known(std::uint64_t fingerprint) const {
    for (const auto& known : launched)
      if (known.load(std::memory_order_relaxed) == fingerprint) return true;
    return false;
  }
  void learn_launch(std::uint64_t fingerprint) {
    launched[next_launched.fetch_add(1, std::memory_order_relaxed) % launched.size()].store(fingerprint,
                                                                                         std::memory_order_relaxed);
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
  /// The record of a live function or kernel handle, or null.
  Function* find(CUfunction function) const {
    const Handle handle = handle_of(function);
    if (Function* const known = functions_.find(handle)) return known;
    return kernels_.find(handle);
  }
  Function* find_kernel(CUkernel kernel) const { return kernels_.find(handle_of(kernel)); }

  /// Takes in what the worker says of one that was asked for in this context; null for none.
  Function* learn(wire::FunctionReply::Reader reply, const Context* context);
  /// A kernel of a library that is known by its name, or null.
  Function* find_named(Handle library, const std::string& name) const;
  /// Forgets all functions of a module or library that is unloaded.
  void forget_owner(Handle owner);
  /// Forgets the functions that kernels have in a context that is closed.
  void forget_context(std::uint32_t context);
  /// An attribute was set: what is known of the function changes, and of the kernel or functions that it is one with.
  void attribute_changed(Function& function, int device, CUfunction_attribute attribute, int value);

 private:
  HandleMap<Function> functions_{HandleKind::function};
  HandleMap<Function> kernels_{HandleKind::kernel};
  mutable std::mutex mutex_;
  std::map<std::pair<std::uint64_t, std::string>, Handle> named_;  // kernels, by library and name
};

}  // namespace fargpu::client
