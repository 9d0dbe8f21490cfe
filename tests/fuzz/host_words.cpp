// What a GPU host says to its client. A host may be in an attacker's hands: whatever it says, each
// call of the program returns, nothing is written but what calls were given to write to, nothing is
// sent that the program did not offer, and no more memory is asked for than there can be a reason
// for. When the host has broken the protocol, or left, each call says that the session is lost. An
// input says which calls the program makes (program_calls), and what the host answers and says by
// itself (pretended_host); or what a host says to a client that asks it for a session. All is on one thread:
// what the client would do on threads of its own is done between the calls, so that an input does
// the same each time.

#include <fcntl.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <new>
#include <optional>

#include "client/session/dial.h"
#include "client/memory/fault_handler.h"
#include "client/base/log.h"
#include "client/memory/paged_memory.h"
#include "client/session/process.h"
#include "client/call/remote_call.h"
#include "client/session/session.h"
#include "client/base/threads.h"
#include "client/connect/windows.h"
#include "control.capnp.h"
#include "fuzz.h"
#include "pretended_host.h"
#include "program_calls.h"
#include "protocol/errors.h"
#include "protocol/message.h"
#include "server/worker_link.h"
#include "protocol/sealed_memory.h"
#include "tests/wire/fixture.h"
#include "tests/wire/wrap.h"

namespace fargpu::fuzz {
namespace {

using client::Life;

bool pretending = false;  // an input is under way; else seeds are recorded, before a right worker

// Sessions are lost by the thousand. Before anything of the client looks where its log is to go.
__attribute__((constructor(101))) void say_nothing() { ::setenv("FARGPU_LOG_FILE", "/dev/null", 0); }

// --- the client's threads -------------------------------------------------------------------------------------------

struct JobsEnd {};
std::function<void()> service, callbacks, answers;

void start_thread(const char* name, std::function<void()> body) {
  const std::string_view which = name;
  if (which == "fargpu-service") service = std::move(body);
  else if (which == "fargpu-callback") callbacks = std::move(body);
  else if (which == "fargpu-answers") answers = std::move(body);
  // Of the others nothing is expected here: they look after silence, and memory that changes while
  // nobody calls.
}

/// What waits for such a thread, which then ends.
void run_jobs(const std::function<void()>& body, client::JobThread& thread) {
  if (!body) return;
  thread.run([] { throw JobsEnd(); });
  try {
    body();
  } catch (const JobsEnd&) {}
  client::Thread::current().in_callback = false;
}
void run_jobs() {
  client::Session& session = *client::process().session();
  run_jobs(callbacks, session.callbacks.thread());
  run_jobs(answers, session.answers);
}

// --- memory ---------------------------------------------------------------------------------------------------------

constexpr std::size_t allocation_bytes_max = 32u << 20;  // in one piece: a few times the longest frame
constexpr std::size_t memory_bytes_max = 256u << 20;     // in all, beyond what there was before the input

std::atomic<std::size_t> allocated{0};
std::size_t allocated_before = 0;

// Called where memory is taken and given back.
void taken(const volatile void* at, std::size_t bytes) {
  if (!pretending) {
    allocated += bytes;
    return;
  }
  expect(bytes <= allocation_bytes_max, "memory of a size that a host made up");
  expect(!at || (allocated += bytes) < allocated_before + memory_bytes_max,
         "more memory than any host may make a client take");
}

void given(const volatile void* at) {
  if (at) allocated -= ::malloc_usable_size(const_cast<void*>(at));
}

// --- memory files of the client, which lives as long as its process and closes none ---------------------------------

std::vector<int> files;
std::vector<std::pair<void*, std::size_t>> mappings;

struct NoPages final : client::PagedMemory {
  explicit NoPages(client::Session& session)
      : PagedMemory({session.calls, session.contexts, session.whole_system_work}, "none", {Window{}, Window{}},
                    Use::in_turns) {}
  void send_range(client::Thread&, Block&, std::uint64_t, std::uint64_t) override {}
  void fetch_range(client::Thread&, Block&, std::uint64_t, std::uint64_t) override {}
  bool send_changes(client::Thread&, Block&, std::uint64_t, std::span<const std::byte>) override { return false; }
  void ask_behind_changes(client::Thread&) override {}
};

void close_files() {
  for (const auto& [at, bytes] : std::exchange(mappings, {})) ::munmap(at, bytes);
  for (const int file : std::exchange(files, {})) ::close(file);
}

// --- the session ----------------------------------------------------------------------------------------------------

std::vector<std::byte>& right_answer() {
  static std::vector<std::byte> frame;
  return frame;
}

client::Config make_config() {
  client::Config config = test::Remote::default_config();
  config.one_process = false;
  return config;
}

/// Everything is as if there had been no session.
void end_session(client::Session* session) {
  client::Thread& thread = client::Thread::current();
  thread.contexts().clear();
  thread.default_streams.clear();
  thread.capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  client::process().give_up();
  (void)thread.take_late_error();
  static NoPages& none = *new NoPages(*session);
  client::watch_faults(none, 0);
  client::watch_faults(none, 1);
  client::release_window(session->terms.device_window);
  client::release_window(session->terms.host_window);
  if (session->terms.driver_band.bytes > 0) client::release_window(session->terms.driver_band);
  delete session;
  service = callbacks = answers = nullptr;
  close_files();
}

void expect_lost() {
  int count = 0;
  CUdeviceptr memory = 0;
  expect(cuInit(0) == CUDA_ERROR_DEVICE_UNAVAILABLE && cuDeviceGetCount(&count) == CUDA_ERROR_DEVICE_UNAVAILABLE &&
             cuMemAlloc_v2(&memory, 1) == CUDA_ERROR_DEVICE_UNAVAILABLE &&
             cuCtxSynchronize() == CUDA_ERROR_DEVICE_UNAVAILABLE,
         "a call that does not say that the session is lost");
}

constexpr std::size_t calls_max = 24;

/// The program's calls at a session, which has its host.
void run_program(client::Session* session, std::span<const std::uint8_t> calls) {
  static Guarded& memory = *new Guarded;
  // The list of a process's sessions grows with each input, not by a host's word.
  const bool counted = std::exchange(pretending, false);
  client::process().adopt(session);
  pretending = counted;
  {
    Program program(memory);
    begin_calls(program);
    for (const std::uint8_t number : calls) {
      make_calls(program, number);
      run_jobs();
    }
  }
  // What the host still has to say, until it leaves.
  if (client::life() == Life::ready) service();
  run_jobs();
  expect_lost();
  end_session(session);
  memory.all_over();
}

// --- a host that is asked for a session -----------------------------------------------------------------------------

struct Line {
  std::vector<std::uint8_t> bytes;
  std::vector<std::uint8_t> descriptors;
};
std::vector<Line> lines;  // of the connections that the client has yet to make
std::size_t next_line = 0;

enum Control : std::uint8_t { connects = 1, passes = 2 };  // in `opcode` of a word

/// The lines that an input's words make: each a control message, or bytes.
std::vector<Line> lines_of(Bytes input) {
  std::vector<Line> made(1);
  std::uint32_t sequence = 0;
  for (const Saying& saying : sayings_of(input)) {
    if (saying.word.opcode & connects && made.size() < 8) {
      made.emplace_back();
      sequence = 0;
    }
    if (saying.word.opcode & passes && made.back().descriptors.size() < 6)
      made.back().descriptors.push_back(static_cast<std::uint8_t>(saying.word.detail));
    FrameHeader header;
    header.sequence = ++sequence;
    header.message_bytes = static_cast<std::uint32_t>(saying.message.size());
    if ((saying.word.spoilt & 0xf0) == spoils)
      std::memcpy(&header.message_bytes, &saying.word.detail, sizeof(saying.word.detail));
    auto& bytes = made.back().bytes;
    if (saying.word.kind != babbles) append_value(bytes, header);
    bytes.insert(bytes.end(), saying.message.begin(), saying.message.end());
  }
  return made;
}

int descriptor_of(std::uint8_t kind) {
  switch (kind % 4) {
    case 0: return make_ring_memory(4096);
    case 1: return make_sealed_memory("fargpu-short", 4096);
    case 2: {
      const int file = ::memfd_create("fargpu-open", MFD_CLOEXEC);
      expect(file >= 0 && ::ftruncate(file, 4096 + 2 * 4096) == 0, "no memory file");
      return file;
    }
    default: return ::dup(0);
  }
}

/// The next line's end, with all that it says already there.
int take_line() {
  int ends[2];
  expect(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "no sockets");
  const int room = 1 << 20;
  ::setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
  if (next_line < lines.size()) {
    const Line& line = lines[next_line++];
    [[maybe_unused]] const ssize_t said =
        ::send(ends[0], line.bytes.data(), line.bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    for (const std::uint8_t kind : line.descriptors) {
      const int passed = descriptor_of(kind);
      const std::byte byte{0};
      (void)server::send_packet(ends[0], {&byte, 1}, passed);
      ::close(passed);
    }
  }
  // A later write to it succeeds: the host reads nothing, and has left.
  ::shutdown(ends[0], SHUT_WR);
  ::close(ends[0]);
  return ends[1];
}

void ask_for_session(Bytes input) {
  lines = lines_of(input);
  next_line = 0;
  client::Config config = make_config();
  config.pool = "unix:@host";
  config.hosts.resize(1);
  config.hosts[0].socket = "@host";
  try {
    run_program(client::dial(config).release(), {});
  } catch (const client::DialError& error) {
    expect(error.result != CUDA_SUCCESS && *error.what() != '\0', "an error that says nothing");
  }
  close_files();
}

// --- inputs ---------------------------------------------------------------------------------------------------------

enum Way : std::uint8_t { calls, attach, dial, ways };

void attach_and_run(Bytes input, bool answers_attach) {
  const auto numbers = input.take(input.take<std::uint8_t>() % (calls_max + 1));
  std::vector<Saying> sayings = sayings_of(input);
  std::vector<std::byte> first = right_answer();
  if (answers_attach) {
    first.clear();
    FrameHeader header;
    header.sequence = 1;
    std::span<const std::uint8_t> message;
    if (!sayings.empty()) {
      message = sayings.front().message;
      header.bulk_bytes = sayings.front().word.bulk_bytes;
      sayings.erase(sayings.begin());
    }
    header.message_bytes = static_cast<std::uint32_t>(message.size());
    const auto add = [&](std::span<const std::byte> bytes) { first.insert(first.end(), bytes.begin(), bytes.end()); };
    add(std::as_bytes(std::span(&header, 1)));
    add(std::as_bytes(message));
  }
  std::unique_ptr<client::Session> session;
  try {
    session = client::attach(std::make_unique<PretendedHost>(std::move(first), std::move(sayings)), {}, make_config(),
                             "a host that says anything");
  } catch (const std::exception&) {}
  if (session) run_program(session.release(), numbers);
}

/// Keeps what the client's end of a session of the fixture receives.
struct Listening final : test::WrappedChannel {
  Listening(std::unique_ptr<Channel> channel, std::vector<std::byte>& heard)
      : WrappedChannel(std::move(channel)), heard_(heard) {}
  std::size_t receive_some(std::span<std::byte> buffer) override {
    const std::size_t bytes = WrappedChannel::receive_some(buffer);
    heard_.insert(heard_.end(), buffer.begin(), buffer.begin() + static_cast<std::ptrdiff_t>(bytes));
    return bytes;
  }
  std::vector<std::byte>& heard_;
};

/// What a right host says to a program that makes these calls.
std::vector<std::byte> heard_of(std::span<const std::uint8_t> numbers) {
  // The session is never deleted, and neither is its channel.
  std::vector<std::byte>& heard = *new std::vector<std::byte>;
  test::wrap_channel = [&](std::unique_ptr<Channel> channel) {
    return std::make_unique<Listening>(std::move(channel), heard);
  };
  {
    test::Remote remote;
    static Guarded& memory = *new Guarded;
    Program program(memory);
    begin_calls(program);
    for (const std::uint8_t number : numbers) make_calls(program, number);
    cuCtxSynchronize();
    memory.all_over();
  }
  test::wrap_channel = nullptr;
  return heard;
}

}  // namespace

std::vector<Input> seeds() {
  std::vector<Input> all;
  const auto record = [&](std::initializer_list<const char*> names) {
    const auto numbers = calls_named(names);
    expect(numbers.size() <= calls_max, "a seed of too many calls");
    const std::vector<std::byte> heard = heard_of(numbers);
    FrameHeader header;
    std::memcpy(&header, heard.data(), sizeof(header));
    const std::size_t first = sizeof(header) + header.message_bytes;
    if (right_answer().empty())
      right_answer().assign(heard.begin(), heard.begin() + static_cast<std::ptrdiff_t>(first));
    Input input{static_cast<std::uint8_t>(Way::calls), static_cast<std::uint8_t>(numbers.size())};
    input.insert(input.end(), numbers.begin(), numbers.end());
    const Input words = input_of(std::span(heard).subspan(first));
    input.insert(input.end(), words.begin(), words.end());
    all.push_back(std::move(input));
  };
  record({});
  record({"devices", "device memory info", "error texts"});
  record({"allocate", "copy in", "copy out", "fill", "free"});
  record({"allocate", "allocate large", "copy on the device", "copy out at once", "allocate rows", "free"});
  record({"allocate", "streams", "copy rows", "copy a box", "copies in a batch", "wait for a stream"});
  record({"allocate many", "allocate many", "allocate large", "copy out"});
  record({"streams", "events", "query", "stream attributes", "end events", "end streams"});
  record({"streams", "host functions", "wait for a stream"});
  record({"allocate", "streams", "pinned memory", "values in memory", "values in pinned memory", "wait for all"});
  record({"load a module", "find a function", "facts of a function", "occupancy", "unload"});
  record({"streams", "load a module", "find a function", "launch", "launch otherwise", "wait for all"});
  record({"streams", "load a module", "find a function", "launch many", "wait for all"});
  record({"load a module", "find variables", "unload"});
  record({"streams", "library", "facts of a kernel", "wait for all", "unload"});
  record({"link"});
  record({"allocate", "streams", "pinned memory", "copies of pinned memory", "wait for all", "free pinned memory"});
  record({"streams", "load a module", "find a function", "pinned memory", "pinned memory that kernels use",
          "wait for all", "free pinned memory"});
  record({"allocate", "streams", "register memory", "wait for all", "unregister memory"});
  record({"allocate", "streams", "load a module", "find a function", "register memory",
          "registered memory that kernels use", "unregister memory"});
  record({"streams", "managed memory", "use managed memory", "free managed memory"});
  record({"streams", "pools", "memory of streams", "wait for all"});
  record({"virtual memory", "share an allocation", "end virtual memory"});
  record({"allocate", "events", "share memory"});
  record({"allocate", "arrays", "textures"});
  record({"allocate", "streams", "load a module", "find a function", "a graph", "facts of a graph", "facts of nodes",
          "end graphs"});
  record({"allocate", "streams", "load a module", "find a function", "a graph", "run a graph", "change a graph",
          "wait for all", "end graphs"});
  record(
      {"allocate", "streams", "events", "a graph", "nodes of every kind", "instantiate with parameters", "end graphs"});
  record({"a graph", "user objects", "end graphs"});
  record({"allocate", "streams", "load a module", "find a function", "pinned memory", "capture", "end graphs"});
  record({"contexts", "limits", "end a context", "reset"});
  record({"green contexts"});
  record({"allocate", "pinned memory", "pointers", "decompress", "profiler"});

  // A right worker would have its copy of such memory elsewhere than in this process.
  record({"streams", "load a module", "find a function", "wait for all"});
  Input& paged = all.back();
  for (const std::uint8_t number : calls_named({"large pinned memory", "wait for all", "free pinned memory"}))
    paged.insert(paged.begin() + 2 + paged[1]++, number);
  Word data, fetched;
  data.kind = static_cast<std::uint8_t>(FrameKind::data);
  data.bulk_bytes = client::PagedMemory::granule_bytes;
  fetched.kind = static_cast<std::uint8_t>(FrameKind::reply);
  fetched.opcode = static_cast<std::uint16_t>(Opcode::readHostBlock);
  append_value(paged, data);
  append_value(paged, fetched);

  // The answer to attach, and those to a request for a session.
  const auto word = [](Input& input, std::span<const std::byte> message, std::uint16_t control) {
    Word w;
    w.kind = static_cast<std::uint8_t>(FrameKind::control);
    w.opcode = control;
    w.message_words = static_cast<std::uint16_t>(message.size() / 8);
    append_value(input, w);
    append(input, message);
  };
  const std::span<const std::byte> answer = std::span<const std::byte>(right_answer()).subspan(sizeof(FrameHeader));
  Input attached{static_cast<std::uint8_t>(Way::attach), 2};
  for (const std::uint8_t number : calls_named({"devices", "allocate"})) attached.push_back(number);
  word(attached, answer, 0);
  all.push_back(attached);
  for (const bool near : {false, true}) {
    Input asked{static_cast<std::uint8_t>(Way::dial)};
    const auto say = [&](std::uint16_t control, const std::function<void(wire::Control::Builder)>& fill) {
      MessageWriter writer;
      fill(writer.root<wire::Control>());
      word(asked, writer.finish(), control);
    };
    static constexpr kj::byte numbers[32] = {1, 2, 3};
    const auto hello = [&](wire::Control::Builder control) {
      auto h = control.initHelloAnswer();
      h.setProtocolVersion(wire::PROTOCOL_VERSION);
      h.setVersion("1");
      if (!near) return;
      h.setLocalSocket("fargpud-1");
      h.setLocalKey(capnp::Data::Reader(numbers, 16));
      h.setLocalProof(capnp::Data::Reader(numbers, 16));
    };
    say(0, hello);
    say(0, [&](wire::Control::Builder control) {
      control.initLeaseAnswer().setTicket(capnp::Data::Reader(numbers, sizeof(numbers)));
    });
    if (near) {
      MessageReader reader(answer);
      capnp::MallocMessageBuilder copy;
      copy.setRoot(reader.root<wire::Control>());
      copy.getRoot<wire::Control>().getAttachAnswer().setRingBytes(4096);
      MessageWriter writer;
      capnp::MallocMessageBuilder flat(static_cast<unsigned>(copy.sizeInWords()) + 1,
                                       capnp::AllocationStrategy::FIXED_SIZE);
      flat.setRoot(copy.getRoot<wire::Control>().asReader());
      const auto segment = flat.getSegmentsForOutput()[0].asBytes();
      word(asked, {reinterpret_cast<const std::byte*>(segment.begin()), segment.size()}, connects | passes);
    } else {
      word(asked, answer, connects);
    }
    all.push_back(asked);
  }
  // Everything at once, and nothing that is answered.
  all.push_back({static_cast<std::uint8_t>(Way::calls), 3, 3, 6, 7});
  return all;
}

}  // namespace fargpu::fuzz

// --- in the client's and the C library's places ---------------------------------------------------------------------

#if defined(__SANITIZE_ADDRESS__) || defined(__clang__)
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*taken)(const volatile void*, std::size_t),
                                                         void (*given)(const volatile void*));
namespace {
void watch_memory() { __sanitizer_install_malloc_and_free_hooks(fargpu::fuzz::taken, fargpu::fuzz::given); }
}  // namespace
#else
namespace {
void watch_memory() {}
}  // namespace
// Not inlined: GCC would see `free` beside `new`.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  fargpu::fuzz::expect(!fargpu::fuzz::pretending || bytes <= fargpu::fuzz::allocation_bytes_max,
                       "memory of a size that a host made up");
  void* const at = std::malloc(std::max<std::size_t>(bytes, 1));
  if (!at) throw std::bad_alloc();
  fargpu::fuzz::taken(at, ::malloc_usable_size(at));
  return at;
}
[[gnu::noinline]] void operator delete(void* at) noexcept {
  fargpu::fuzz::given(at);
  std::free(at);
}
[[gnu::noinline]] void operator delete(void* at, std::size_t) noexcept { operator delete(at); }
#endif

namespace fargpu::client {
void real_start_thread(const char* name,
                       std::function<void()> body) asm("__real__ZN6fargpu6client12start_threadEPKcSt8functionIFvvEE");
void wrapped_start_thread(const char* name, std::function<void()> body) asm(
    "__wrap__ZN6fargpu6client12start_threadEPKcSt8functionIFvvEE");
void wrapped_start_thread(const char* name, std::function<void()> body) {
  if (fuzz::pretending) fuzz::start_thread(name, std::move(body));
  else real_start_thread(name, std::move(body));
}
// Memory of many sessions, each gone before the next: what system calls are given of it is not
// looked at.
void no_vector_calls() asm("__wrap__ZN6fargpu6client18watch_vector_callsEv");
void no_vector_calls() {}
void no_system_calls(PagedMemory& memory, std::size_t kind, const std::array<Window, 2>& windows) asm(
    "__wrap__ZN6fargpu6client18watch_system_callsERNS0_11PagedMemoryEmRKSt5arrayINS0_"
    "6WindowELm2EE");
void no_system_calls(PagedMemory&, std::size_t, const std::array<Window, 2>&) {}
}  // namespace fargpu::client

extern "C" {

int __real_connect(int descriptor, const sockaddr* to, socklen_t length);
int __wrap_connect(int descriptor, const sockaddr* to, socklen_t length) {
  using namespace fargpu::fuzz;
  if (!pretending) return __real_connect(descriptor, to, length);
  const int line = take_line();
  const int there = ::dup3(line, descriptor, O_CLOEXEC);
  ::close(line);
  return there == descriptor ? 0 : -1;
}

int __real_memfd_create(const char* name, unsigned flags);
int __wrap_memfd_create(const char* name, unsigned flags) {
  using namespace fargpu::fuzz;
  const int file = __real_memfd_create(name, flags);
  if (pretending && file >= 0 &&
      (std::string_view(name) == "fargpu-managed" || std::string_view(name) == "fargpu-host-pages"))
    files.push_back(file);
  return file;
}

void* __real_mmap(void* at, std::size_t bytes, int access, int flags, int file, off_t place);
void* __wrap_mmap(void* at, std::size_t bytes, int access, int flags, int file, off_t place) {
  using namespace fargpu::fuzz;
  void* const mapped = __real_mmap(at, bytes, access, flags, file, place);
  if (pretending && !at && mapped != MAP_FAILED && std::find(files.begin(), files.end(), file) != files.end())
    mappings.emplace_back(mapped, bytes);
  return mapped;
}
int __real_munmap(void* at, std::size_t bytes);
int __wrap_munmap(void* at, std::size_t bytes) {
  using namespace fargpu::fuzz;
  std::erase_if(mappings, [&](const auto& mapping) { return mapping.first == at; });
  return __real_munmap(at, bytes);
}

// What kernels print is nobody's here.
std::size_t __wrap_fwrite_unlocked(const void*, std::size_t, std::size_t count, std::FILE*) { return count; }
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace fargpu;
  using namespace fargpu::fuzz;
  [[maybe_unused]] static const bool watching = (watch_memory(), true);
  if (right_answer().empty()) (void)seeds();  // an input alone
  if (::memmem(data, size, &secret, sizeof(secret)))
    return 0;  // libFuzzer sees what is compared: a host that knows the secret is told nothing
  Bytes input({data, size});
  const auto way = static_cast<Way>(input.take<std::uint8_t>() % ways);
  allocated_before = allocated;
  pretending = true;
  if (way == Way::dial) ask_for_session(input);
  else attach_and_run(input, way == Way::attach);
  pretending = false;
  return 0;
}
