// The plugin: connections by UCX (openucx.org), as rdma/interface.h has them.

#include <ucp/api/ucp.h>
#include <ucs/debug/log_def.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "gate.h"
#include "protocol/rdma/interface.h"
#include "rescue.h"

namespace fargpu::rdma {

struct Context {
  ucp_context_h ucp = nullptr;
  std::vector<Line*> lines;          // under the list's mutex
  std::atomic<bool> gave_up{false};  // UCX, on a line that it has
  std::atomic<unsigned> lost{0};     // such lines: what UCX has of them stays
  bool for_gpus = false;             // opened with what knows their memory
  bool tells_failures = true;  // UCX's shared memory does not; a process of this machine that ends is noticed elsewhere
};

struct Memory {
  ucp_mem_h memory = nullptr;
  ucs_memory_type_t type = UCS_MEMORY_TYPE_HOST;
};

namespace {

constexpr unsigned message_id = 1;
constexpr unsigned lost_max = 16;  // lines of a context on which UCX may have given up

// --- what UCX says of its failures ----------------------------------------------------------------------------------

ucs_log_func_rc_t keep_log(const char*, unsigned, const char*, ucs_log_level_t level, const ucs_log_component_config_t*,
                           const char* message, va_list arguments) {
  if (level <= UCS_LOG_LEVEL_ERROR) std::vsnprintf(said, sizeof(said), message, arguments);
  return UCS_LOG_FUNC_RC_STOP;
}

void tell(char* why, const char* what, ucs_status_t status) {
  std::string text = std::string(what) + ": " + ucs_status_string(status);
  if (*said) text += std::string(": ") + said;
  text.resize(std::min(text.size(), why_bytes - 1));
  std::memcpy(why, text.c_str(), text.size() + 1);
}

}  // namespace

/// Heads of messages that have not left.
struct Head {
  Line* line;
  Head* next;
  std::byte bytes[head_bytes_max];
};

struct Line {
  Context* context = nullptr;
  Gate gate;
  Events events{};
  ucp_worker_h worker = nullptr;
  ucp_address_t* address = nullptr;
  std::size_t address_bytes = 0;
  ucp_mem_h ring = nullptr;
  void* ring_begin = nullptr;
  void* key = nullptr;  // to the ring, for the other end
  std::size_t key_bytes = 0;
  ucp_ep_h endpoint = nullptr;
  ucp_rkey_h other_key = nullptr;
  std::uint64_t other_ring = 0;
  int descriptor = -1;
  bool failed = false;
  bool gave_up = false;   // UCX: nothing may be asked of it here
  bool happened = false;  // something was told of
  Head* spare = nullptr;
  std::vector<std::unique_ptr<Head>> heads;

  void fail(const char* what, ucs_status_t status) {
    if (std::exchange(failed, true) || !events.failed) return;
    char why[why_bytes];
    tell(why, what, status);
    events.failed(events.owner, why);
  }

  /// Calls UCX. False if it has given up.
  template <class Use>
  bool ask(Use&& use) {
    if (!gave_up && !threads_have_given_up() && rescued(std::forward<Use>(use))) return true;
    gave_up = true;
    happened = true;
    fail("UCX has given up", UCS_ERR_IO_ERROR);
    return false;
  }
};

namespace {

/// All that there is, for the end of the process.
struct List {
  std::mutex mutex;
  std::vector<Context*> contexts;
  pid_t process = 0;  // that has opened them: a child has copies
  Gate gate;          // of what is done with contexts, and of lines that come and go
};
List& list() {
  static auto* const all = new List;  // used at the end of the process
  return *all;
}

ucs_status_t on_message(void* line_pointer, const void* head, std::size_t head_bytes, void* body,
                        std::size_t body_bytes, const ucp_am_recv_param_t* param) {
  auto* const line = static_cast<Line*>(line_pointer);
  line->happened = true;
  // One that is too long to come at once is none of ours: not taken, it is dropped.
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0 && line->events.message)
    line->events.message(line->events.owner, head, head_bytes, body, body_bytes);
  return UCS_OK;
}

void on_failure(void* line, ucp_ep_h, ucs_status_t status) {
  static_cast<Line*>(line)->fail("the connection is lost", status);
}

void on_sent(void* request, ucs_status_t status, void* head_pointer) {
  auto* const head = static_cast<Head*>(head_pointer);
  head->next = std::exchange(head->line->spare, head);
  if (status != UCS_OK) head->line->fail("a message is lost", status);
  ucp_request_free(request);
}

void on_put(void* request, ucs_status_t status, void* line) {
  if (status != UCS_OK) static_cast<Line*>(line)->fail("a transfer is lost", status);
  ucp_request_free(request);
}

void on_flushed(void* request, ucs_status_t status, void* line_pointer) {
  auto* const line = static_cast<Line*>(line_pointer);
  line->happened = true;
  if (status != UCS_OK) line->fail("a transfer is lost", status);
  else if (line->events.flushed) line->events.flushed(line->events.owner);
  ucp_request_free(request);
}

// --- contexts -------------------------------------------------------------------------------------------------------

const char* library() {
  static const std::string text = std::string("UCX ") + ucp_get_version_string();
  return text.c_str();
}

bool knows_memory() {
  unsigned major = 0, minor = 0, release = 0;
  ucp_get_version(&major, &minor, &release);
  // Before, UCX registers what it puts from anew each time, whatever it is told.
  return major > 1 || (major == 1 && minor >= 16);
}

// Memory of a GPU that UCX is told of comes to a card by dma-buf since 1.14. Before 1.16 UCX would copy it, as all that
// is put, through memory of its own.
#if UCP_API_VERSION >= UCP_VERSION(1, 14)
constexpr bool built_for_gpus = true;
#else
constexpr bool built_for_gpus = false;
#endif
bool can_know_gpus(const Context* context, char* why) {
  if (!built_for_gpus)
    std::snprintf(why, why_bytes, "the plugin was built with %s, and 1.14 or newer is needed", library());
  else if (!knows_memory()) std::snprintf(why, why_bytes, "this is %s, and 1.16 or newer is needed", library());
  else if (!context->for_gpus) std::snprintf(why, why_bytes, "the devices were not opened for memory of a GPU");
  else return true;
  return false;
}

bool is_over(const Inside& inside, char* why) {
  if (inside) return false;
  std::snprintf(why, why_bytes, "the process ends");
  return true;
}

bool modify(ucp_config_t* config, const char* name, const char* value, char* why) {
  const ucs_status_t status = ucp_config_modify(config, name, value);
  if (status != UCS_OK) tell(why, name, status);
  return status == UCS_OK;
}

Context* open(const char* devices, const char* transports, char* why) {
  *said = 0;
  const Inside inside(list().gate);
  if (is_over(inside, why)) return nullptr;
  auto context = std::unique_ptr<Context>(new (std::nothrow) Context);
  ucp_config_t* config = nullptr;
  // A prefix of our own, though none of UCX's variables is seen, whatever the prefix (interposed.cpp): another user of
  // UCX in this process may have loaded its libraries first.
  ucs_status_t status = ucp_config_read("FARGPU_PLUGIN", nullptr, &config);
  if (!context || status != UCS_OK) {
    tell(why, "UCX's settings", context ? status : UCS_ERR_NO_MEMORY);
    return nullptr;
  }
  // Without its cache of registrations UCX would register what it puts from anew each time: it copies instead.
  const bool set = modify(config, "NET_DEVICES", devices, why) && modify(config, "TLS", transports, why) &&
                   (knows_memory() || modify(config, "ZCOPY_THRESH", "inf", why));
  if (set) {
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED |
                        UCP_PARAM_FIELD_ESTIMATED_NUM_EPS | UCP_PARAM_FIELD_NAME;
    params.features = UCP_FEATURE_AM | UCP_FEATURE_RMA | UCP_FEATURE_WAKEUP;
    params.mt_workers_shared = 1;
    params.estimated_num_eps = 1;
    params.name = "fargpu";
    if (!rescued([&] { status = ucp_init(&params, config, &context->ucp); })) status = UCS_ERR_IO_ERROR;
    if (status != UCS_OK) tell(why, "UCX does not start", status);
  }
  ucp_config_release(config);
  if (!set || status != UCS_OK) return nullptr;
  context->for_gpus = std::strstr(transports, gpu_transport) != nullptr;
  context->tells_failures = std::strcmp(transports, "sysv") != 0;
  const std::lock_guard lock(list().mutex);
  list().contexts.push_back(context.get());
  list().process = ::getpid();
  return context.release();
}

void close(Context* context) {
  const Inside inside(list().gate);
  if (!inside) return;
  {
    const std::lock_guard lock(list().mutex);
    std::erase(list().contexts, context);
  }
  if (context->gave_up || !rescued([&] { ucp_cleanup(context->ucp); })) return;
  delete context;
}

// --- lines ----------------------------------------------------------------------------------------------------------

void wait_for(Line* line, ucs_status_ptr_t request) {
  if (request == nullptr || UCS_PTR_IS_ERR(request)) return;
  // Bounded: what waits is on a line that nobody uses any more.
  for (unsigned i = 0; ucp_request_check_status(request) == UCS_INPROGRESS && i < 100'000; ++i)
    ucp_worker_progress(line->worker);
  ucp_request_free(request);
}

void take_down_by_ucx(Line* line) {
  if (line->other_key) ucp_rkey_destroy(line->other_key);
  if (line->endpoint) {
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_EP_CLOSE_FLAG_FORCE;
    wait_for(line, ucp_ep_close_nbx(line->endpoint, &param));
  }
  if (line->key) ucp_rkey_buffer_release(line->key);
  if (line->ring) ucp_mem_unmap(line->context->ucp, line->ring);
  if (line->address) ucp_worker_release_address(line->worker, line->address);
  if (line->worker) ucp_worker_destroy(line->worker);
}

/// False if UCX gives up: what it has of the line stays, and its context.
bool take_down(Line* line) {
  line->events = {};
  if (line->ask([&] { take_down_by_ucx(line); })) return true;
  line->context->gave_up = true;
  ++line->context->lost;
  return false;
}

void close_line(Line* line) {
  const Inside inside(list().gate);
  if (!inside) return;
  {
    const std::lock_guard lock(list().mutex);
    std::erase(line->context->lines, line);
  }
  if (take_down(line)) delete line;
}

ucs_status_t prepare(Line* line, std::size_t ring_bytes, void* ring) {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  ucs_status_t status = ucp_worker_create(line->context->ucp, &params, &line->worker);
  if (status != UCS_OK) return status;
  status = ucp_worker_get_efd(line->worker, &line->descriptor);
  if (status != UCS_OK) return status;
  status = ucp_worker_get_address(line->worker, &line->address, &line->address_bytes);
  if (status != UCS_OK) return status;

  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                       UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = message_id;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG;
  handler.cb = on_message;
  handler.arg = line;
  status = ucp_worker_set_am_recv_handler(line->worker, &handler);
  if (status != UCS_OK) return status;

  ucp_mem_map_params_t map{};
  map.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS | UCP_MEM_MAP_PARAM_FIELD_PROT;
  map.length = ring_bytes;
  map.flags = UCP_MEM_MAP_ALLOCATE;
  if (ring) {
    // At once, so that what fails fails here and not when the other end puts.
    map.field_mask |= UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE;
    map.flags = 0;
    map.address = ring;
    map.memory_type = UCS_MEMORY_TYPE_CUDA;
  }
  map.prot = UCP_MEM_MAP_PROT_LOCAL_READ | UCP_MEM_MAP_PROT_LOCAL_WRITE | UCP_MEM_MAP_PROT_REMOTE_WRITE;
  status = ucp_mem_map(line->context->ucp, &map, &line->ring);
  if (status != UCS_OK) return status;
  ucp_mem_attr_t attributes{};
  attributes.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS;
  status = ucp_mem_query(line->ring, &attributes);
  if (status != UCS_OK) return status;
  line->ring_begin = attributes.address;
  return ucp_rkey_pack(line->context->ucp, line->ring, &line->key, &line->key_bytes);
}

Line* open_line(Context* context, std::size_t ring_bytes, void* ring, const Events* events, char* why) {
  *said = 0;
  const Inside inside(list().gate);
  if (ring && !can_know_gpus(context, why)) return nullptr;
  if (is_over(inside, why)) return nullptr;
  if (context->lost >= lost_max) {
    std::snprintf(why, why_bytes, "UCX has given up on %u connections of this process", lost_max);
    return nullptr;
  }
  Line* const line = new (std::nothrow) Line;
  if (!line) {
    tell(why, "no memory", UCS_ERR_NO_MEMORY);
    return nullptr;
  }
  line->context = context;
  ucs_status_t status = UCS_ERR_IO_ERROR;
  line->ask([&] { status = prepare(line, ring_bytes, ring); });
  if (status != UCS_OK) {
    tell(why, "UCX has no end of a connection for us", status);
    if (take_down(line)) delete line;
    return nullptr;
  }
  line->events = *events;
  const std::lock_guard lock(list().mutex);
  context->lines.push_back(line);
  return line;
}

void end(Line* line, End* end) {
  *end = {line->address, line->address_bytes, line->key, line->key_bytes,
          reinterpret_cast<std::uint64_t>(line->ring_begin)};
}

void* ring(Line* line) { return line->ring_begin; }

bool read(Line* line, std::uint64_t offset, void* to, std::size_t bytes) {
  const Inside inside(line->gate);
  if (inside) std::memcpy(to, static_cast<const std::byte*>(line->ring_begin) + offset, bytes);
  return static_cast<bool>(inside);
}

bool connect(Line* line, const End* other, char* why) {
  *said = 0;
  const Inside inside(line->gate);
  if (is_over(inside, why)) return false;
  ucp_ep_params_t params{};
  params.field_mask =
      UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = static_cast<const ucp_address_t*>(other->address);
  params.err_mode = line->context->tells_failures ? UCP_ERR_HANDLING_MODE_PEER : UCP_ERR_HANDLING_MODE_NONE;
  params.err_handler = {on_failure, line};
  ucs_status_t status = UCS_ERR_IO_ERROR;
  line->ask([&] {
    status = ucp_ep_create(line->worker, &params, &line->endpoint);
    if (status == UCS_OK) status = ucp_ep_rkey_unpack(line->endpoint, other->key, &line->other_key);
  });
  if (status != UCS_OK) tell(why, "the other end is not to be reached", status);
  line->other_ring = other->ring;
  return status == UCS_OK;
}

bool send(Line* line, const void* head, std::size_t head_bytes, const void* body, std::size_t body_bytes) {
  const Inside inside(line->gate);
  if (!inside || line->failed || head_bytes > head_bytes_max || body_bytes > message_bytes_max) return false;
  if (!line->spare) {
    auto more = std::unique_ptr<Head>(new (std::nothrow) Head{line, nullptr, {}});
    if (!more) return false;
    line->spare = more.get();
    line->heads.push_back(std::move(more));
  }
  Head* const kept = std::exchange(line->spare, line->spare->next);
  std::memcpy(kept->bytes, head, head_bytes);
  ucp_request_param_t param{};
  // Told what memory it is, UCX does not ask the GPU's driver, where it knows one.
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                       UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  param.flags = UCP_AM_SEND_FLAG_EAGER;
  param.cb.send = on_sent;
  param.user_data = kept;
  ucs_status_ptr_t request = nullptr;
  if (!line->ask([&] {
        request = ucp_am_send_nbx(line->endpoint, message_id, kept->bytes, head_bytes, body, body_bytes, &param);
      }))
    return false;
  if (request == nullptr || UCS_PTR_IS_ERR(request)) kept->next = std::exchange(line->spare, kept);
  if (UCS_PTR_IS_ERR(request)) line->fail("a message is lost", UCS_PTR_STATUS(request));
  return !line->failed;
}

bool put(Line* line, std::uint64_t offset, const void* bytes, std::size_t size, Memory* memory) {
  const Inside inside(line->gate);
  if (!inside || line->failed) return false;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.cb.send = on_put;
  param.user_data = line;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  if (memory) {
    param.memory_type = memory->type;
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
    param.memh = memory->memory;
  }
  ucs_status_ptr_t request = nullptr;
  line->ask(
      [&] { request = ucp_put_nbx(line->endpoint, bytes, size, line->other_ring + offset, line->other_key, &param); });
  if (UCS_PTR_IS_ERR(request)) line->fail("a transfer is lost", UCS_PTR_STATUS(request));
  return !line->failed;
}

bool flush(Line* line) {
  const Inside inside(line->gate);
  if (!inside || line->failed) return false;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = on_flushed;
  param.user_data = line;
  ucs_status_ptr_t request = nullptr;
  if (!line->ask([&] { request = ucp_ep_flush_nbx(line->endpoint, &param); })) return false;
  if (request == nullptr) line->events.flushed(line->events.owner);
  else if (UCS_PTR_IS_ERR(request)) line->fail("a transfer is lost", UCS_PTR_STATUS(request));
  return !line->failed;
}

bool progress(Line* line) {
  const Inside inside(line->gate);
  if (!inside) return false;
  line->happened = false;
  bool worked = false;
  line->ask([&] {
    // What was told of is not kept waiting for more.
    for (unsigned rounds = 0; rounds < 64 && !line->happened && ucp_worker_progress(line->worker) != 0; ++rounds)
      worked = true;
  });
  return worked || line->happened;
}

int descriptor(Line* line) { return line->descriptor; }
bool arm(Line* line) {
  const Inside inside(line->gate);
  bool armed = true;
  if (inside) line->ask([&] { armed = ucp_worker_arm(line->worker) == UCS_OK; });
  return armed;
}

// --- known memory ---------------------------------------------------------------------------------------------------

Memory* know(Context* context, void* address, std::size_t bytes, MemoryKind kind, char* why) {
  *said = 0;
  const Inside inside(list().gate);
  if (is_over(inside, why)) return nullptr;
  if (kind == MemoryKind::device && !can_know_gpus(context, why)) return nullptr;
  auto memory = std::unique_ptr<Memory>(new (std::nothrow) Memory);
  ucs_status_t status = UCS_ERR_NO_MEMORY;
  if (memory) {
    ucp_mem_map_params_t map{};
    map.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_PROT |
                     UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE;
    map.address = address;
    map.length = bytes;
    map.prot = UCP_MEM_MAP_PROT_LOCAL_READ;
    map.memory_type = memory->type = kind == MemoryKind::device ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST;
    if (!rescued([&] { status = ucp_mem_map(context->ucp, &map, &memory->memory); })) status = UCS_ERR_IO_ERROR;
  }
  if (status == UCS_OK) return memory.release();
  tell(why, "memory that the device is to know", status);
  return nullptr;
}

void forget(Context* context, Memory* memory) {
  const Inside inside(list().gate);
  if (!inside) return;
  if (!context->gave_up) rescued([&] { ucp_mem_unmap(context->ucp, memory->memory); });
  delete memory;
}

// --- for people -----------------------------------------------------------------------------------------------------

// UCX tells it in lines such as "lane[0]:  5:tcp/lo.0 md[4] -> md[4]/tcp am am_bw".
void describe(Line* line, char* text, std::size_t bytes) {
  *text = 0;
  const Inside inside(line->gate);
  if (!inside) return;
  char* printed = nullptr;
  std::size_t size = 0;
  std::string found;
  if (FILE* const stream = ::open_memstream(&printed, &size)) {
    line->ask([&] {
      if (line->endpoint) ucp_ep_print_info(line->endpoint, stream);
    });
    std::fclose(stream);
    for (const char* at = std::strstr(printed, "lane["); at; at = std::strstr(at + 1, "lane[")) {
      const char* begin = std::strchr(at, ':');
      begin = begin ? std::strchr(begin + 1, ':') : nullptr;
      if (!begin) break;
      const std::string name(begin + 1, std::strcspn(begin + 1, " \n"));
      if ((", " + found + ",").find(", " + name + ",") != std::string::npos) continue;
      if (!found.empty()) found += ", ";
      found += name;
    }
    std::free(printed);
  }
  std::snprintf(text, bytes, "%s", found.c_str());
}

// --- the end of the process -----------------------------------------------------------------------------------------

// Runs before UCX's libraries end, since this one needs them. They are to find nothing of ours: they free what UCX's
// own thread and ours would use. A thread that stays inside, such as one of which a callback ends the process, is left
// alone after a moment, with what it uses.
[[gnu::destructor]] void end_of_process() {
  List& all = list();
  if (all.process != ::getpid()) return;  // what a child would take down is its parent's
  Gate::close_all();
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
  if (!all.gate.is_empty_by(deadline)) return;
  for (Context* const context : all.contexts) {
    bool free = !context->gave_up;
    for (Line* const line : context->lines) free &= line->gate.is_empty_by(deadline) && take_down(line);
    if (free) rescued([&] { ucp_cleanup(context->ucp); });
  }
}

}  // namespace

constexpr Interface interface {
  .version = interface_version, .release = FARGPU_VERSION, .library = library, .open = open, .close = close,
  .open_line = open_line, .close_line = close_line, .end = end, .ring = ring, .read = read, .connect = connect,
  .send = send, .put = put, .flush = flush, .progress = progress, .descriptor = descriptor, .arm = arm,
  .knows_memory = knows_memory, .know = know, .forget = forget, .describe = describe,
};

}  // namespace fargpu::rdma

extern "C" __attribute__((visibility("default"))) const fargpu::rdma::Interface* fargpu_rdma_interface() {
  static const bool hears = (ucs_log_push_handler(fargpu::rdma::keep_log), true);
  (void)hears;
  return &fargpu::rdma::interface;
}
