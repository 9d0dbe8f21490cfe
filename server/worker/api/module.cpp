// Images, and the modules and libraries that are loaded from them.

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <list>
#include <utility>

#include "function.h"
#include "protocol/data.h"
#include "protocol/fatbin.h"
#include "protocol/image.h"
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
        describe_function(session, id, handle, found.emplace_back().root<wire::FunctionReply>(), owner) != CUDA_SUCCESS)
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

}  // namespace fargpu::server::hand
