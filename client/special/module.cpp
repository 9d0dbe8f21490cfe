// Images, modules, libraries, and what is found in them. CUDA Driver API, "Module Management" and "Library Management".

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <functional>

#include "calls_module.capnp.h"
#include "client/entry.h"
#include "client/image.h"
#include "client/log.h"
#include "client/remote_call.h"
#include "client/session.h"
#include "client_hand.h"
#include "operations.capnp.h"
#include "protocol/image_hash.h"

namespace fargpu::client::hand {
namespace {

// JIT options as programs give them: an array of kinds beside one of values, some of which are places to write to.
struct JitOptions {
  unsigned count = 0;
  CUjit_option* options = nullptr;
  void** values = nullptr;
};
struct LibraryOptions {
  unsigned count = 0;
  CUlibraryOption* options = nullptr;
  void** values = nullptr;
};

void* value_of(const JitOptions& options, CUjit_option wanted, void*** slot = nullptr) {
  for (unsigned i = 0; i < options.count; ++i) {
    if (options.options[i] != wanted || !options.values) continue;
    if (slot) *slot = &options.values[i];
    return options.values[i];
  }
  return nullptr;
}

// Options whose value is an address of the program travel without it; what the driver would write there comes back in the reply.
bool is_output(CUjit_option option) {
  return option == CU_JIT_INFO_LOG_BUFFER || option == CU_JIT_ERROR_LOG_BUFFER || option == CU_JIT_WALL_TIME;
}

// The driver's log goes into the program's buffer, and how much of it there was into the slot of the buffer's size.
void store_log(const JitOptions& options, CUjit_option buffer, CUjit_option size, capnp::Data::Reader log) {
  void** size_slot = nullptr;
  value_of(options, size, &size_slot);
  auto* const text = static_cast<char*>(value_of(options, buffer));
  if (!text || !size_slot) return;
  const auto room = static_cast<std::size_t>(reinterpret_cast<std::uintptr_t>(*size_slot));
  const std::size_t length = std::min(log.size(), room);
  std::memcpy(text, log.begin(), length);
  if (length < room) text[length] = '\0';
  *size_slot = reinterpret_cast<void*>(length);
}

void send_image(Thread& thread, const ImageHash& hash, std::span<const std::byte> bytes) {
  for (std::size_t offset = 0; offset < bytes.size();) {
    const std::size_t part = std::min(bytes.size() - offset, limits::bulk_bytes_max);
    RemoteCall<wire::SendImage> call(thread, Opcode::sendImage, ContextNeed::none);
    auto in = call.in();
    in.setHash(capnp::Data::Reader(reinterpret_cast<const kj::byte*>(hash.data()), hash.size()));
    in.setBytes(bytes.size());
    in.setOffset(offset);
    call.bulk(bytes.subspan(offset, part));
    call.tell();
    offset += part;
  }
}

// Loads an image as a module or a library; the handle of either comes back.
CUresult load(Thread& thread, const void* pointer, bool module, const JitOptions& jit, const LibraryOptions& library,
              std::uint64_t& handle) {
  if (!pointer || (jit.count > 0 && !jit.options) || (library.count > 0 && !library.options)) return CUDA_ERROR_INVALID_VALUE;
  if (module && !thread.context()) return CUDA_ERROR_INVALID_CONTEXT;
  const auto image = find_image(pointer);
  if (!image) return CUDA_ERROR_INVALID_IMAGE;
  const ImageHash hash = hash_image(image->bytes);
  // Twice at most: once by name, and once more after the host has been given the bytes.
  for (bool sent = false;; sent = true) {
    RemoteCall<wire::LoadImage> call(thread, Opcode::loadImage, module ? ContextNeed::current : ContextNeed::optional);
    if (!call) return call.error();
    auto in = call.in();
    in.setHash(capnp::Data::Reader(reinterpret_cast<const kj::byte*>(hash.data()), hash.size()));
    in.setBytes(image->bytes.size());
    in.setModule(module);
    in.setWrapped(image->wrapped);
    auto jit_list = in.initJit(jit.count);
    for (unsigned i = 0; i < jit.count; ++i) {
      jit_list[i].setOption(jit.options[i]);
      if (jit.values && !is_output(jit.options[i])) jit_list[i].setValue(reinterpret_cast<std::uintptr_t>(jit.values[i]));
    }
    auto library_list = in.initLibrary(library.count);
    for (unsigned i = 0; i < library.count; ++i) {
      // What this option points to is managed-memory hints of host functions, which no remote loader can follow.
      if (library.options[i] == CU_LIBRARY_HOST_UNIVERSAL_FUNCTION_AND_DATA_TABLE) {
        refuse_use("CU_LIBRARY_HOST_UNIVERSAL_FUNCTION_AND_DATA_TABLE");
        return CUDA_ERROR_NOT_SUPPORTED;
      }
      library_list[i].setOption(library.options[i]);
      if (library.values) library_list[i].setValue(reinterpret_cast<std::uintptr_t>(library.values[i]));
    }
    const CUresult result = call.wait();
    const auto out = call.out<wire::LoadImageReply>();
    if (result == CUDA_SUCCESS && !out.getKnown()) {
      if (sent) throw ProtocolError("the worker asked twice for an image");
      log::debug("sending an image of {} bytes", image->bytes.size());
      send_image(thread, hash, image->bytes);
      continue;
    }
    store_log(jit, CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, out.getInfoLog());
    store_log(jit, CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, out.getErrorLog());
    if (void** wall = nullptr; value_of(jit, CU_JIT_WALL_TIME, &wall), wall) {
      const float milliseconds = out.getWallMilliseconds();
      std::memcpy(wall, &milliseconds, sizeof(milliseconds));  // the value itself, not a place it points to
    }
    handle = out.getHandle();
    return result;
  }
}

// A file of the client's machine, readable as an image (with a null byte behind it, for PTX).
class ImageFile {
 public:
  explicit ImageFile(const char* path) {
    const int descriptor = ::open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) return;
    opened_ = true;
    struct stat status{};
    if (::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0 &&
        static_cast<std::uint64_t>(status.st_size) <= limits::image_bytes_max) {
      bytes_.resize(static_cast<std::size_t>(status.st_size) + 1);
      std::size_t have = 0;
      while (have < static_cast<std::size_t>(status.st_size)) {
        const ssize_t got = ::read(descriptor, bytes_.data() + have, static_cast<std::size_t>(status.st_size) - have);
        if (got <= 0) break;
        have += static_cast<std::size_t>(got);
      }
      size_ = have;
    }
    ::close(descriptor);
  }
  bool opened() const { return opened_; }
  /// Null unless the file holds an image as a whole.
  const void* image() const {
    return size_ > 0 && find_image(bytes_.data(), size_ + 1) ? bytes_.data() : nullptr;
  }

 private:
  bool opened_ = false;
  std::size_t size_ = 0;
  std::vector<std::byte> bytes_;
};

CUresult load_file(Thread& thread, const char* path, bool module, const JitOptions& jit, const LibraryOptions& library,
                   std::uint64_t& handle) {
  if (!path) return CUDA_ERROR_INVALID_VALUE;
  const ImageFile file(path);
  if (!file.opened()) return CUDA_ERROR_FILE_NOT_FOUND;
  if (!file.image()) return CUDA_ERROR_INVALID_IMAGE;
  return load(thread, file.image(), module, jit, library, handle);
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
  RemoteCall<wire::FindFunction> call(thread, Opcode::findFunction, need);
  if (!call) return call.error();
  auto in = call.in();
  in.setOwner(owner.value());
  in.setName(name);
  const CUresult result = call.wait();
  if (result != CUDA_SUCCESS) return result;
  found = thread.session().functions().learn(call.out<wire::FunctionReply>());
  if (!found) throw ProtocolError("the worker named a function by a handle of another kind");
  return result;
}

CUresult find_global(Thread& thread, Handle owner, const char* name, CUdeviceptr* address, std::size_t* bytes) {
  if (!name || (!address && !bytes)) return CUDA_ERROR_INVALID_VALUE;
  RemoteCall<wire::FindGlobal> call(thread, Opcode::findGlobal, ContextNeed::current);
  if (!call) return call.error();
  auto in = call.in();
  in.setOwner(owner.value());
  in.setName(name);
  const CUresult result = call.wait();
  if (result != CUDA_SUCCESS) return result;
  const auto out = call.out<wire::FindGlobalReply>();
  Session& session = thread.session();
  Context& context = *thread.context();
  session.map().add({.kind = Region::Kind::global,
                     .base = out.getAddress(),
                     .bytes = out.getBytes(),
                     .device = context.device,
                     .context = &context,
                     .buffer_id = session.map().next_buffer_id(),
                     .owner = owner.value()});
  if (address) *address = out.getAddress();
  if (bytes) *bytes = out.getBytes();
  return result;
}

CUresult enumerate(Thread& thread, Handle owner, unsigned room, ContextNeed need, const std::function<void(unsigned, Handle)>& store) {
  RemoteCall<wire::DescribeFunction> call(thread, Opcode::listFunctions, need);
  if (!call) return call.error();
  call.in().setFunction(owner.value());
  const CUresult result = call.wait();
  if (result != CUDA_SUCCESS) return result;
  const auto list = call.out<wire::FunctionList>().getFunctions();
  for (unsigned i = 0; i < std::min<unsigned>(room, list.size()); ++i) {
    RemoteCall<wire::DescribeFunction> describe(thread, Opcode::describeFunction, need);
    describe.in().setFunction(list[i]);
    if (const CUresult bad = describe.wait(); bad != CUDA_SUCCESS) return bad;
    if (!thread.session().functions().learn(describe.out<wire::FunctionReply>()))
      throw ProtocolError("the worker named a function by a handle of another kind");
    store(i, Handle(list[i]));
  }
  return result;
}

void forget_owner(Session& session, Handle owner) {
  session.functions().forget_owner(owner);
  session.map().extract([&](const Region& r) { return r.kind == Region::Kind::global && r.owner == owner.value(); });
}

}  // namespace

// --- loading ------------------------------------------------------------------------------------------------------------------

CUresult cuModuleLoadDataEx(Thread& thread, CUmodule* module, const void* image, unsigned count, CUjit_option* options,
                            void** values) {
  if (!module) return CUDA_ERROR_INVALID_VALUE;
  return give([&](std::uint64_t& handle) { return load(thread, image, true, {count, options, values}, {}, handle); }, module);
}

CUresult cuModuleLoadData(Thread& thread, CUmodule* module, const void* image) {
  return cuModuleLoadDataEx(thread, module, image, 0, nullptr, nullptr);
}

CUresult cuModuleLoadFatBinary(Thread& thread, CUmodule* module, const void* image) {
  return cuModuleLoadDataEx(thread, module, image, 0, nullptr, nullptr);
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

CUresult cuLibraryLoadFromFile(Thread& thread, CUlibrary* library, const char* path, CUjit_option* jit, void** jit_values,
                               unsigned jit_count, CUlibraryOption* options, void** values, unsigned count) {
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
  RemoteCall<wire::CuModuleUnload> call(thread, Opcode::cuModuleUnload, ContextNeed::current);
  if (!call) return call.error();
  call.in().setHmod(handle.value());
  const CUresult result = call.wait();
  if (result == CUDA_SUCCESS) forget_owner(thread.session(), handle);
  return result;
}

CUresult cuLibraryUnload(Thread& thread, CUlibrary library) {
  const Handle handle = handle_of(library);
  if (!handle.well_formed(HandleKind::library)) return CUDA_ERROR_INVALID_HANDLE;
  RemoteCall<wire::CuLibraryUnload> call(thread, Opcode::cuLibraryUnload, ContextNeed::none);
  if (!call) return call.error();
  call.in().setLibrary(handle.value());
  const CUresult result = call.wait();
  if (result == CUDA_SUCCESS) forget_owner(thread.session(), handle);
  return result;
}

// --- finding --------------------------------------------------------------------------------------------------------------------

CUresult cuModuleGetFunction(Thread& thread, CUfunction* out, CUmodule module, const char* name) {
  if (!out || !name) return CUDA_ERROR_INVALID_VALUE;
  if (!handle_of(module).well_formed(HandleKind::module)) return CUDA_ERROR_INVALID_HANDLE;
  Function* function = nullptr;
  const CUresult result = find_function(thread, handle_of(module), name, ContextNeed::current, function);
  if (result == CUDA_SUCCESS) *out = handle_cast<CUfunction>(function->handle);
  return result;
}

CUresult cuLibraryGetKernel(Thread& thread, CUkernel* out, CUlibrary library, const char* name) {
  if (!out || !name) return CUDA_ERROR_INVALID_VALUE;
  if (!handle_of(library).well_formed(HandleKind::library)) return CUDA_ERROR_INVALID_HANDLE;
  Function* kernel = nullptr;
  const CUresult result = find_function(thread, handle_of(library), name, ContextNeed::optional, kernel);
  if (result == CUDA_SUCCESS) *out = handle_cast<CUkernel>(kernel->handle);
  return result;
}

CUresult cuKernelGetFunction(Thread& thread, CUfunction* out, CUkernel kernel) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  Function* const known = thread.session().functions().find_kernel(kernel);
  if (!known) return CUDA_ERROR_INVALID_HANDLE;
  const Context* const context = thread.context();
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  {
    const std::lock_guard lock(known->mutex);
    if (const auto found = known->functions.find(context->id()); found != known->functions.end()) {
      *out = handle_cast<CUfunction>(found->second);
      return CUDA_SUCCESS;
    }
  }
  Function* function = nullptr;
  const CUresult result = find_function(thread, handle_of(kernel), "", ContextNeed::current, function);
  if (result != CUDA_SUCCESS) return result;
  {
    const std::lock_guard lock(function->mutex);
    function->kernel = known->handle;
  }
  const std::lock_guard lock(known->mutex);
  known->functions[context->id()] = function->handle;
  *out = handle_cast<CUfunction>(function->handle);
  return result;
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

CUresult cuModuleGetGlobal_v2(Thread& thread, CUdeviceptr* address, std::size_t* bytes, CUmodule module, const char* name) {
  if (!handle_of(module).well_formed(HandleKind::module)) return CUDA_ERROR_INVALID_HANDLE;
  return find_global(thread, handle_of(module), name, address, bytes);
}

CUresult cuLibraryGetGlobal(Thread& thread, CUdeviceptr* address, std::size_t* bytes, CUlibrary library, const char* name) {
  if (!handle_of(library).well_formed(HandleKind::library)) return CUDA_ERROR_INVALID_HANDLE;
  return find_global(thread, handle_of(library), name, address, bytes);
}

}  // namespace fargpu::client::hand
