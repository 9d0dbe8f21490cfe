// Images, modules, libraries, and what is found in them. CUDA Driver API, "Module Management" and "Library Management".

#include <memory>
#include <type_traits>

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
#include "protocol/data.h"
#include "protocol/image.h"

namespace fargpu::client::hand {
namespace {

struct LibraryOptions {
  unsigned count = 0;
  CUlibraryOption* options = nullptr;
  void** values = nullptr;
};

void tell_taken(Thread& thread, Handle library) {
  RemoteCall<wire::TakeLoaded> call(thread);
  call.in().setLibrary(library.value());
  call.tell();
}

// What the program will most likely load next.
void keep_ahead(RemoteCall<wire::LoadImage>& call, capnp::List<wire::LoadedAhead>::Reader list) {
  for (const auto one : list) call.keep_ahead(bytes_of(one.getRequest()), bytes_of(one.getReply()));
}

// Loads an image as a module or a library; the handle of either comes back.
CUresult load_image(Thread& thread, const Image& image, bool module, const JitOptions& jit,
                    const LibraryOptions& library, Handle& loaded) {
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
        const Handle handle(out.getHandle());
        if (module && result == CUDA_SUCCESS)
          session_of(thread).functions.note_module(
              handle, {.context = session_of(thread).contexts.home(*thread.context()).id()});
        for (const auto kernel : out.getKernels()) session_of(thread).functions.learn(kernel, thread.context());
        if (ahead) tell_taken(thread, handle);
        else keep_ahead(call, out.getAhead());
        if (result == CUDA_SUCCESS) loaded = handle;
        return result;
      });
}

// Function of a module, kernel of a library, function of a kernel.
CUresult find_function(Thread& thread, Handle owner, const char* name, ContextNeed need, Function*& found) {
  RemoteCall<wire::FindFunction> call(thread, need);
  auto in = call.in();
  in.setOwner(owner.value());
  in.setName(name);
  const CUresult result = call.wait();
  if (result == CUDA_SUCCESS) found = session_of(thread).functions.learn(call.out(), thread.context());
  return result;
}

// As find_function, of a module or library; the worker is asked for what is not known by its name.
CUresult find_named(Thread& thread, Handle owner, const char* name, ContextNeed need, Handle& found) {
  Function* function = session_of(thread).functions.find_named(owner, name);
  const CUresult result = function ? CUDA_SUCCESS : find_function(thread, owner, name, need, function);
  if (result == CUDA_SUCCESS) found = function->handle;
  return result;
}

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

  CUresult load(Thread& thread, Handle& loaded) {
    std::vector<void*> given = jit_values;  // the driver's answer replaces some
    const JitOptions jit{static_cast<unsigned>(jit_options.size()), jit_options.data(), given.data()};
    const LibraryOptions library{static_cast<unsigned>(options.size()), options.data(), values.data()};
    return load_image(thread, image, /*module=*/false, jit, library, loaded);
  }
};

void remember(Pool& pool, Handle library, std::shared_ptr<LibrarySource> source) {
  const auto load = [source](Thread& thread, Handle& twin) { return source->load(thread, twin); };
  const auto find = [](Thread& thread, Handle twin, const std::string& name, Handle& kernel) {
    return find_named(thread, twin, name.c_str(), ContextNeed::optional, kernel);
  };
  pool.twins.loaded(library, {.load = load, .find = find});
}

// `Loaded`, a CUmodule or a CUlibrary, says what the image is loaded as.
template <class Loaded>
CUresult load(Thread& thread, Loaded* out, const void* pointer, const JitOptions& jit,
              const LibraryOptions& library = {}, std::size_t readable = unbounded) {
  constexpr bool module = std::is_same_v<Loaded, CUmodule>;
  if (!out || !pointer || !jit.valid() || (library.count > 0 && !library.options)) return CUDA_ERROR_INVALID_VALUE;
  if (module && !thread.context()) return CUDA_ERROR_INVALID_CONTEXT;
  auto image = find_image(pointer, readable);
  if (!image && module) return CUDA_ERROR_INVALID_IMAGE;
  // What is in a library is looked at when something is looked for in it; then the driver says that this is none.
  if (!image) image = Image{std::as_bytes(std::span("")), false, {}};
  Pool* const pool = module ? nullptr : process().pool();
  const auto source = pool ? std::make_shared<LibrarySource>(*image, jit, library) : nullptr;
  Handle handle;
  const CUresult result = load_image(thread, *image, module, jit, library, handle);
  if (result != CUDA_SUCCESS) return result;
  if (pool) remember(*pool, handle, source);
  *out = handle_cast<Loaded>(handle);
  return result;
}

template <class Loaded>
CUresult load_file(Thread& thread, Loaded* out, const char* path, const JitOptions& jit,
                   const LibraryOptions& library = {}) {
  if (!out || !path) return CUDA_ERROR_INVALID_VALUE;
  const auto file = InputFile::read(path);
  if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
  const std::span<const std::byte> bytes = file->with_null();
  return load(thread, out, bytes.data(), jit, library, bytes.size());
}

/// Where a variable is looked for: in a module or library. It goes with the library that a module is behind.
struct VariableOf {
  Handle owner;
  Handle behind = Handle();
};

CUresult find_global(Thread& thread, Context* context, const VariableOf& of, const char* name, CUdeviceptr* address,
                     std::size_t* bytes, bool only_managed = false) {
  if (!name || (!address && !bytes)) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult bad = check_active(context); bad != CUDA_SUCCESS) return bad;
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

// Functions of a module, kernels of a library: as many as there is room for.
template <class Out>
CUresult enumerate(Thread& thread, Handle owner, Out* list, unsigned room, ContextNeed need) {
  RemoteCall<wire::ListFunctions> call(thread, need);
  call.in().setOwner(owner.value());
  const CUresult result = call.wait();
  if (result != CUDA_SUCCESS) return result;
  const auto functions = call.out().getFunctions();
  for (unsigned i = 0; i < std::min<unsigned>(room, functions.size()); ++i) {
    RemoteCall<wire::DescribeFunction> describe(thread, need);
    describe.in().setFunction(functions[i]);
    if (const CUresult bad = describe.wait(); bad != CUDA_SUCCESS) return bad;
    session_of(thread).functions.learn(describe.out(), thread.context());
    list[i] = handle_cast<Out>(Handle(functions[i]));
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
  return load(thread, module, image, {count, options, values});
}

CUresult cuModuleLoad(Thread& thread, CUmodule* module, const char* path) {
  return load_file(thread, module, path, {});
}

CUresult cuLibraryLoadData(Thread& thread, CUlibrary* library, const void* code, CUjit_option* jit, void** jit_values,
                           unsigned jit_count, CUlibraryOption* options, void** values, unsigned count) {
  return load(thread, library, code, {jit_count, jit, jit_values}, {count, options, values});
}

CUresult cuLibraryLoadFromFile(Thread& thread, CUlibrary* library, const char* path, CUjit_option* jit,
                               void** jit_values, unsigned jit_count, CUlibraryOption* options, void** values,
                               unsigned count) {
  return load_file(thread, library, path, {jit_count, jit, jit_values}, {count, options, values});
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
  Handle function;
  const CUresult result = find_named(thread, handle_of(module), name, ContextNeed::current, function);
  if (result == CUDA_SUCCESS) *out = handle_cast<CUfunction>(function);
  return result;
}

CUresult cuLibraryGetKernel(Thread& thread, CUkernel* out, CUlibrary library, const char* name) {
  if (!out || !name) return CUDA_ERROR_INVALID_VALUE;
  if (!handle_of(library).well_formed(HandleKind::library)) return CUDA_ERROR_INVALID_HANDLE;
  Handle kernel;
  const CUresult result = find_named(thread, handle_of(library), name, ContextNeed::optional, kernel);
  if (result == CUDA_SUCCESS) *out = handle_cast<CUkernel>(kernel);
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
  if (const CUresult bad = check_active(context); bad != CUDA_SUCCESS) return bad;
  RemoteCall<wire::CuLibraryGetModule> call(thread, context);
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
  return enumerate(thread, handle_of(module), functions, count, ContextNeed::current);
}

CUresult cuLibraryEnumerateKernels(Thread& thread, CUkernel* kernels, unsigned count, CUlibrary library) {
  if (!kernels || count == 0) return CUDA_ERROR_INVALID_VALUE;
  if (!handle_of(library).well_formed(HandleKind::library)) return CUDA_ERROR_INVALID_HANDLE;
  return enumerate(thread, handle_of(library), kernels, count, ContextNeed::optional);
}

CUresult cuModuleGetGlobal_v2(Thread& thread, CUdeviceptr* address, std::size_t* bytes, CUmodule module,
                              const char* name) {
  if (!handle_of(module).well_formed(HandleKind::module)) return CUDA_ERROR_INVALID_HANDLE;
  // A variable is in its module's context, whichever is current; but one has to be.
  Session& session = session_of(thread);
  Context* context = thread.context();
  const auto its = session.functions.module(handle_of(module));
  if (its && context && context->active)
    if (Context* const live = session.contexts.find_id(its->context)) context = live;
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
    for (; !session.terms.facts.has(first); ++first)
      if (!session.terms.facts.device(first)) return CUDA_ERROR_NO_DEVICE;
    const std::lock_guard lock(session.contexts.mutex());
    context = &session.contexts.primary(first);
    if (!context->active)
      if (const CUresult bad = session.open_context(thread, *context); bad != CUDA_SUCCESS) return bad;
  }
  return find_global(thread, context, {.owner = handle_of(library)}, name, address, bytes, true);
}

// No function is both the GPU's and this process's. The driver says so in this way on every device without
// CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS.
CUresult cuLibraryGetUnifiedFunction(Thread&, void** function, CUlibrary library, const char* name) {
  if (!function || !name || handle_of(library).well_formed(HandleKind::library)) return CUDA_ERROR_INVALID_VALUE;
  return CUDA_ERROR_INVALID_HANDLE;
}

}  // namespace fargpu::client::hand
