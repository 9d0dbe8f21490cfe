// Images, modules, libraries, functions.

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <list>
#include <utility>

#include "protocol/data.h"
#include "protocol/fatbin.h"
#include "protocol/image.h"
#include "protocol/text.h"
#include "server/worker/code/jit_options.h"
#include "server/worker/session/session.h"
#include "server_hand.h"

namespace fargpu::server::hand {
namespace {

using Clock = std::chrono::steady_clock;

constexpr unsigned options_max = 64;
// For looking at kernels that nobody has asked about, while nothing else is done for the session: of what was loaded,
// of all that was loaded ahead with it.
constexpr auto own_time = std::chrono::milliseconds(10), ahead_time = std::chrono::milliseconds(50);
// A kernel that takes longer is compiled: it is looked at when it is asked for, and not before.
constexpr auto kernel_time_max = std::chrono::milliseconds(100);

bool read_hash(capnp::Data::Reader in, ImageHash& hash) {
  if (in.size() != hash.size()) return false;
  std::memcpy(hash.data(), in.begin(), hash.size());
  return true;
}

/// The containers of an image that came in a wrapper (`joined` in protocol/image.h): all within it. Empty if they are
/// not.
std::vector<const void*> containers_of(std::span<const std::byte> image) {
  FatbinContainer header;
  std::vector<const void*> containers;
  for (std::size_t offset = 0; offset < image.size(); offset = (offset + 7) & ~std::size_t{7}) {
    const std::size_t left = image.size() - offset;
    if (left < sizeof(header)) return {};
    std::memcpy(&header, image.data() + offset, sizeof(header));
    if (header.magic != fatbin_magic || header.header_bytes < sizeof(header) || header.header_bytes > left ||
        header.bytes > left - header.header_bytes)
      return {};
    containers.push_back(image.data() + offset);
    offset += header.header_bytes + header.bytes;
  }
  return containers;
}

// Has the driver load a kernel's code into the current context, which it may have to compile first. False if it has
// not.
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

/// One load, with room for what the driver writes. Lives until the load is settled, and with a wrapper until what it
/// made is unloaded.
struct Load {
  ImageHash hash{};
  std::shared_ptr<const void> held;     // the image
  FatbinWrapper wrapper;                // the runtime passes it on, so some code paths of drivers expect it
  std::vector<const void*> containers;  // null behind the last
  const void* image = nullptr;          // null: the host lacks it
  bool module = false;
  JitOptions jit;
  std::vector<CUlibraryOption> library;
  std::vector<void*> library_values;
  CUmodule made_module = nullptr;
  CUlibrary made_library = nullptr;
  CUresult result = CUDA_ERROR_UNKNOWN;
  HostCharge kept;       // for as long as the wrapper
  bool prints = false;   // its code may
  std::string name;      // of a library's kernel that an earlier session looked for; empty without a context, too
  bool entered = false;  // its code is in the context
  bool slow = false;     // and that took long
  // Of a library's, until it is answered; empty if it is longer than any that is answered ahead.
  std::vector<std::byte> request;

  CUresult read(wire::LoadImage::Reader in, HostBudget& budget) {
    if (!read_hash(in.getHash(), hash) || in.getLibrary().size() > options_max) return CUDA_ERROR_INVALID_VALUE;
    for (const auto option : in.getLibrary()) {
      if (option.getOption() == CU_LIBRARY_HOST_UNIVERSAL_FUNCTION_AND_DATA_TABLE ||
          option.getOption() >= CU_LIBRARY_NUM_OPTIONS)
        return CUDA_ERROR_INVALID_VALUE;
      library.push_back(static_cast<CUlibraryOption>(option.getOption()));
      library_values.push_back(reinterpret_cast<void*>(option.getValue()));
    }
    module = in.getModule();
    return jit.read(in.getJit(), budget);
  }

  /// Beside the executor.
  void make(DriverTable& driver) {
    result =
        module ? driver.cuModuleLoadDataEx(&made_module, image, jit.count(), jit.kinds(), jit.values())
               : driver.cuLibraryLoadData(&made_library, image, jit.kinds(), jit.values(), jit.count(), library.data(),
                                          library_values.data(), static_cast<unsigned>(library.size()));
    const auto begin = Clock::now();
    entered = result == CUDA_SUCCESS && !name.empty() && ask_about(driver, made_library, name);
    slow = Clock::now() - begin > kernel_time_max;
  }
  /// What was made is of no use.
  void unload(DriverTable& driver) const {
    if (result != CUDA_SUCCESS) return;
    if (module) driver.cuModuleUnload(made_module);
    else driver.cuLibraryUnload(made_library);
  }
};

// A kernel whose code is not for this device has no parameters to tell of, and is found all the same: its launch says
// why it cannot run.
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

// Both names of one thing have the same limits: on the device of the current context a kernel is its function there.
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

CUresult describe(Session& session, const CallId& id, Handle handle, wire::FunctionReply::Builder out, Handle owner) {
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

// What earlier sessions looked for in the same image: the client will not have to ask.
void find_again(Session& session, const CallId& id, Handle owner, const Load& load, Clock::duration time,
                wire::LoadImageReply::Builder out) {
  if (!session.contexts().find(id.context)) return;  // looking closer at kernels would make one
  if (!load.module && !load.entered) return;         // and here have code compiled
  const auto end = Clock::now() + time;
  const HandleKind kind = load.module ? HandleKind::function : HandleKind::kernel;
  std::list<MessageWriter> found;
  for (const std::string& name : session.code().images.names_found(load.hash)) {
    if (Clock::now() >= end || !session.objects().handles().has_room(kind)) break;
    CUfunction function{};
    CUkernel kernel{};
    Handle handle;
    if (load.module && session.driver().cuModuleGetFunction(&function, load.made_module, name.c_str()) == CUDA_SUCCESS)
      handle = session.objects().reveal(HandleKind::function, function, id, owner.value());
    if (!load.module && session.driver().cuLibraryGetKernel(&kernel, load.made_library, name.c_str()) == CUDA_SUCCESS)
      handle = session.objects().reveal(HandleKind::kernel, kernel, id, owner.value());
    if (handle &&
        describe(session, id, handle, found.emplace_back().root<wire::FunctionReply>(), owner) != CUDA_SUCCESS)
      found.pop_back();  // the client will ask
  }
  auto list = out.initKernels(static_cast<unsigned>(found.size()));
  unsigned i = 0;
  for (MessageWriter& one : found) list.setWithCaveats(i++, one.root<wire::FunctionReply>().asReader());
}

// Everything before the driver. Without an image if the host lacks it. `in_context`: the load is made in one.
CUresult prepare(Session& session, wire::LoadImage::Reader in, bool in_context, const std::shared_ptr<Load>& load) {
  if (const CUresult bad = load->read(in, session.host_budget()); bad != CUDA_SUCCESS) return bad;
  const auto image = session.code().images.find(load->hash, in.getBytes());
  if (image.empty()) return CUDA_SUCCESS;
  load->held = session.code().images.hold(load->hash);
  load->prints = in.getWrapped() || may_print(image);
  if (const auto& names = session.code().images.names_found(load->hash); in_context && !load->module && !names.empty())
    load->name = names.front();
  if (!in.getWrapped()) {
    if (!keeps_within(image)) return CUDA_ERROR_INVALID_IMAGE;
    load->image = image.data();
    return CUDA_SUCCESS;
  }
  load->containers = containers_of(image);
  if (load->containers.empty()) return CUDA_ERROR_INVALID_IMAGE;
  load->wrapper.container = load->containers[0];
  if (load->containers.size() > 1) {
    load->containers.push_back(nullptr);
    load->wrapper.version = 2;
    load->wrapper.more = &load->containers[1];
  }
  load->image = &load->wrapper;
  auto charge =
      HostCharge::take(session.host_budget(), sizeof(Load) + load->containers.size() * sizeof(load->containers[0]));
  if (!charge) return CUDA_ERROR_OUT_OF_MEMORY;
  load->kept = std::move(*charge);
  return CUDA_SUCCESS;
}

// What the program will most likely load after this image, as far as the host has it and there is plenty of what it
// takes.
std::vector<std::shared_ptr<Load>> loads_ahead(Session& session, const ContextState& context, const ImageHash& image) {
  // Of images: they are read and hashed while nothing else is done for the session.
  constexpr std::uint64_t bytes_max = 32u << 20;
  constexpr std::uint64_t device_bytes_min = 1u << 30;
  std::vector<std::shared_ptr<Load>> loads;
  const char* const loading = std::getenv("CUDA_MODULE_LOADING");
  if (loading && std::string(loading) == "EAGER") return loads;  // all of their code would lie on the device
  if (!session.host_budget().has_plenty(bytes_max) || session.ledger().share(context.device).left < device_bytes_min)
    return loads;
  std::uint64_t bytes = 0;
  try {
    for (LoadOrder::Request& request : session.code().load_order.next_after(image)) {
      MessageReader reader(request);
      const auto in = reader.root<wire::LoadImage>();
      if (in.getModule() || in.getJit().size() > 0 || in.getBytes() > bytes_max - bytes) break;
      bytes += in.getBytes();
      auto load = std::make_shared<Load>();
      if (prepare(session, in, /*in_context=*/true, load) != CUDA_SUCCESS || !load->image) break;
      load->request = std::move(request);
      loads.push_back(std::move(load));
    }
  } catch (const kj::Exception&) {}  // a file may say anything
  if (loads.empty()) session.code().load_order.all_answered();
  return loads;
}

// The answer to a load; the handle of what it made.
Handle tell(Session& session, const CallId& id, const std::shared_ptr<Load>& settled, Clock::duration time,
            wire::LoadImageReply::Builder out) {
  Load& load = *settled;
  out.setKnown(true);
  load.jit.tell(out);
  if (load.result != CUDA_SUCCESS) return {};
  const auto unload = [&] {
    if (!load.module || session.contexts().find(id.context)) load.unload(session.driver());
  };
  Objects& objects = session.objects();
  const Handle handle = load.module ? objects.reveal_made(HandleKind::module, load.made_module, id, unload)
                                    : objects.reveal_made(HandleKind::library, load.made_library, id, unload);
  out.setHandle(handle.value());
  // The driver may look at the image again, and at the wrapper.
  objects.note_image(handle, load.hash, load.containers.empty() ? load.held : settled);
  if (load.entered) session.objects().note_entered(handle, id.context, load.slow);
  find_again(session, id, handle, load, time, out);
  return handle;
}

void give_up_ahead(Session& session, const std::vector<std::shared_ptr<Load>>& loads) {
  if (loads.empty()) return;
  for (const auto& load : loads) load->unload(session.driver());
  session.code().load_order.all_answered();
}

// Loads that failed, or were not made for another had failed, are the program's to try.
void tell_ahead(Session& session, const CallId& id, const std::vector<std::shared_ptr<Load>>& loads,
                wire::LoadImageReply::Builder out) {
  struct Answer {
    std::span<const std::byte> request;
    MessageWriter reply;
  };
  std::list<Answer> answers;
  const auto end = Clock::now() + ahead_time;
  for (const auto& load : loads) {
    if (load->result != CUDA_SUCCESS) continue;
    if (!session.objects().handles().has_room(HandleKind::library)) {
      load->unload(session.driver());
      continue;
    }
    Answer& answer = answers.emplace_back();
    answer.request = load->request;
    const auto time = std::min<Clock::duration>(own_time, end - Clock::now());
    const Handle library = tell(session, id, load, time, answer.reply.root<wire::LoadImageReply>());
    if (answer.reply.finish().size() > limits::ahead_reply_bytes_max) {
      load->unload(session.driver());
      session.objects().forget(HandleKind::library, library.value());
      answers.pop_back();
    } else {
      session.code().load_order.answered_ahead(library, {load->hash, load->request, load->prints});
    }
  }
  auto list = out.initAhead(static_cast<unsigned>(answers.size()));
  unsigned i = 0;
  for (Answer& answer : answers) {
    list[i].setRequest(data_of(answer.request));
    list[i].setReply(data_of(answer.reply.finish()));
    ++i;
  }
  for (const auto& load : loads) load->request = {};
  session.code().load_order.all_answered();
}

}  // namespace

Outcome sendImage(Session& session, Call& call, wire::SendImage::Reader in) {
  ImageHash hash;
  if (!read_hash(in.getHash(), hash)) return CUDA_ERROR_INVALID_VALUE;
  switch (session.code().images.receive(hash, in.getBytes(), in.getOffset(), call.bulk())) {
    case ImageStore::Received::taken: return CUDA_SUCCESS;
    case ImageStore::Received::no_room: return CUDA_ERROR_OUT_OF_MEMORY;
    case ImageStore::Received::refused: break;
  }
  return CUDA_ERROR_INVALID_IMAGE;
}

Outcome loadImage(Session& session, Call& call, wire::LoadImage::Reader in) {
  auto load = std::make_shared<Load>();
  const bool in_context = session.contexts().find(call.id().context);
  if (const CUresult bad = prepare(session, in, in_context, load); bad != CUDA_SUCCESS) return bad;
  if (!load->image) {
    call.out<wire::LoadImageReply>().setKnown(false);
    return CUDA_SUCCESS;
  }
  if (load->module && call.id().context == 0) return CUDA_ERROR_INVALID_CONTEXT;
  session.objects().handles().require_room(load->module ? HandleKind::module : HandleKind::library);
  if (load->prints) session.prints().note_printing();
  // Loads with options for the compiler are few, and their answers have logs.
  const bool in_order =
      !load->module && load->jit.count() == 0 && call.message().size() <= limits::ahead_request_bytes_max;
  std::vector<std::shared_ptr<Load>> ahead;
  if (in_order) {
    load->request.assign(call.message().begin(), call.message().end());
    session.code().load_order.begins(load->hash);
    if (const ContextState* const context = session.contexts().find(call.id().context))
      ahead = loads_ahead(session, *context, load->hash);
  }
  return session.aside_reply(
      call,
      [load, ahead, &driver = session.driver()] {
        load->make(driver);
        const auto end = Clock::now() + ahead_time;
        for (const auto& one : ahead)
          if (load->result == CUDA_SUCCESS && Clock::now() < end) one->make(driver);
        return load->result;
      },
      [load, ahead, &session, in_order, id = call.id()](CUresult result, MessageWriter& writer) {
        try {
          tell(session, id, load, own_time, writer.root<wire::LoadImageReply>());
        } catch (const Handles::Exhausted&) {
          give_up_ahead(session, ahead);
          throw;
        }
        const std::vector<std::byte> request = std::exchange(load->request, {});
        if (result == CUDA_SUCCESS && in_order) session.code().load_order.loaded(load->hash, request);
        if (!ahead.empty()) tell_ahead(session, id, ahead, writer.root<wire::LoadImageReply>());
        return result;
      },
      load->jit.count() == 0 ? Asides::Repeats::work : Asides::Repeats::nothing);
}

Outcome takeLoaded(Session& session, Call&, wire::TakeLoaded::Reader in) {
  const auto taken = session.code().load_order.take(Handle(in.getLibrary()));
  if (!taken) return CUDA_ERROR_INVALID_HANDLE;
  if (taken->prints) session.prints().note_printing();
  return CUDA_SUCCESS;
}

// The program may use the same memory while the kernel runs. Over a network each side then has a copy.
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
  result = describe(session, call.id(), handle, call.out<wire::FunctionReply>(), owner);
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
    return describe(session, call.id(), handle, call.out<wire::FunctionReply>(),
                    session.objects().reveal(HandleKind::library, library, call));
  }
  CUfunction function{};
  if (!session.objects().handles().find(HandleKind::function, handle)) return CUDA_ERROR_INVALID_HANDLE;
  session.objects().resolve(HandleKind::function, handle.value(), function);
  CUmodule module{};
  if (const CUresult bad = driver.cuFuncGetModule(&module, function); bad != CUDA_SUCCESS) return bad;
  return describe(session, call.id(), handle, call.out<wire::FunctionReply>(),
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

}  // namespace fargpu::server::hand
