#pragma once
// What programs of two processes have in common: words about failures, a socket between them, memory that came as a
// handle.

#include <cuda.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace two_processes {

inline const char* who = "parent";

#define GIVES(result, call)                                                   \
  do {                                                                        \
    const CUresult result_ = (call);                                          \
    if (result_ != (result)) {                                                \
      const char* name_ = "?";                                                \
      cuGetErrorName(result_, &name_);                                        \
      std::printf("%s, line %d: %s gives %s\n", who, __LINE__, #call, name_); \
      std::exit(1);                                                           \
    }                                                                         \
  } while (false)
#define OK(call) GIVES(CUDA_SUCCESS, call)

[[noreturn]] inline void fail(const char* what) {
  std::printf("%s: %s\n", who, what);
  std::exit(1);
}

/// The device's primary context, current.
inline void begin() {
  CUcontext context;
  OK(cuInit(0));
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(cuCtxSetCurrent(context));
}

template <class Message>
void send(int socket, const Message& message, int descriptor) {
  iovec part{const_cast<Message*>(&message), sizeof(message)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{nullptr, 0, &part, 1, control, sizeof(control), 0};
  cmsghdr* const rights = CMSG_FIRSTHDR(&header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(rights), &descriptor, sizeof(int));
  if (::sendmsg(socket, &header, 0) != sizeof(message)) fail("sendmsg");
}

/// The descriptor that came with the message.
template <class Message>
int receive(int socket, Message& message) {
  iovec part{&message, sizeof(message)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{nullptr, 0, &part, 1, control, sizeof(control), 0};
  if (::recvmsg(socket, &header, 0) != sizeof(message) || !CMSG_FIRSTHDR(&header)) fail("recvmsg");
  int descriptor = -1;
  std::memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&header)), sizeof(int));
  return descriptor;
}

inline void tell(int socket) {
  if (::write(socket, "x", 1) != 1) fail("write");
}
inline void hear(int socket) {
  char byte;
  if (::read(socket, &byte, 1) != 1) fail("the other process is gone");
}

inline CUdeviceptr map(CUmemGenericAllocationHandle handle, std::size_t bytes) {
  CUdeviceptr address;
  OK(cuMemAddressReserve(&address, bytes, 0, 0, 0));
  OK(cuMemMap(address, bytes, 0, handle, 0));
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  OK(cuMemSetAccess(address, bytes, &access, 1));
  return address;
}

}  // namespace two_processes
