// Facts about functions and kernels. CUDA Driver API, "Execution Control" and "Library Management".

#include "client/code/functions.h"

#include "client/session/entry.h"
#include "client/call/remote_call.h"
#include "client/session/session.h"
#include "client_hand.h"
#include "library_module.h"
#include "operations.capnp.h"

namespace fargpu::client::hand {
namespace {

// Names the function, and the device by the worker's number: -1 for that of the current context.
template <class Request>
CUresult address(Thread& thread, RemoteCall<Request>& call, const Function& function, int device) {
  if (!call) return call.error();
  int worker_device = -1;
  if (device >= 0 && !session_of(thread).terms.facts.worker_ordinal(device, worker_device))
    return CUDA_ERROR_INVALID_DEVICE;
  call.in().setFunction(function.handle.value());
  call.in().setDevice(worker_device);
  return CUDA_SUCCESS;
}

// Asks for all attributes at once; programs ask for about a dozen of them, thousands of times.
CUresult fetch(Thread& thread, Function& function, int device, Function::Attributes& attributes) {
  RemoteCall<wire::FunctionAttributes> call(thread);
  if (const CUresult bad = address(thread, call, function, device); bad != CUDA_SUCCESS) return bad;
  const CUresult result = call.wait();
  if (result != CUDA_SUCCESS) return result;
  attributes = Function::read(call.out());
  return result;
}

CUresult get(Thread& thread, int* value, CUfunction_attribute attribute, Function& function, int device) {
  if (!value || attribute < 0 || attribute >= CU_FUNC_ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;
  const auto index = static_cast<std::size_t>(attribute);
  const auto take = [&](const Function::Attributes& known) {
    if (index >= known.values.size()) return CUDA_ERROR_INVALID_VALUE;
    if (known.results[index] == CUDA_SUCCESS) *value = known.values[index];
    return known.results[index];
  };
  std::uint64_t changes = 0;
  {
    const std::lock_guard lock(function.mutex);
    changes = function.changes;
    if (const auto known = function.attributes.find(device); known != function.attributes.end()) {
      // A function that the driver had not loaded yet may be by now.
      if (const CUresult result = take(known->second); result != CUDA_ERROR_FUNCTION_NOT_LOADED) return result;
    }
  }
  Function::Attributes fetched;
  if (const CUresult result = fetch(thread, function, device, fetched); result != CUDA_SUCCESS) return result;
  const CUresult result = take(fetched);
  const std::lock_guard lock(function.mutex);
  // What was asked for before another thread set something may be what was before that.
  if (function.changes == changes) function.attributes.insert_or_assign(device, std::move(fetched));
  return result;
}

// Whether the driver cannot but accept it. Others it must be asked about: tuners find out what is allowed by trying.
bool surely_settable(const Device& device, const Function::Attributes& known, CUfunction_attribute attribute,
                     int value) {
  const auto present = known.value(attribute), fixed = known.value(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
  if (!present || !fixed) return false;
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      return value >= 0 &&
             std::int64_t{*fixed} + value <= device.attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: return value >= -1 && value <= 100;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
      return (value == 0 || value == 1) && device.attribute(CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH) != 0;
    default: return false;
  }
}

static_assert(CU_FUNC_ATTRIBUTE_MAX <= 32);
std::uint32_t bit_of(CUfunction_attribute attribute) {
  return attribute < CU_FUNC_ATTRIBUTE_MAX ? std::uint32_t{1} << attribute : 0;
}

// Whether the attribute has yet to become the function's own, which goes before what is set of its kernel: CUDA Driver
// API, cuKernelSetAttribute. A kernel's own it is anyway.
bool to_be_its_own(const Functions& functions, Function& function, CUfunction_attribute attribute) {
  if (function.handle.kind() == HandleKind::kernel || !functions.may_have_kernel(function)) return false;
  const std::lock_guard lock(function.mutex);
  return !(function.own_attributes & bit_of(attribute));
}

CUresult set(Thread& thread, CUfunction_attribute attribute, int value, Function& function, int device) {
  if (attribute < CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) return CUDA_ERROR_INVALID_VALUE;  // only to be read
  // Setting what is set already needs no word; frameworks do it before every launch.
  int present = 0;
  if (get(thread, &present, attribute, function, device) == CUDA_SUCCESS && present == value &&
      !to_be_its_own(session_of(thread).functions, function, attribute))
    return CUDA_SUCCESS;
  RemoteCall<wire::SetFunctionAttribute> call(thread);
  if (const CUresult bad = address(thread, call, function, device); bad != CUDA_SUCCESS) return bad;
  call.in().setAttribute(attribute);
  call.in().setValue(value);
  call.about(function.handle);
  std::uint64_t changes = 0;
  const bool sure = [&] {
    const int ordinal = device >= 0 ? device : thread.context()->device;
    const std::lock_guard lock(function.mutex);
    changes = function.changes;
    const auto known = function.attributes.find(device);
    return known != function.attributes.end() &&
           surely_settable(session_of(thread).terms.facts.at(ordinal), known->second, attribute, value);
  }();
  const CUresult result = sure ? call.post() : call.wait();
  if (result != CUDA_SUCCESS) return result;
  {
    const std::lock_guard lock(function.mutex);
    function.own_attributes |= bit_of(attribute);
  }
  Session& session = session_of(thread);
  const std::vector<Handle> same = session.functions.attribute_changed(function, device, attribute, value, changes);
  for (const Opcode stale : forgotten_after(Opcode::setFunctionAttribute)) {
    if (session.functions.knows_modules_of_libraries())
      session.calls.replies.forget(stale);  // which of them are one we do not know
    else
      for (const Handle one : same) session.calls.replies.forget(stale, one.value());
  }
  return result;
}

}  // namespace

CUresult cuFuncGetAttribute(Thread& thread, int* value, CUfunction_attribute attribute, CUfunction f) {
  Function* const function = session_of(thread).functions.find(f);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  if (!thread.context()) return CUDA_ERROR_INVALID_CONTEXT;
  return get(thread, value, attribute, *function, function->attribute_device(thread.context()->device));
}

CUresult cuKernelGetAttribute(Thread& thread, int* value, CUfunction_attribute attribute, CUkernel k, CUdevice device) {
  Function* const kernel = session_of(thread).functions.find_kernel(k);
  if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
  if (!session_of(thread).terms.facts.device(device)) return CUDA_ERROR_INVALID_DEVICE;
  return get(thread, value, attribute, *kernel, device);
}

CUresult cuFuncSetAttribute(Thread& thread, CUfunction f, CUfunction_attribute attribute, int value) {
  Function* const function = session_of(thread).functions.find(f);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  if (!thread.context()) return CUDA_ERROR_INVALID_CONTEXT;
  return set(thread, attribute, value, *function, function->attribute_device(thread.context()->device));
}

CUresult cuKernelSetAttribute(Thread& thread, CUfunction_attribute attribute, int value, CUkernel k, CUdevice device) {
  Function* const kernel = session_of(thread).functions.find_kernel(k);
  if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
  if (!session_of(thread).terms.facts.device(device)) return CUDA_ERROR_INVALID_DEVICE;
  return set(thread, attribute, value, *kernel, device);
}

CUresult cuFuncGetParamInfo(Thread& thread, CUfunction f, std::size_t index, std::size_t* offset, std::size_t* bytes) {
  if (!f) return CUDA_ERROR_INVALID_VALUE;
  const Function* const function = session_of(thread).functions.find(f);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  if (!offset || index >= function->parameters.size()) return CUDA_ERROR_INVALID_VALUE;
  *offset = function->parameters[index].offset;
  if (bytes) *bytes = function->parameters[index].bytes;
  return CUDA_SUCCESS;
}

CUresult cuFuncGetName(Thread& thread, const char** name, CUfunction f) {
  if (!f) return CUDA_ERROR_INVALID_VALUE;
  const Function* const function = session_of(thread).functions.find(f);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  if (!name) return CUDA_ERROR_INVALID_VALUE;
  *name = function->name.c_str();
  return CUDA_SUCCESS;
}

// A kernel's function is in the module behind the kernel's library, in the context that it is for.
CUresult cuFuncGetModule(Thread& thread, CUmodule* module, CUfunction f) {
  if (!f) return CUDA_ERROR_INVALID_VALUE;
  Session& session = session_of(thread);
  const Function* const function = session.functions.find(f);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  if (!module) return CUDA_ERROR_INVALID_VALUE;
  if (function->owner.well_formed(HandleKind::module)) {
    *module = handle_cast<CUmodule>(function->owner);
    return CUDA_SUCCESS;
  }
  const Function* const kernel = session.functions.find_kernel(handle_cast<CUkernel>(function->owner));
  if (!kernel) return CUDA_ERROR_INVALID_VALUE;
  return library_module(thread, session.contexts.find_id(function->context), kernel->owner, *module);
}

CUresult cuKernelGetLibrary(Thread& thread, CUlibrary* library, CUkernel k) {
  const Function* const kernel = session_of(thread).functions.find_kernel(k);
  if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
  if (!library || !kernel->owner.well_formed(HandleKind::library)) return CUDA_ERROR_INVALID_VALUE;
  *library = handle_cast<CUlibrary>(kernel->owner);
  return CUDA_SUCCESS;
}

CUresult cuModuleGetLoadingMode(Thread& thread, CUmoduleLoadingMode* mode) {
  if (!mode) return CUDA_ERROR_INVALID_VALUE;
  *mode = static_cast<CUmoduleLoadingMode>(session_of(thread).terms.facts.module_loading_mode);
  return CUDA_SUCCESS;
}

}  // namespace fargpu::client::hand
