// Functions, kernels and variables of modules and libraries, and attributes.

#include "function.h"

#include <chrono>
#include <utility>

#include "protocol/text.h"
#include "server_hand.h"

namespace fargpu::server {
namespace {

using Clock = std::chrono::steady_clock;

// A kernel without code for this device has no parameters to tell of, and is found nevertheless: its launch says why it
// cannot run.
bool lacks_code(CUresult result) {
  switch (result) {
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
    case CUDA_ERROR_INVALID_IMAGE:
    case CUDA_ERROR_INVALID_PTX:
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
    case CUDA_ERROR_JIT_COMPILER_NOT_FOUND:
    case CUDA_ERROR_JIT_COMPILATION_DISABLED:
    case CUDA_ERROR_NOT_FOUND: return true;
    default: return false;
  }
}

// What launches are checked against and is set to what they need; most others only say what is preferred.
bool is_limit(CUfunction_attribute attribute) {
  return attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES ||
         attribute == CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED;
}

// What a launch is made with, and may be changed from launch to launch.
bool is_shape(CUfunction_attribute attribute) {
  return attribute == CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH ||
         attribute == CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT ||
         attribute == CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH ||
         attribute == CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE;
}

/// What has attributes: a function, or a kernel on a device.
struct Attributed {
  CUfunction function = nullptr;  // of a kernel too where Ordering may know limits by it
  CUkernel kernel = nullptr;
  int device = -1;  // the driver's ordinal

  CUresult get(DriverTable& driver, int* value, CUfunction_attribute which) const {
    return kernel ? driver.cuKernelGetAttribute(value, which, kernel, device)
                  : driver.cuFuncGetAttribute(value, which, function);
  }
  CUresult set(DriverTable& driver, CUfunction_attribute which, int value) const {
    return kernel ? driver.cuKernelSetAttribute(which, value, kernel, device)
                  : driver.cuFuncSetAttribute(function, which, value);
  }
};

// Both names of one thing have equal limits: on the device of the current context a kernel is its function there.
// Limits by a function are asked for only while something is held back.
Attributed kernel_on(Session& session, CUkernel kernel, int device) {
  if (!session.ordering().holding()) return {nullptr, kernel, device};
  DriverTable& driver = session.driver();
  CUdevice current = -1;
  CUfunction function{};
  const bool here = driver.cuCtxGetDevice(&current) == CUDA_SUCCESS && current == device &&
                    driver.cuKernelGetFunction(&function, kernel) == CUDA_SUCCESS;
  return {here ? function : reinterpret_cast<CUfunction>(kernel), kernel, device};
}

// What a request names; without an ordinal of the session's it is a function.
CUresult find(Session& session, Call& call, std::uint64_t handle, int ordinal, Attributed& found) {
  if (CUkernel kernel{}; ordinal >= 0 && session.objects().resolve(HandleKind::kernel, handle, kernel)) {
    const int device = session.contexts().driver_ordinal(ordinal);
    if (device < 0) return CUDA_ERROR_INVALID_DEVICE;
    call.set_device(device);
    found = kernel_on(session, kernel, device);
    return CUDA_SUCCESS;
  }
  if (!session.objects().resolve(HandleKind::function, handle, found.function)) return CUDA_ERROR_INVALID_HANDLE;
  return call.id().context == 0 ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

// Fails only where the driver has no room for the code, which it loads when somebody asks about it: what it answers
// then is no answer about the function.
CUresult tell_attributes(Session& session, const Attributed& object, wire::FunctionAttributesReply::Builder out) {
  auto values = out.initValues(CU_FUNC_ATTRIBUTE_MAX);
  auto results = out.initResults(CU_FUNC_ATTRIBUTE_MAX);
  for (unsigned i = 0; i < CU_FUNC_ATTRIBUTE_MAX; ++i) {
    const auto attribute = static_cast<CUfunction_attribute>(i);
    int value = 0;
    const CUresult result = object.get(session.driver(), &value, attribute);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) return result;
    results.set(i, result);
    if (is_limit(attribute) && session.ordering().holding())
      value = session.ordering().lowered_later({object.function, attribute}).value_or(value);
    values.set(i, value);
  }
  return CUDA_SUCCESS;
}

// The driver compiles PTX of a library when somebody asks about code of it in a context, which may take minutes: the
// first time that is done beside the executor, and the call is carried out behind it.
std::optional<Outcome> compile_aside(Session& session, Call& call, Handle library, std::function<bool()> ask) {
  ContextState* const context = session.contexts().find(call.id().context);
  if (!context || session.asides().tries_last() || session.objects().entered(library, context->id)) return std::nullopt;
  struct Asked {
    bool loaded = false;
    Clock::duration took{};
  };
  const auto asked = std::make_shared<Asked>();
  return session.asides().run_first(
      call, *context,
      [asked, ask = std::move(ask)] {
        const auto begin = Clock::now();
        asked->loaded = ask();
        asked->took = Clock::now() - begin;
      },
      [&session, library, context = context->id, asked] {
        if (asked->loaded) session.objects().note_entered(library, context, asked->took > kernel_time_max);
      });
}

}  // namespace

bool ask_about(DriverTable& driver, CUkernel kernel) {
  CUfunction function{};
  std::size_t offset = 0, bytes = 0;
  driver.cuKernelGetFunction(&function, kernel);
  const CUresult result = driver.cuKernelGetParamInfo(kernel, 0, &offset, &bytes);
  return result == CUDA_SUCCESS || result == CUDA_ERROR_INVALID_VALUE;  // which is: it has no parameters
}

bool ask_about(DriverTable& driver, CUlibrary library, const std::string& name) {
  CUkernel kernel{};
  return driver.cuLibraryGetKernel(&kernel, library, name.c_str()) == CUDA_SUCCESS && ask_about(driver, kernel);
}

CUresult describe_function(Session& session, const CallId& id, Handle handle, wire::FunctionReply::Builder out,
                           Handle owner) {
  const bool kernel = handle.kind() == HandleKind::kernel;
  Handles::Entry& entry = *session.objects().handles().find(handle.kind(), handle);
  FunctionLayout* found = nullptr;
  if (const CUresult bad = session.code().layouts.find(entry, kernel, found); bad != CUDA_SUCCESS && !lacks_code(bad))
    return bad;
  static const FunctionLayout unknown;
  const FunctionLayout& layout = found ? *found : unknown;
  out.setFunction(handle.value());
  out.setOwner(owner.value());
  auto parameters = out.initParameters(static_cast<unsigned>(layout.parameters.size()));
  for (unsigned i = 0; i < layout.parameters.size(); ++i) {
    parameters[i].setOffset(layout.parameters[i].offset);
    parameters[i].setBytes(layout.parameters[i].bytes);
  }
  const char* name = nullptr;
  const CUresult named = kernel ? session.driver().cuKernelGetName(&name, reinterpret_cast<CUkernel>(entry.value))
                                : session.driver().cuFuncGetName(&name, reinterpret_cast<CUfunction>(entry.value));
  if (named == CUDA_SUCCESS && name) out.setName(name);
  const ContextState* const context = session.contexts().find(id.context);
  if (!context) return CUDA_SUCCESS;
  const Attributed object = kernel ? kernel_on(session, reinterpret_cast<CUkernel>(entry.value),
                                               session.contexts().driver_ordinal(context->device))
                                   : Attributed{.function = reinterpret_cast<CUfunction>(entry.value)};
  return tell_attributes(session, object, out.initAttributes());  // what everybody asks next
}

namespace hand {

// The program may use a kernel's memory while that runs. Over a network each side then has a copy.
Outcome examineKernel(Session& session, Call& call, wire::ExamineKernel::Reader in) {
  // A kernel's function goes with the kernel, and that with its library.
  const ImageHash* const hash = session.objects().image_of(session.objects().handles().root_of(Handle(in.getOwner())));
  if (!hash) return CUDA_SUCCESS;  // a module behind a library, or one that is gone: no call of the program's
  const std::string name = in.getName().cStr();
  Code& code = session.code();
  const bool whole_system = code.system_scope.has(*hash, code.images.found(*hash), name);
  call.out<wire::ExamineKernelReply>().setWholeSystem(whole_system);
  if (whole_system && code.system_scope.first())
    session.prints().warn(
        "kernel " + printable(name, 256) +
        " has atomics or fences of the whole system, and the program has managed or registered memory, or gives it "
        "pinned memory, of which program and GPU have a copy each: the program waits for such kernels where it touches "
        "managed or pinned memory, and not where it touches registered memory (see the page \"What cannot work over a "
        "network\" of the documentation)");
  return CUDA_SUCCESS;
}

Outcome findFunction(Session& session, Call& call, wire::FindFunction::Reader in) {
  const Handle owner(in.getOwner());
  const std::string name = in.getName().cStr();
  DriverTable& driver = session.driver();
  Handle handle;
  CUresult result;
  if (CUmodule module{}; session.objects().resolve(HandleKind::module, owner.value(), module)) {
    CUfunction function{};
    result = driver.cuModuleGetFunction(&function, module, name.c_str());
    if (result == CUDA_SUCCESS) handle = session.objects().reveal(HandleKind::function, function, call, owner.value());
  } else if (CUlibrary library{}; session.objects().resolve(HandleKind::library, owner.value(), library)) {
    if (auto later =
            compile_aside(session, call, owner, [&driver, library, name] { return ask_about(driver, library, name); }))
      return *later;
    CUkernel kernel{};
    result = driver.cuLibraryGetKernel(&kernel, library, name.c_str());
    if (result == CUDA_SUCCESS) handle = session.objects().reveal(HandleKind::kernel, kernel, call, owner.value());
  } else if (CUkernel kernel{}; session.objects().resolve(HandleKind::kernel, owner.value(), kernel)) {
    if (call.id().context == 0) return CUDA_ERROR_INVALID_CONTEXT;
    const Handle library = session.objects().handles().root_of(owner);
    if (auto later = compile_aside(session, call, library, [&driver, kernel] { return ask_about(driver, kernel); }))
      return *later;
    CUfunction function{};
    result = driver.cuKernelGetFunction(&function, kernel);
    if (result == CUDA_SUCCESS) handle = session.objects().reveal(HandleKind::function, function, call, owner.value());
  } else {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (result != CUDA_SUCCESS) return result;
  const auto begin = Clock::now();
  result = describe_function(session, call.id(), handle, call.out<wire::FunctionReply>(), owner);
  const ImageHash* const image = session.objects().image_of(owner);
  if (result == CUDA_SUCCESS && image && Clock::now() - begin < kernel_time_max && !session.objects().slow(owner))
    session.code().images.note_found(*image, name);
  return result;
}

Outcome kernelFunction(Session& session, Call& call, wire::KernelFunction::Reader in) {
  if (const CUresult bad = session.objects().check_adoption(HandleKind::function, in.getFunction());
      bad != CUDA_SUCCESS)
    return bad;
  CUkernel kernel{};
  if (!session.objects().resolve(HandleKind::kernel, in.getKernel(), kernel)) return CUDA_ERROR_INVALID_HANDLE;
  CUfunction function{};
  const CUresult result = session.driver().cuKernelGetFunction(&function, kernel);
  if (result != CUDA_SUCCESS) return result;
  session.objects().adopt(HandleKind::function, in.getFunction(), function, call);
  session.objects().handles().give(Handle(in.getFunction()), Handle(in.getKernel()));
  return result;
}

Outcome describeFunction(Session& session, Call& call, wire::DescribeFunction::Reader in) {
  const Handle handle(in.getFunction());
  DriverTable& driver = session.driver();
  if (CUkernel kernel{}; session.objects().resolve(HandleKind::kernel, handle.value(), kernel)) {
    CUlibrary library{};
    if (const CUresult bad = driver.cuKernelGetLibrary(&library, kernel); bad != CUDA_SUCCESS) return bad;
    return describe_function(session, call.id(), handle, call.out<wire::FunctionReply>(),
                             session.objects().reveal(HandleKind::library, library, call));
  }
  CUfunction function{};
  if (!session.objects().handles().find(HandleKind::function, handle)) return CUDA_ERROR_INVALID_HANDLE;
  session.objects().resolve(HandleKind::function, handle.value(), function);
  CUmodule module{};
  if (const CUresult bad = driver.cuFuncGetModule(&module, function); bad != CUDA_SUCCESS) return bad;
  return describe_function(session, call.id(), handle, call.out<wire::FunctionReply>(),
                           session.objects().reveal(HandleKind::module, module, call));
}

Outcome listFunctions(Session& session, Call& call, wire::ListFunctions::Reader in) {
  DriverTable& driver = session.driver();
  unsigned count = 0;
  CUresult result;
  std::vector<Handle> handles;
  if (CUmodule module{}; session.objects().resolve(HandleKind::module, in.getOwner(), module)) {
    result = driver.cuModuleGetFunctionCount(&count, module);
    if (result != CUDA_SUCCESS) return result;
    std::vector<CUfunction> functions(count);
    if (count > 0) result = driver.cuModuleEnumerateFunctions(functions.data(), count, module);
    for (const CUfunction function : functions)
      handles.push_back(session.objects().reveal(HandleKind::function, function, call, in.getOwner()));
  } else if (CUlibrary library{}; session.objects().resolve(HandleKind::library, in.getOwner(), library)) {
    result = driver.cuLibraryGetKernelCount(&count, library);
    if (result != CUDA_SUCCESS) return result;
    std::vector<CUkernel> kernels(count);
    if (count > 0) result = driver.cuLibraryEnumerateKernels(kernels.data(), count, library);
    for (const CUkernel kernel : kernels)
      handles.push_back(session.objects().reveal(HandleKind::kernel, kernel, call, in.getOwner()));
  } else {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (result != CUDA_SUCCESS) return result;
  auto list = call.out<wire::FunctionList>().initFunctions(count);
  for (unsigned i = 0; i < count; ++i) list.set(i, handles[i].value());
  return result;
}

Outcome functionAttributes(Session& session, Call& call, wire::FunctionAttributes::Reader in) {
  auto out = call.out<wire::FunctionAttributesReply>();
  Attributed asked;
  const CUresult bad = find(session, call, in.getFunction(), in.getDevice(), asked);
  return bad == CUDA_SUCCESS ? tell_attributes(session, asked, out) : bad;
}

// Programs set it to what the next launch needs. Launches that are held back may need more.
Outcome setFunctionAttribute(Session& session, Call& call, wire::SetFunctionAttribute::Reader in) {
  Attributed target;
  if (const CUresult bad = find(session, call, in.getFunction(), in.getDevice(), target); bad != CUDA_SUCCESS)
    return bad;
  const auto attribute = static_cast<CUfunction_attribute>(in.getAttribute());
  if (is_limit(attribute)) {
    int present = 0;
    const bool lowers = session.ordering().holding() && in.getValue() >= 0 &&
                        target.get(session.driver(), &present, attribute) == CUDA_SUCCESS && in.getValue() < present;
    if (const auto later = session.ordering().sets_limit(call, {target.function, attribute}, in.getValue(), lowers))
      return *later;
  }
  if (is_shape(attribute)) {
    if (const auto later = session.ordering().behind_all(call)) return *later;
  }
  return target.set(session.driver(), attribute, in.getValue());
}

Outcome findGlobal(Session& session, Call& call, wire::FindGlobal::Reader in) {
  const std::string name = in.getName().cStr();
  CUdeviceptr address = 0;
  std::size_t bytes = 0;
  CUresult result;
  if (call.id().context == 0) return CUDA_ERROR_INVALID_CONTEXT;
  DriverTable& driver = session.driver();
  if (CUmodule module{}; session.objects().resolve(HandleKind::module, in.getOwner(), module)) {
    result = driver.cuModuleGetGlobal_v2(&address, &bytes, module, name.c_str());
  } else if (CUlibrary library{}; session.objects().resolve(HandleKind::library, in.getOwner(), library)) {
    const auto look = [&driver, library, name, managed = in.getManaged()](CUdeviceptr& address, std::size_t& bytes) {
      return managed ? driver.cuLibraryGetManaged(&address, &bytes, library, name.c_str())
                     : driver.cuLibraryGetGlobal(&address, &bytes, library, name.c_str());
    };
    const auto ask = [look] {
      CUdeviceptr there = 0;
      std::size_t size = 0;
      return look(there, size) == CUDA_SUCCESS;
    };
    if (auto later = compile_aside(session, call, Handle(in.getOwner()), ask)) return *later;
    result = look(address, bytes);
  } else {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (result != CUDA_SUCCESS) return result;
  session.objects().add_global(in.getOwner(), address, bytes);
  auto out = call.out<wire::FindGlobalReply>();
  out.setAddress(address);
  out.setBytes(bytes);
  unsigned managed = 0;
  out.setManaged(driver.cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, address) == CUDA_SUCCESS &&
                 managed != 0);
  return result;
}

}  // namespace hand
}  // namespace fargpu::server
