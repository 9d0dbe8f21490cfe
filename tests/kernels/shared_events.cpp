// Two processes order their work on one piece of memory by events that they share: each waits on the GPU, not on the
// CPU, for what the other has given to it. Says "in order" at its end.

#include <cuda.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "two_processes.h"

using namespace two_processes;

namespace {

constexpr std::size_t bytes = 32u << 20;
constexpr int rounds = 6,
              writes = 24;  // what a round's work is long enough for: the other process looks while it is going on

struct Message {
  CUipcEventHandle event;
};

CUstream start() {
  begin();
  CUstream stream;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  return stream;
}

// Work that takes a while, at whose end the memory holds the value.
void work(CUstream stream, CUdeviceptr memory, unsigned value) {
  for (int i = writes; i-- > 0;)
    OK(cuMemsetD32Async(memory, value + 1000u * static_cast<unsigned>(i), bytes / 4, stream));
}

// Waits on the stream for the event, then reads the last word.
void expect(CUstream stream, CUevent event, CUdeviceptr memory, unsigned value) {
  OK(cuStreamWaitEvent(stream, event, 0));
  unsigned word = 0;
  OK(cuMemcpyDtoHAsync(&word, memory + bytes - 4, 4, stream));
  OK(cuStreamSynchronize(stream));
  if (word != value) {
    std::printf("%s: %u where %u was waited for\n", who, word, value);
    std::exit(1);
  }
}

CUevent shared_event(CUipcEventHandle& handle) {
  CUevent event;
  OK(cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
  OK(cuIpcGetEventHandle(&handle, event));
  return event;
}

int child(int socket) {
  who = "child";
  Message message{}, answer{};
  const int descriptor = receive(socket, message);
  const CUstream stream = start();
  CUevent theirs;
  OK(cuIpcOpenEventHandle(&theirs, message.event));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuIpcOpenEventHandle(nullptr, message.event));
  CUevent none;
  GIVES(CUDA_ERROR_INVALID_VALUE, cuIpcOpenEventHandle(&none, CUipcEventHandle{}));
  OK(cuEventQuery(theirs));  // nothing was recorded
  const CUevent ours = shared_event(answer.event);
  CUmemGenericAllocationHandle imported;
  OK(cuMemImportFromShareableHandle(&imported, reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor)),
                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  const CUdeviceptr memory = map(imported, bytes);
  send(socket, answer, descriptor);
  ::close(descriptor);
  for (unsigned round = 0; round < rounds; ++round) {
    hear(socket);
    expect(stream, theirs, memory, 10 + 2 * round);
    OK(cuEventQuery(theirs));
    work(stream, memory, 11 + 2 * round);
    OK(cuEventRecord(ours, stream));
    tell(socket);
  }
  hear(socket);
  OK(cuEventRecord(theirs, stream));  // a process that opened it may record it too
  OK(cuEventSynchronize(theirs));
  tell(socket);
  hear(socket);  // the other process has ended
  OK(cuEventSynchronize(theirs));
  CUevent late;
  for (int tries = 0; cuIpcOpenEventHandle(&late, message.event) == CUDA_SUCCESS; ++tries) {
    OK(cuEventDestroy(late));
    if (tries == 500) fail("an event can still be opened though its process is gone");
    ::usleep(10000);
  }
  OK(cuEventDestroy(ours));
  return 0;
}

int parent(int socket) {
  const CUstream stream = start();
  CUevent plain, none;
  CUipcEventHandle handle;
  OK(cuEventCreate(&plain, CU_EVENT_DISABLE_TIMING));
  GIVES(CUDA_ERROR_INVALID_HANDLE, cuIpcGetEventHandle(&handle, plain));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuEventCreate(&none, CU_EVENT_INTERPROCESS));
  Message message{}, answer{};
  const CUevent ours = shared_event(message.event);
  GIVES(CUDA_ERROR_INVALID_VALUE, cuIpcGetEventHandle(nullptr, ours));
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemGenericAllocationHandle allocation;
  OK(cuMemCreate(&allocation, bytes, &properties, 0));
  const CUdeviceptr memory = map(allocation, bytes);
  int descriptor = -1;
  OK(cuMemExportToShareableHandle(&descriptor, allocation, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  send(socket, message, descriptor);
  ::close(descriptor);
  ::close(receive(socket, answer));
  CUevent theirs;
  OK(cuIpcOpenEventHandle(&theirs, answer.event));
  for (unsigned round = 0; round < rounds; ++round) {
    work(stream, memory, 10 + 2 * round);
    OK(cuEventRecord(ours, stream));
    tell(socket);
    hear(socket);
    expect(stream, theirs, memory, 11 + 2 * round);
  }
  tell(socket);
  hear(socket);
  OK(cuEventSynchronize(ours));
  OK(cuEventDestroy(theirs));
  return 0;
}

}  // namespace

int main() {
  int sockets[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) return 1;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  // Three processes: CUDA must not have begun where one forks, and the parent has to end before its child.
  const pid_t second = ::fork();
  if (second == 0) {
    ::close(sockets[1]);  // so that the end of the others is seen
    return child(sockets[0]);
  }
  const pid_t first = ::fork();
  if (first == 0) {
    ::close(sockets[0]);
    return parent(sockets[1]);
  }
  int status = 0;
  if (::waitpid(first, &status, 0) != first || status != 0) return 1;
  tell(sockets[1]);
  if (::waitpid(second, &status, 0) != second || status != 0) return 1;
  std::printf("in order\n");
  return 0;
}
