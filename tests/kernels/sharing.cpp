// Two processes, each with a session of its own, share memory of a device: by CUDA's IPC handles, and by file
// descriptors of allocations. The parent writes, the child reads and writes, the parent reads. Says "shared" at its
// end.

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

constexpr std::size_t bytes = 4u << 20;

void expect(CUdeviceptr address, unsigned value) {
  unsigned words[4];
  OK(cuMemcpyDtoH(words, address + bytes - sizeof(words), sizeof(words)));
  for (const unsigned word : words)
    if (word != value) fail("the other process's words are not there");
}

struct Message {
  CUipcMemHandle small, large;
  CUdeviceptr large_address;
};

int child(int socket) {
  who = "child";
  Message message;
  const int descriptor = receive(socket, message);
  begin();
  CUdeviceptr small, large, again;
  OK(cuIpcOpenMemHandle(&small, message.small, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  OK(cuIpcOpenMemHandle(&large, message.large, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  OK(cuIpcOpenMemHandle(&again, message.large, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  if (again != large) fail("opened again, the memory lies elsewhere");
  unsigned word;
  OK(cuMemcpyDtoH(&word, small, 4));
  if (word != 7) fail("the small block does not hold what the parent wrote");
  expect(large, 11);
  CUmemGenericAllocationHandle imported;
  OK(cuMemImportFromShareableHandle(&imported, reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor)),
                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  ::close(descriptor);
  const CUdeviceptr mapped = map(imported, bytes);
  expect(mapped, 13);
  OK(cuMemsetD32(large, 21, bytes / 4));
  OK(cuMemsetD32(mapped, 23, bytes / 4));
  OK(cuCtxSynchronize());
  OK(cuIpcCloseMemHandle(again));
  OK(cuIpcCloseMemHandle(large));
  OK(cuIpcCloseMemHandle(small));
  tell(socket);
  hear(socket);  // the parent's session is over
  CUdeviceptr late;
  for (int tries = 0; cuIpcOpenMemHandle(&late, message.large, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) == CUDA_SUCCESS;
       ++tries) {
    OK(cuIpcCloseMemHandle(late));
    if (tries == 500) fail("memory can still be opened though its process is gone");
    ::usleep(10000);
  }
  expect(mapped, 23);  // but what was imported stays
  return 0;
}

int parent(int socket) {
  begin();
  Message message{};
  CUdeviceptr small;
  OK(cuMemAlloc(&small, 1000));
  OK(cuMemAlloc(&message.large_address, bytes));
  OK(cuMemsetD32(small, 7, 250));
  OK(cuMemsetD32(message.large_address, 11, bytes / 4));
  OK(cuIpcGetMemHandle(&message.small, small));
  OK(cuIpcGetMemHandle(&message.large, message.large_address));
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemGenericAllocationHandle allocation;
  OK(cuMemCreate(&allocation, bytes, &properties, 0));
  const CUdeviceptr mapped = map(allocation, bytes);
  OK(cuMemsetD32(mapped, 13, bytes / 4));
  OK(cuCtxSynchronize());
  int descriptor = -1;
  OK(cuMemExportToShareableHandle(&descriptor, allocation, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  send(socket, message, descriptor);
  ::close(descriptor);
  hear(socket);
  expect(message.large_address, 21);
  expect(mapped, 23);
  return 0;
}

}  // namespace

int main() {
  int sockets[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) return 1;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  // Three processes: CUDA must not have begun where one forks, and the parent has to end before its child.
  const pid_t reader = ::fork();
  if (reader == 0) {
    ::close(sockets[1]);  // so that the end of the others is seen
    return child(sockets[0]);
  }
  const pid_t writer = ::fork();
  if (writer == 0) {
    ::close(sockets[0]);
    return parent(sockets[1]);
  }
  ::close(sockets[0]);  // so that the writer sees the end of the reader
  int status = 0;
  if (::waitpid(writer, &status, 0) != writer || status != 0) return 1;
  tell(sockets[1]);
  if (::waitpid(reader, &status, 0) != reader || status != 0) return 1;
  std::printf("shared\n");
  return 0;
}
