// Images, modules, libraries, and what is found in them. CUDA Driver API, "Module Management" and "Library Management".

#include <functional>
#include <memory>

#include "calls_module.capnp.h"
#include "client/session/entry.h"
#include "client/code/image_transfer.h"
#include "client/base/input_file.h"
#include "client/code/jit_options.h"
#include "client/call/remote_call.h"
#include "client/session/pool.h"
#include "client/session/route.h"
#include "client/session/session.h"
#include "client_hand.h"
#include "library_module.h"
#include "operations.capnp.h"
#include "protocol/image.h"

namespace fargpu::client::hand {
namespace {

struct LibraryOptions {
  unsigned count = 0;
  CUlibraryOption* options = nullptr;
  void** values = nullptr;
};

void tell_taken(Thread& thread, std::uint64_t library) {
  RemoteCall<wire::TakeLoaded> call(thread);
  call.in().setLibrary(library);
  call.tell();
}

// What the program will most likely load next.
void keep_ahead(RemoteCall<wire::LoadImage>& call, capnp::List<wire::LoadedAhead>::Reader list) {
  const auto bytes = [](capnp::Data::Reader data) { return std::as_bytes(std::span(data.begin(), data.size())); };
  for (const auto one : list) call.keep_ahead(bytes(one.getRequest()), bytes(one.getReply()));
}

// Loads an image as a module or a library; the handle of either comes back.
CUresult load_image(Thread& thread, const Image& image, bool module, const JitOptions& jit,
                    const LibraryOptions& library, std::uint64_t& handle) {
  const auto fill = [&](wire::LoadImage::Builder in, capnp::Data::Reader hash) {
    in.setHash(hash);
    in.setBytes(image.bytes.size());
    in.setModule(module);
    in.setWrapped(image.wrapped);
    jit.write(in.initJit(jit.count));
    auto library_list = in.initLibrary(library.count);
    for (unsigned i = 0; i < library.count; ++i) {
      // What this option points to is managed-memory hints of host functions, which no remote loader can follow.
      if (library.options[i] == CU_LIBRARY_HOST_UNIVERSAL_FUNCTION_AND_DATA_TABLE)
        return refuse_use("CU_LIBRARY_HOST_UNIVERSAL_FUNCTION_AND_DATA_TABLE");
      library_list[i].setOption(library.options[i]);
      if (library.values) library_list[i].setValue(reinterpret_cast<std::uintptr_t>(library.values[i]));
    }
    return CUDA_SUCCESS;
  };
  return call_with_image<wire::LoadImage>(
      thread, module ? ContextNeed::current : ContextNeed::optional, image.bytes,
      !module && jit.count == 0 ? AnsweredAhead::maybe : AnsweredAhead::never, fill,
      [&](RemoteCall<wire::LoadImage>& call, CUresult result, bool ahead) {
        const auto out = call.out();
        JitOutputs(jit).store(out);
        handle = out.getHandle();
        if (module && result == CUDA_SUCCESS)
          session_of(thread).functions.note_module(
              Handle(handle), {.context = session_of(thread).contexts.home(*thread.context()).id()});
        for (const auto kernel : out.getKernels()) session_of(thread).functions.learn(kernel, thread.context());
        if (ahead) tell_taken(thread, handle);
        else keep_ahead(call, out.getAhead());
        return result;
      });
}

CUresult find_function(Thread& thread, Handle owner, const char* name, ContextNeed need, Function*& found);

/// What a library was loaded from, to load it at another host too.
struct LibrarySource {
  std::vector<std::byte> copy;  ///< of the image, unless the program keeps that
  Image image;
  std::vector<CUjit_option> jit_options;
  std::vector<void*> jit_values;
  std::vector<CUlibraryOption> options;
  std::vector<void*> values;

  LibrarySource(const Image& from, const JitOptions& jit, const LibraryOptions& library) {
    bool kept = false;
    for (unsigned i = 0; i < library.count; ++i) {
      options.push_back(library.options[i]);
      values.push_back(library.values ? library.values[i] : nullptr);
      kept = kept || (options[i] == CU_LIBRARY_BINARY_IS_PRESERVED && values[i]);
    }
    // The driver's words go to the program once.
    for (unsigned i = 0; i < jit.count; ++i) {
      if (JitOptions::told_once(jit.options[i])) continue;
      jit_options.push_back(jit.options[i]);
      jit_values.push_back(jit.values ? jit.values[i] : nullptr);
    }
    if (!kept || !from.joined.empty()) copy.assign(from.bytes.begin(), from.bytes.end());
    image = {copy.empty() ? from.bytes : std::span<const std::byte>(copy), from.wrapped, {}};
  }
  LibrarySource(const LibrarySource&) = delete;
  LibrarySource& operator=(const LibrarySource&) = delete;
};

void remember(Pool& pool, Handle library, std::shared_ptr<LibrarySource> source) {
  pool.twins.loaded(library, {.load =
                                  [source](Thread& thread, Handle& twin) {
                                    std::uint64_t handle = 0;
                                    const CUresult result =
                                        load_image(thread, source->image, false,
                                                   {static_cast<unsigned>(source->jit_options.size()),
                                                    source->jit_options.data(), source->jit_values.data()},
                                                   {static_cast<unsigned>(source->options.size()),
                                                    source->options.data(), source->values.data()},
                                                   handle);
                                    if (result == CUDA_SUCCESS) twin = Handle(handle);
                                    return result;
                                  },
                              .find =
                                  [](Thread& thread, Handle twin, const std::string& name, Handle& kernel) {
                                    Function* found = session_of(thread).functions.find_named(twin, name);
                                    const CUresult result =
                                        found ? CUDA_SUCCESS
                                              : find_function(thread, twin, name.c_str(), ContextNeed::optional, found);
                                    if (result == CUDA_SUCCESS) kernel = found->handle;
                                    return result;
                                  }});
}

CUresult load(Thread& thread, const void* pointer, bool module, const JitOptions& jit, const LibraryOptions& library,
              std::uint64_t& handle, std::size_t readable = unbounded) {
  if (!pointer || !jit.valid() || (library.count > 0 && !library.options)) return CUDA_ERROR_INVALID_VALUE;
  if (module && !thread.context()) return CUDA_ERROR_INVALID_CONTEXT;
  auto image = find_image(pointer, readable);
  if (!image && module) return CUDA_ERROR_INVALID_IMAGE;
  // What is in a library is looked at when something is looked for in it; then the driver says that this is none.
  if (!image) image = Image{std::as_bytes(std::span("")), false, {}};
  Pool* const pool = module ? nullptr : process().pool();
  const auto source = pool ? std::make_shared<LibrarySource>(*image, jit, library) : nullptr;
  const CUresult result = load_image(thread, *image, module, jit, library, handle);
  if (pool && result == CUDA_SUCCESS) remember(*pool, Handle(handle), source);
  return result;
}

CUresult load_file(Thread& thread, const char* path, bool module, const JitOptions& jit, const LibraryOptions& library,
                   std::uint64_t& handle) {
  if (!path) return CUDA_ERROR_INVALID_VALUE;
  const auto file = InputFile::read(path);
  if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
  const std::span<const std::byte> bytes = file->with_null();
  return load(thread, bytes.data(), module, jit, library, handle, bytes.size());
}

/// Where a load's handle goes, once there is one.
template <class Out>
CUresult give(const std::function<CUresult(std::uint64_t&)>& load, Out* out) {
  std::uint64_t handle = 0;
  const CUresult result = load(handle);
  if (result == CUDA_SUCCESS) *out = handle_cast<Out>(Handle(handle));
  return result;
}

// Function of a module, kernel of a library, function of a kernel.
CUresult find_function(Thread& thread, Handle owner, const char* name, ContextNeed need, Function*& found) {
  RemoteCall<wire::FindFunction> call(thread, need);
  if (!call) return call.error();
  auto in = call.in();
  in.setOwner(owner.value());
  in.setName(name);
  const CUresult result = call.wait();
  if (result != CUDA_SUCCESS) return result;
  found = session_of(thread).functions.learn(call.out(), need == ContextNeed::none ? nullptr : thread.context());
  if (!found) throw ProtocolError("the worker named a function by a handle of another kind");
  return result;
}

/// Where a variable is looked for: in a module or library. It goes with the library that a module is behind.
struct VariableOf {
  Handle owner;
  Handle behind = Handle();
};

CUresult find_global(Thread& thread, Context* context, const VariableOf& of, const char* name, CUdeviceptr* address,
                     std::size_t* bytes, bool only_managed = false) {
  if (!name || (!address && !bytes)) return CUDA_ERROR_INVALID_VALUE;
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  if (!context->active) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  Session& session = session_of(thread);
  const std::uint64_t owner = (of.behind ? of.behind : of.owner).value();
  Variables::Name named{of.owner, context, name, only_managed};
  const auto known = context->failure == CUDA_SUCCESS ? session.variables.known(named, owner) : std::nullopt;
  if (known) {
    if (address) *address = known->base;
    if (bytes) *bytes = known->bytes;
    return thread.take_late_error();
  }
  RemoteCall<wire::FindGlobal> call(thread, context);
  if (!call) return call.error();
  auto in = call.in();
  in.setOwner(of.owner.value());
  in.setName(name);
  in.setManaged(only_managed);
  const CUresult result = call.wait();
  if (result != CUDA_SUCCESS) return result;
  const auto out = call.out();
  if (out.getManaged() && !session.managed.adopt(thread, *context, out.getAddress(), out.getBytes()))
    return refuse_use("a managed variable that the GPU host's driver placed where this process has no room");
  session.map.add({.kind = Region::Kind::global,
                   .base = out.getAddress(),
                   .bytes = out.getBytes(),
                   .device = context->device,
                   .context = context,
                   .buffer_id = session.map.next_buffer_id(),
                   .owner = owner,
                   .managed_variable = out.getManaged()});
  session.variables.found(std::move(named), out.getAddress());
  if (address) *address = out.getAddress();
  if (bytes) *bytes = out.getBytes();
  return result;
}

CUresult enumerate(Thread& thread, Handle owner, unsigned room, ContextNeed need,
                   const std::function<void(unsigned, Handle)>& store) {
  RemoteCall<wire::ListFunctions> call(thread, need);
  if (!call) return call.error();
  call.in().setOwner(owner.value());
  const CUresult result = call.wait();
  if (result != CUDA_SUCCESS) return result;
  const auto list = call.out().getFunctions();
  for (unsigned i = 0; i < std::min<unsigned>(room, list.size()); ++i) {
    RemoteCall<wire::DescribeFunction> describe(thread, need);
    describe.in().setFunction(list[i]);
    if (const CUresult bad = describe.wait(); bad != CUDA_SUCCESS) return bad;
    if (!session_of(thread).functions.learn(describe.out(), thread.context()))
      throw ProtocolError("the worker named a function by a handle of another kind");
    store(i, Handle(list[i]));
  }
  return result;
}

/// Unloads a module or library. What the program wrote to its managed variables leaves first: they may have to stay.
template <class Request>
CUresult unload(Thread& thread, Handle owner, RemoteCall<Request>& call) {
  Session& session = session_of(thread);
  session.managed.before_work(thread);
  const std::vector<Region> variables =
      session.variables.take([&](const Region& r) { return r.owner == owner.value(); });
  const CUresult result = call.wait();
  if (!call.done()) {
    if (call.number() == 0)
      session.variables.give_back(thread,
                                  variables);  // else they are unknown to the worker too until they are asked for
    return result;
  }
  session.functions.forget_owner(owner);
  return result;
}

}  // namespace

// --- loading --------------------------------------------------------------------------------------------------------

CUresult cuModuleLoadDataEx(Thread& thread, CUmodule* module, const void* image, unsigned count, CUjit_option* options,
                            void** values) {
  if (!module) return CUDA_ERROR_INVALID_VALUE;
  return give(
      [&](std::uint64_t& handle) {
        return load(thread, image, true, {count, options, values}, {}, handle);
      },
      module);
}

CUresult cuModuleLoad(Thread& thread, CUmodule* module, const char* path) {
  if (!module) return CUDA_ERROR_INVALID_VALUE;
  return give([&](std::uint64_t& handle) { return load_file(thread, path, true, {}, {}, handle); }, module);
}

CUresult cuLibraryLoadData(Thread& thread, CUlibrary* library, const void* code, CUjit_option* jit, void** jit_values,
                           unsigned jit_count, CUlibraryOption* options, void** values, unsigned count) {
  if (!library) return CUDA_ERROR_INVALID_VALUE;
  return give(
      [&](std::uint64_t& handle) {
        return load(thread, code, false, {jit_count, jit, jit_values}, {count, options, values}, handle);
      },
      library);
}

CUresult cuLibraryLoadFromFile(Thread& thread, CUlibrary* library, const char* path, CUjit_option* jit,
                               void** jit_values, unsigned jit_count, CUlibraryOption* options, void** values,
                               unsigned count) {
  if (!library) return CUDA_ERROR_INVALID_VALUE;
  return give(
      [&](std::uint64_t& handle) {
        return load_file(thread, path, false, {jit_count, jit, jit_values}, {count, options, values}, handle);
      },
      library);
}

CUresult cuModuleUnload(Thread& thread, CUmodule module) {
  const Handle handle = handle_of(module);
  if (!handle.well_formed(HandleKind::module)) return CUDA_ERROR_INVALID_HANDLE;
  RemoteCall<wire::CuModuleUnload> call(thread);
  if (!call) return call.error();
  call.in().setHmod(handle.value());
  return unload(thread, handle, call);
}

CUresult cuLibraryUnload(Thread& thread, CUlibrary library) {
  const Handle handle = handle_of(library);
  if (!handle.well_formed(HandleKind::library)) return CUDA_ERROR_INVALID_HANDLE;
  const auto unload_one = [&](Handle one) {
    RemoteCall<wire::CuLibraryUnload> call(thread);
    if (!call) return call.error();
    call.in().setLibrary(one.value());
    return unload(thread, one, call);
  };
  Pool* const pool = process().pool();
  if (!pool) return unload_one(handle);
  CUresult result = CUDA_SUCCESS;
  for (const Handle one : pool->twins.take(handle)) {
    Session* const session = pool->begun(one.origin());
    if (!session || pool->lost(*session)) continue;
    const Route route(thread, *session);
    if (const CUresult unloaded = unload_one(one); result == CUDA_SUCCESS) result = unloaded;
  }
  return result;
}

// --- finding --------------------------------------------------------------------------------------------------------

CUresult cuModuleGetFunction(Thread& thread, CUfunction* out, CUmodule module, const char* name) {
  if (!out || !name) return CUDA_ERROR_INVALID_VALUE;
  if (!handle_of(module).well_formed(HandleKind::module)) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult bad = RemoteCall<wire::FindFunction>(thread, ContextNeed::current).refusal(); bad != CUDA_SUCCESS)
    return bad;
  Function* function = session_of(thread).functions.find_named(handle_of(module), name);
  const CUresult result =
      function ? CUDA_SUCCESS : find_function(thread, handle_of(module), name, ContextNeed::current, function);
  if (result == CUDA_SUCCESS) *out = handle_cast<CUfunction>(function->handle);
  return result;
}

CUresult cuLibraryGetKernel(Thread& thread, CUkernel* out, CUlibrary library, const char* name) {
  if (!out || !name) return CUDA_ERROR_INVALID_VALUE;
  if (!handle_of(library).well_formed(HandleKind::library)) return CUDA_ERROR_INVALID_HANDLE;
  Function* kernel = session_of(thread).functions.find_named(handle_of(library), name);
  const CUresult result =
      kernel ? CUDA_SUCCESS : find_function(thread, handle_of(library), name, ContextNeed::optional, kernel);
  if (result == CUDA_SUCCESS) *out = handle_cast<CUkernel>(kernel->handle);
  return result;
}

CUresult cuKernelGetFunction(Thread& thread, CUfunction* out, CUkernel kernel) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  Functions& functions = session_of(thread).functions;
  Function* const known = functions.find_kernel(kernel);
  if (!known) return CUDA_ERROR_INVALID_HANDLE;
  const Context* const context = thread.context();
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  std::uint64_t changes = 0;
  {
    const std::lock_guard lock(known->mutex);
    if (const auto found = known->functions.find(context->id()); found != known->functions.end()) {
      *out = handle_cast<CUfunction>(found->second);
      return CUDA_SUCCESS;
    }
    // Nobody waits for what would only say what is known. Should the driver have no room for the code, that is said
    // late.
    if (session_of(thread).calls.serves(Opcode::kernelFunction)) {
      RemoteCall<wire::KernelFunction> call(thread);
      if (const CUresult bad = call.refusal(); bad != CUDA_SUCCESS) return bad;
      if (Function* const derived = functions.derive(*known, *context)) {
        call.in().setKernel(known->handle.value());
        call.in().setFunction(derived->handle.value());
        functions.publish(*derived);  // the worker may name it as soon as it has heard of it
        if (const CUresult bad = call.post(); bad != CUDA_SUCCESS) {
          functions.withdraw(*derived);
          return bad;
        }
        known->functions[context->id()] = derived->handle;
        *out = handle_cast<CUfunction>(derived->handle);
        return CUDA_SUCCESS;
      }
    }
    changes = known->changes;
  }
  Function* function = nullptr;
  const CUresult result = find_function(thread, handle_of(kernel), "", ContextNeed::current, function);
  if (result != CUDA_SUCCESS) return result;
  if (!function->handle.well_formed(HandleKind::function))
    throw ProtocolError("the worker named a kernel where a kernel's function was asked for");
  const std::lock_guard lock(known->mutex);
  {
    const std::lock_guard function_lock(function->mutex);
    function->kernel = known->handle;
    if (known->changes != changes) function->attributes.clear();  // they may be from before something was set
  }
  known->functions[context->id()] = function->handle;
  *out = handle_cast<CUfunction>(function->handle);
  return result;
}

CUresult library_module(Thread& thread, Context* context, Handle library, CUmodule& module) {
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  if (!context->active) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  RemoteCall<wire::CuLibraryGetModule> call(thread, context);
  if (!call) return call.error();
  call.in().setLibrary(library.value());
  const CUresult result = call.wait();
  if (result != CUDA_SUCCESS) return result;
  const Handle found(call.out().getPMod());
  if (!found.well_formed(HandleKind::module))
    throw ProtocolError("the worker named a library's module by a handle of another kind");
  session_of(thread).functions.note_module(
      found, {.context = session_of(thread).contexts.home(*context).id(), .library = library});
  module = handle_cast<CUmodule>(found);
  return result;
}

CUresult cuLibraryGetModule(Thread& thread, CUmodule* module, CUlibrary library) {
  if (!module) return CUDA_ERROR_INVALID_VALUE;
  if (!handle_of(library).well_formed(HandleKind::library)) return CUDA_ERROR_INVALID_HANDLE;
  return library_module(thread, thread.context(), handle_of(library), *module);
}

CUresult cuModuleEnumerateFunctions(Thread& thread, CUfunction* functions, unsigned count, CUmodule module) {
  if (!functions || count == 0) return CUDA_ERROR_INVALID_VALUE;
  if (!handle_of(module).well_formed(HandleKind::module)) return CUDA_ERROR_INVALID_HANDLE;
  return enumerate(thread, handle_of(module), count, ContextNeed::current,
                   [&](unsigned i, Handle handle) { functions[i] = handle_cast<CUfunction>(handle); });
}

CUresult cuLibraryEnumerateKernels(Thread& thread, CUkernel* kernels, unsigned count, CUlibrary library) {
  if (!kernels || count == 0) return CUDA_ERROR_INVALID_VALUE;
  if (!handle_of(library).well_formed(HandleKind::library)) return CUDA_ERROR_INVALID_HANDLE;
  return enumerate(thread, handle_of(library), count, ContextNeed::optional,
                   [&](unsigned i, Handle handle) { kernels[i] = handle_cast<CUkernel>(handle); });
}

CUresult cuModuleGetGlobal_v2(Thread& thread, CUdeviceptr* address, std::size_t* bytes, CUmodule module,
                              const char* name) {
  if (!handle_of(module).well_formed(HandleKind::module)) return CUDA_ERROR_INVALID_HANDLE;
  // A variable is in its module's context, whichever is current; but one has to be.
  Session& session = session_of(thread);
  Context* context = thread.context();
  const auto its = session.functions.module(handle_of(module));
  if (its && context && context->active)
    if (Context* const live = session.contexts.find(
            handle_cast<CUcontext>(Handle::from_id(HandleKind::context, its->context, session.terms.origin))))
      context = live;
  return find_global(thread, context, {.owner = handle_of(module), .behind = its ? its->library : Handle()}, name,
                     address, bytes);
}

CUresult cuLibraryGetGlobal(Thread& thread, CUdeviceptr* address, std::size_t* bytes, CUlibrary library,
                            const char* name) {
  if (!handle_of(library).well_formed(HandleKind::library)) return CUDA_ERROR_INVALID_HANDLE;
  return find_global(thread, thread.context(), {.owner = handle_of(library)}, name, address, bytes);
}

// It needs no context: CUDA's runtime asks before it has one. What moves the contents does need one, and then that is
// the first device's.
CUresult cuLibraryGetManaged(Thread& thread, CUdeviceptr* address, std::size_t* bytes, CUlibrary library,
                             const char* name) {
  if (!handle_of(library).well_formed(HandleKind::library)) return CUDA_ERROR_INVALID_HANDLE;
  Context* context = thread.context();
  if (!context) {
    Session& session = session_of(thread);
    CUdevice first = 0;
    for (int ordinal; !session.terms.facts.worker_ordinal(first, ordinal); ++first)
      if (!session.terms.facts.device(first)) return CUDA_ERROR_NO_DEVICE;
    const std::lock_guard lock(session.contexts.mutex());
    context = &session.contexts.primary(first);
    if (!context->active)
      if (const CUresult bad = session.open_context(thread, *context); bad != CUDA_SUCCESS) return bad;
  }
  return find_global(thread, context, {.owner = handle_of(library)}, name, address, bytes, true);
}

// As on every device without CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS: no function is both the GPU's and this
// process's.
CUresult cuLibraryGetUnifiedFunction(Thread&, void** function, CUlibrary library, const char* name) {
  // No device that is served has functions for host and device alike, and the driver says so in this way.
  if (!function || !name || handle_of(library).well_formed(HandleKind::library)) return CUDA_ERROR_INVALID_VALUE;
  return CUDA_ERROR_INVALID_HANDLE;
}

}  // namespace fargpu::client::hand
