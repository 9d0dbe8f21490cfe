// A producer and a consumer, which is the same program started again, share a ring of device buffers by IPC handles.

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "program.h"

namespace {

constexpr int slots = 4, batches = 11, threads = 256, blocks = 64, end_of_batches = -1;

struct Setup {
  cudaIpcMemHandle_t buffers[slots], stale;
  cudaIpcEventHandle_t filled[slots], emptied[slots];
  size_t values;
  int producer;
};

struct Message {
  int batch;
  unsigned long long sum;
};

__host__ __device__ uint32_t value_of(uint32_t batch, uint32_t i) {
  uint32_t word = i * 2654435761u + batch * 40503u;
  word ^= word >> 15;
  return word * 2246822519u;
}

__global__ void fill(uint32_t* buffer, size_t values, uint32_t batch) {
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < values; i += gridDim.x * blockDim.x)
    buffer[i] = value_of(batch, uint32_t(i));
}

__global__ void add_up(const uint32_t* buffer, size_t values, unsigned long long* sum) {
  unsigned long long own = 0;
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < values; i += gridDim.x * blockDim.x) own += buffer[i];
  for (int half = 16; half > 0; half /= 2) own += __shfl_down_sync(~0u, own, half);
  if (threadIdx.x % 32 == 0) atomicAdd(sum, own);
}

/// The consumer leaves its sum in the buffer, where the producer looks for it.
__global__ void stamp(uint32_t* buffer, const unsigned long long* sum) {
  buffer[0] = uint32_t(*sum);
  buffer[1] = uint32_t(*sum >> 32);
}

template <typename T>
void send(int pipe, const T& message) {
  HOLDS(write(pipe, &message, sizeof message) == ssize_t(sizeof message));
}

template <typename T>
T receive(int pipe) {
  T message;
  char* bytes = reinterpret_cast<char*>(&message);
  for (size_t got = 0; got < sizeof message;) {
    const ssize_t part = read(pipe, bytes + got, sizeof message - got);
    HOLDS(part > 0);  // otherwise the other process has ended early
    got += size_t(part);
  }
  return message;
}

void refused(cudaError_t error) {
  HOLDS(error != cudaSuccess);
  HOLDS(cudaGetLastError() == error && cudaPeekAtLastError() == cudaSuccess);
}

/// What the importing process may not do, and what opening twice means.
void check_opening(const Setup& setup, void* first) {
  void* other = nullptr;
  CUDA(cudaIpcOpenMemHandle(&other, setup.buffers[0], cudaIpcMemLazyEnablePeerAccess));
  HOLDS(other == first);
  CUDA(cudaIpcCloseMemHandle(other));
  refused(cudaIpcOpenMemHandle(&other, setup.stale, cudaIpcMemLazyEnablePeerAccess));
  cudaPointerAttributes attributes{};
  CUDA(cudaPointerGetAttributes(&attributes, first));
  HOLDS(attributes.type == cudaMemoryTypeDevice && attributes.device == 0 && attributes.devicePointer == first);
}

int consume(int in, int out) {
  const Setup setup = receive<Setup>(in);
  HOLDS(setup.producer == getppid());
  uint32_t* buffers[slots];
  cudaEvent_t filled[slots], emptied[slots];
  for (int i = 0; i < slots; ++i) {
    CUDA(cudaIpcOpenMemHandle(reinterpret_cast<void**>(&buffers[i]), setup.buffers[i], cudaIpcMemLazyEnablePeerAccess));
    CUDA(cudaIpcOpenEventHandle(&filled[i], setup.filled[i]));
    CUDA(cudaIpcOpenEventHandle(&emptied[i], setup.emptied[i]));
    for (int j = 0; j < i; ++j) HOLDS(buffers[i] != buffers[j]);
  }
  check_opening(setup, buffers[0]);
  cudaStream_t stream;
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  unsigned long long *sums = nullptr, *pinned = nullptr;
  CUDA(cudaMallocAsync(&sums, batches * sizeof *sums, stream));
  CUDA(cudaMemsetAsync(sums, 0, batches * sizeof *sums, stream));
  CUDA(cudaMallocHost(&pinned, batches * sizeof *pinned));
  uint32_t* mine = nullptr;
  CUDA(cudaMalloc(&mine, setup.values * sizeof(uint32_t)));
  int seen = 0;
  for (Message message = receive<Message>(in); message.batch != end_of_batches; message = receive<Message>(in)) {
    const int slot = message.batch % slots;
    HOLDS(message.batch == seen++);
    CUDA(cudaStreamWaitEvent(stream, filled[slot]));
    if (message.batch % 2 == 0) {
      add_up<<<blocks, threads, 0, stream>>>(buffers[slot], setup.values, &sums[message.batch]);
    } else {  // by way of a copy
      CUDA(cudaMemcpyAsync(mine, buffers[slot], setup.values * sizeof(uint32_t), cudaMemcpyDefault, stream));
      add_up<<<blocks, threads, 0, stream>>>(mine, setup.values, &sums[message.batch]);
    }
    CUDA(cudaGetLastError());
    stamp<<<1, 1, 0, stream>>>(buffers[slot], &sums[message.batch]);
    CUDA(cudaGetLastError());
    CUDA(cudaEventRecord(emptied[slot], stream));
    send(out, Message{message.batch, 0});
  }
  CUDA(cudaMemcpyAsync(pinned, sums, batches * sizeof *sums, cudaMemcpyDeviceToHost, stream));
  CUDA(cudaFreeAsync(sums, stream));
  CUDA(cudaStreamSynchronize(stream));
  for (int i = 0; i < slots; ++i) {
    HOLDS(cudaEventQuery(emptied[i]) == cudaSuccess && cudaEventQuery(filled[i]) == cudaSuccess);
    float milliseconds = 0;  // opened events have no time
    refused(cudaEventElapsedTime(&milliseconds, filled[i], emptied[i]));
    CUDA(cudaIpcCloseMemHandle(buffers[i]));
    CUDA(cudaEventDestroy(filled[i]));
    CUDA(cudaEventDestroy(emptied[i]));
  }
  refused(cudaIpcCloseMemHandle(buffers[0]));
  for (int i = 0; i < batches; ++i) send(out, Message{i, pinned[i]});
  CUDA(cudaFree(mine));
  CUDA(cudaFreeHost(pinned));
  CUDA(cudaStreamDestroy(stream));
  CUDA(cudaDeviceSynchronize());
  return 0;
}

/// The handle of memory that is gone. Memory that takes its place has another one.
cudaIpcMemHandle_t stale_handle(size_t bytes) {
  cudaIpcMemHandle_t stale{}, fresh{}, again{};
  void* memory = nullptr;
  CUDA(cudaMalloc(&memory, bytes));
  CUDA(cudaIpcGetMemHandle(&stale, memory));
  CUDA(cudaFree(memory));
  CUDA(cudaMalloc(&memory, bytes));
  CUDA(cudaIpcGetMemHandle(&fresh, memory));
  CUDA(cudaIpcGetMemHandle(&again, memory));
  HOLDS(std::memcmp(&fresh, &stale, sizeof fresh) != 0);
  CUDA(cudaFree(memory));
  return stale;
}

void produce(int in, int out, int scale) {
  int shares_events = 0;
  CUDA(cudaDeviceGetAttribute(&shares_events, cudaDevAttrIpcEventSupport, 0));
  HOLDS(shares_events == 1);
  Setup setup{};
  setup.values = size_t(1 << 20) * std::min(scale, 64);
  setup.producer = getpid();
  const size_t bytes = setup.values * sizeof(uint32_t);
  uint32_t* buffers[slots];
  cudaEvent_t filled[slots], emptied[slots], private_event;
  for (int i = 0; i < slots; ++i) {
    CUDA(cudaMalloc(&buffers[i], bytes));
    CUDA(cudaIpcGetMemHandle(&setup.buffers[i], buffers[i]));
    for (cudaEvent_t* event : {&filled[i], &emptied[i]})
      CUDA(cudaEventCreateWithFlags(event, cudaEventInterprocess | cudaEventDisableTiming));
    CUDA(cudaIpcGetEventHandle(&setup.filled[i], filled[i]));
    CUDA(cudaIpcGetEventHandle(&setup.emptied[i], emptied[i]));
  }
  refused(cudaEventCreateWithFlags(&private_event, cudaEventInterprocess));  // must be without timing
  CUDA(cudaEventCreateWithFlags(&private_event, cudaEventDisableTiming));
  cudaIpcEventHandle_t no_event{};
  cudaIpcMemHandle_t no_memory{};
  refused(cudaIpcGetEventHandle(&no_event, private_event));
  uint2* stamps = nullptr;
  CUDA(cudaMallocHost(&stamps, batches * sizeof *stamps));
  refused(cudaIpcGetMemHandle(&no_memory, stamps));
  setup.stale = stale_handle(bytes);
  cudaStream_t stream;
  CUDA(cudaStreamCreate(&stream));
  send(out, setup);

  const auto take_back = [&](int batch) {
    HOLDS(receive<Message>(in).batch == batch);
    CUDA(cudaStreamWaitEvent(stream, emptied[batch % slots]));
    CUDA(cudaMemcpyAsync(&stamps[batch], buffers[batch % slots], sizeof *stamps, cudaMemcpyDeviceToHost, stream));
  };
  for (int batch = 0; batch < batches; ++batch) {
    if (batch >= slots) take_back(batch - slots);
    fill<<<blocks, threads, 0, stream>>>(buffers[batch % slots], setup.values, batch);
    CUDA(cudaGetLastError());
    CUDA(cudaEventRecord(filled[batch % slots], stream));
    send(out, Message{batch, 0});
  }
  for (int batch = batches - slots; batch < batches; ++batch) take_back(batch);
  send(out, Message{end_of_batches, 0});
  CUDA(cudaStreamSynchronize(stream));
  for (int batch = 0; batch < batches; ++batch) {
    unsigned long long expected = 0;
    for (size_t i = 0; i < setup.values; ++i) expected += value_of(batch, uint32_t(i));
    HOLDS(receive<Message>(in).sum == expected);
    HOLDS(stamps[batch].x == uint32_t(expected) && stamps[batch].y == uint32_t(expected >> 32));
  }

  // The consumer has closed its handles. The buffers are the producer's alone again, and hold what was written last.
  uint32_t last = 0;
  CUDA(cudaMemcpy(&last, buffers[(batches - 1) % slots] + 2, sizeof last, cudaMemcpyDeviceToHost));
  HOLDS(last == value_of(batches - 1, 2));
  for (int i = 0; i < slots; ++i) {
    CUDA(cudaFree(buffers[i]));
    CUDA(cudaEventDestroy(filled[i]));
    CUDA(cudaEventDestroy(emptied[i]));
  }
  CUDA(cudaEventDestroy(private_event));
  CUDA(cudaFreeHost(stamps));
  CUDA(cudaStreamDestroy(stream));
}

}  // namespace

int main(int count, char** words) {
  std::signal(SIGPIPE, SIG_IGN);
  if (count == 4 && std::strcmp(words[1], "consumer") == 0) return consume(std::atoi(words[2]), std::atoi(words[3]));
  const int scale = program::scale(count, words);
  int there[2], back[2];
  HOLDS(pipe(there) == 0 && pipe(back) == 0);
  // Forking is possible only as long as the process has not used CUDA.
  const pid_t consumer = fork();
  HOLDS(consumer >= 0);
  if (consumer == 0) {
    close(there[1]), close(back[0]);
    const std::string in = std::to_string(there[0]), out = std::to_string(back[1]);
    execl("/proc/self/exe", words[0], "consumer", in.c_str(), out.c_str(), nullptr);
    _exit(127);
  }
  close(there[0]), close(back[1]);
  produce(back[0], there[1], scale);
  int status = 0;
  HOLDS(waitpid(consumer, &status, 0) == consumer && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  char line[120];
  std::snprintf(line, sizeof line, "%d batches of %d MiB went from one process to another", batches,
                4 * std::min(scale, 64));
  return program::passed(line);
}
