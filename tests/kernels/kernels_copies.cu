// Asynchronous copies between memory of the host and of the device, of every kind, while something else reads and
// writes their neighbours.

#include "harness.h"

#ifdef __CUDACC__

extern "C" __global__ void twist(unsigned char* bytes, unsigned long long count, unsigned by) {
  for (unsigned long long i = blockIdx.x * static_cast<unsigned long long>(blockDim.x) + threadIdx.x; i < count;
       i += static_cast<unsigned long long>(gridDim.x) * blockDim.x)
    bytes[i] = static_cast<unsigned char>(bytes[i] * 3 + by);
}

#else

#include <sys/mman.h>

#include <atomic>
#include <thread>

namespace {

using Bytes = std::vector<unsigned char>;

constexpr size_t guard = 4096;

Bytes noise(size_t count, unsigned seed) {
  std::mt19937_64 random(seed);
  Bytes bytes(count);
  for (size_t i = 0; i + 8 <= count; i += 8) {
    const std::uint64_t word = random();
    std::memcpy(bytes.data() + i, &word, 8);
  }
  return bytes;
}

enum class Kind { pinned, registered, pageable };

/// Memory of the host with a guard on each side.
class Host {
 public:
  Host(Kind kind, size_t count) : kind_(kind), count_(count) {
    const size_t whole = count + 2 * guard;
    if (kind == Kind::pinned) {
      void* memory = nullptr;
      OK(cuMemHostAlloc(&memory, whole, 0));
      base_ = static_cast<unsigned char*>(memory);
    } else {
      void* const memory = ::mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      HOLDS(memory != MAP_FAILED);
      base_ = static_cast<unsigned char*>(memory);
      if (kind == Kind::registered) OK(cuMemHostRegister(base_, whole, 0));
    }
    std::memset(base_, 0x5A, whole);
  }
  ~Host() {
    if (kind_ == Kind::pinned) {
      cuMemFreeHost(base_);
    } else {
      if (kind_ == Kind::registered) cuMemHostUnregister(base_);
      ::munmap(base_, count_ + 2 * guard);
    }
  }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;
  unsigned char* data() const { return base_ + guard; }
  size_t size() const { return count_; }
  bool guards_hold() const {
    for (size_t i = 0; i < guard; ++i)
      if (base_[i] != 0x5A || base_[guard + count_ + i] != 0x5A) return false;
    return true;
  }

 private:
  const Kind kind_;
  const size_t count_;
  unsigned char* base_ = nullptr;
};

struct Stream {
  Stream() { OK(cuStreamCreate(&cuda, CU_STREAM_NON_BLOCKING)); }
  ~Stream() { cuStreamDestroy(cuda); }
  CUstream cuda{};
};

/// Keeps a stream and memory of its own busy, on both sides, until it goes.
class Neighbours {
 public:
  Neighbours() : host_(Kind::pinned, bytes), device_(bytes) {
    CUcontext context;
    OK(cuCtxGetCurrent(&context));
    thread_ = std::thread([this, context] {
      cuCtxSetCurrent(context);
      for (unsigned char round = 0; !over_ && right_; ++round) {
        std::memset(host_.data(), round, bytes);
        right_ = cuMemcpyHtoDAsync(device_.address(), host_.data(), bytes, stream_.cuda) == CUDA_SUCCESS &&
                 cuMemcpyDtoHAsync(host_.data(), device_.address(), bytes, stream_.cuda) == CUDA_SUCCESS &&
                 cuStreamSynchronize(stream_.cuda) == CUDA_SUCCESS && host_.guards_hold();
        for (size_t i = 0; i < bytes && right_; i += 4093) right_ = host_.data()[i] == round;
      }
    });
  }
  ~Neighbours() { end(); }
  /// Whether all that it copied came as it was.
  bool end() {
    over_ = true;
    if (thread_.joinable()) thread_.join();
    return right_;
  }

 private:
  static constexpr size_t bytes = 700'001;
  Host host_;
  kernels::Buffer<unsigned char> device_;
  Stream stream_;
  std::atomic<bool> over_{false}, right_{true};
  std::thread thread_;
};

/// Rows of one side of a copy.
struct Rows {
  size_t width, height, depth, host_pitch, device_pitch;
  size_t host_bytes() const { return host_pitch * height * depth; }
  size_t device_bytes() const { return device_pitch * height * depth; }
};

CUDA_MEMCPY3D params(const Rows& rows, void* host, CUdeviceptr device, bool to_device) {
  CUDA_MEMCPY3D copy{};
  copy.WidthInBytes = rows.width;
  copy.Height = rows.height;
  copy.Depth = rows.depth;
  if (to_device) {
    copy.srcMemoryType = CU_MEMORYTYPE_HOST;
    copy.srcHost = host;
    copy.srcPitch = rows.host_pitch;
    copy.srcHeight = rows.height;
    copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.dstDevice = device;
    copy.dstPitch = rows.device_pitch;
    copy.dstHeight = rows.height;
  } else {
    copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = device;
    copy.srcPitch = rows.device_pitch;
    copy.srcHeight = rows.height;
    copy.dstMemoryType = CU_MEMORYTYPE_HOST;
    copy.dstHost = host;
    copy.dstPitch = rows.host_pitch;
    copy.dstHeight = rows.height;
  }
  return copy;
}

template <class Step>
void for_rows(const Rows& rows, Step&& step) {
  for (size_t z = 0; z < rows.depth; ++z)
    for (size_t y = 0; y < rows.height; ++y)
      step((z * rows.height + y) * rows.host_pitch, (z * rows.height + y) * rows.device_pitch);
}

// There and back, each side with gaps that must stay as they are.
void there_and_back(Kind kind, const Rows& rows) {
  Stream stream;
  Host from(kind, rows.host_bytes()), to(kind, rows.host_bytes());
  kernels::Buffer<unsigned char> device(rows.device_bytes() + 2 * guard);
  const CUdeviceptr place = device.address() + guard;
  const Bytes sent = noise(from.size(), 3);
  std::memcpy(from.data(), sent.data(), sent.size());
  std::memset(to.data(), 0x11, to.size());
  OK(cuMemsetD8Async(device.address(), 0x77, device.bytes(), stream.cuda));
  const CUDA_MEMCPY3D in = params(rows, from.data(), place, true), out = params(rows, to.data(), place, false);
  OK(cuMemcpy3DAsync(&in, stream.cuda));
  OK(cuMemcpy3DAsync(&out, stream.cuda));
  OK(cuStreamSynchronize(stream.cuda));
  Bytes expected(to.size(), 0x11), there(device.bytes(), 0x77);
  for_rows(rows, [&](size_t host, size_t at) {
    std::memcpy(expected.data() + host, sent.data() + host, rows.width);
    std::memcpy(there.data() + guard + at, sent.data() + host, rows.width);
  });
  HOLDS(std::memcmp(to.data(), expected.data(), expected.size()) == 0);
  HOLDS(device.get() == there);
  HOLDS(from.guards_hold() && to.guards_hold());
}

}  // namespace

CASE(each_kind) {
  Neighbours neighbours;
  for (const Kind kind : {Kind::pinned, Kind::registered, Kind::pageable}) {
    for (const size_t bytes :
         {size_t{64}, size_t{100'003}, size_t{131'072}, size_t{262'145}, size_t{1'048'576}, size_t{5'000'001}})
      there_and_back(kind, {bytes, 1, 1, bytes, bytes});
    there_and_back(kind, {1000, 700, 1, 1000, 1024});
    there_and_back(kind, {1000, 700, 1, 1024, 1000});
    there_and_back(kind, {300'000, 9, 1, 300'032, 301'000});
    there_and_back(kind, {1'100'000, 3, 2, 1'100'100, 1'100'000});
    there_and_back(kind, {4096, 40, 5, 4096, 4096});
  }
  HOLDS(neighbours.end());
}

CASE(arrays) {
  Neighbours neighbours;
  constexpr size_t width = 1200, height = 900;
  CUDA_ARRAY_DESCRIPTOR shape{width, height, CU_AD_FORMAT_UNSIGNED_INT32, 1};
  CUarray array;
  OK(cuArrayCreate(&array, &shape));
  for (const Kind kind : {Kind::pinned, Kind::registered, Kind::pageable}) {
    for (const size_t pitch : {width * 4, width * 4 + 64}) {
      Stream stream;
      Host from(kind, pitch * height), to(kind, pitch * height);
      const Bytes sent = noise(from.size(), 5);
      std::memcpy(from.data(), sent.data(), sent.size());
      std::memset(to.data(), 0x22, to.size());
      CUDA_MEMCPY2D copy{};
      copy.srcMemoryType = CU_MEMORYTYPE_HOST;
      copy.srcHost = from.data();
      copy.srcPitch = pitch;
      copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
      copy.dstArray = array;
      copy.WidthInBytes = width * 4;
      copy.Height = height;
      OK(cuMemcpy2DAsync(&copy, stream.cuda));
      CUDA_MEMCPY2D back{};
      back.srcMemoryType = CU_MEMORYTYPE_ARRAY;
      back.srcArray = array;
      back.dstMemoryType = CU_MEMORYTYPE_HOST;
      back.dstHost = to.data();
      back.dstPitch = pitch;
      back.WidthInBytes = width * 4;
      back.Height = height;
      OK(cuMemcpy2DAsync(&back, stream.cuda));
      OK(cuStreamSynchronize(stream.cuda));
      Bytes expected(to.size(), 0x22);
      for (size_t y = 0; y < height; ++y) std::memcpy(expected.data() + y * pitch, sent.data() + y * pitch, width * 4);
      HOLDS(std::memcmp(to.data(), expected.data(), expected.size()) == 0);
      HOLDS(from.guards_hold() && to.guards_hold());
    }
  }
  OK(cuArrayDestroy(array));
  HOLDS(neighbours.end());
}

namespace {

/// Changes memory of the host when the stream gets there.
struct Change {
  unsigned char* bytes;
  size_t count;
  static void CUDA_CB run(void* self) {
    const auto* const change = static_cast<Change*>(self);
    for (size_t i = 0; i < change->count; i += 97)
      change->bytes[i] = static_cast<unsigned char>(change->bytes[i] * 5 + 1);
  }
};

}  // namespace

// Copies, kernels, fills and functions of the host on one stream in any order, and the same done here.
CASE(any_order) {
  Neighbours neighbours;
  const kernels::Kernels module;
  constexpr size_t room = 3u << 20;
  for (unsigned seed = 0; seed < 4; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](size_t bound) { return std::uniform_int_distribution<size_t>(0, bound - 1)(random); };
    Stream stream;
    Host pinned(Kind::pinned, room), registered(Kind::registered, room);
    kernels::Buffer<unsigned char> device(room);
    const Host* const hosts[] = {&pinned, &registered};
    Bytes models[2], there(room, 7);
    for (unsigned i = 0; i < 2; ++i) {
      models[i] = noise(room, seed * 2 + i);
      std::memcpy(hosts[i]->data(), models[i].data(), room);
    }
    OK(cuMemsetD8Async(device.address(), 7, room, stream.cuda));
    std::vector<std::unique_ptr<Change> > changes;
    for (unsigned step = 0; step < 50; ++step) {
      const size_t bytes = 1 + below(step % 3 == 0 ? room / 64 : room / 2), at = below(room - bytes + 1),
                   from = below(room - bytes + 1);
      const size_t which = below(2);
      unsigned char* const host = hosts[which]->data();
      Bytes& model = models[which];
      switch (below(7)) {
        case 0:
        case 1:
          OK(cuMemcpyHtoDAsync(device.address() + at, host + from, bytes, stream.cuda));
          std::memcpy(there.data() + at, model.data() + from, bytes);
          break;
        case 2:
        case 3:
          OK(cuMemcpyDtoHAsync(host + at, device.address() + from, bytes, stream.cuda));
          std::memcpy(model.data() + at, there.data() + from, bytes);
          break;
        case 4:
          OK(cuMemsetD8Async(device.address() + at, static_cast<unsigned char>(step), bytes, stream.cuda));
          std::memset(there.data() + at, static_cast<int>(step), bytes);
          break;
        case 5: {
          const size_t few = std::min<size_t>(bytes, 50'000);
          OK(module.try_launch("twist", {16}, {128}, 0, stream.cuda, device.address() + at,
                               static_cast<unsigned long long>(few), step));
          for (size_t i = at; i < at + few; ++i) there[i] = static_cast<unsigned char>(there[i] * 3 + step);
          break;
        }
        default: {
          changes.push_back(std::make_unique<Change>(Change{host + at, bytes}));
          OK(cuLaunchHostFunc(stream.cuda, Change::run, changes.back().get()));
          Change here{model.data() + at, bytes};
          Change::run(&here);
        }
      }
    }
    OK(cuStreamSynchronize(stream.cuda));
    for (unsigned i = 0; i < 2; ++i) {
      HOLDS(std::memcmp(hosts[i]->data(), models[i].data(), room) == 0);
      HOLDS(hosts[i]->guards_hold());
    }
    HOLDS(device.get() == there);
  }
  HOLDS(neighbours.end());
}

// An event is not seen before the bytes of the copy that it follows, by whichever call.
CASE(told_behind_the_bytes) {
  constexpr size_t bytes = 2'500'000;
  Stream stream, other;
  Host to(Kind::pinned, bytes);
  kernels::Buffer<unsigned char> device(bytes);
  CUevent event;
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  for (unsigned char round = 1; round < 30; ++round) {
    OK(cuMemsetD8Async(device.address(), round, bytes, stream.cuda));
    OK(cuMemcpyDtoHAsync(to.data(), device.address(), bytes, stream.cuda));
    OK(cuEventRecord(event, stream.cuda));
    OK(cuStreamWaitEvent(other.cuda, event, 0));
    CUresult result = CUDA_ERROR_NOT_READY;
    switch (round % 4) {
      case 0: result = cuEventSynchronize(event); break;
      case 1: result = cuStreamSynchronize(other.cuda); break;
      case 2:
        while ((result = cuEventQuery(event)) == CUDA_ERROR_NOT_READY) {}
        break;
      default:
        while ((result = cuStreamQuery(other.cuda)) == CUDA_ERROR_NOT_READY) {}
    }
    OK(result);
    bool all = true;
    for (size_t i = 0; i < bytes; ++i) all = all && to.data()[i] == round;
    HOLDS(all);
  }
  OK(cuEventDestroy(event));
}

// Many copies into the same memory, of different lengths: what the last one brought stays.
CASE(same_memory) {
  constexpr size_t bytes = 3'000'000;
  Stream stream;
  Host to(Kind::pinned, bytes);
  kernels::Buffer<unsigned char> device(bytes);
  Bytes expected(bytes, 0x5A);
  for (unsigned n = 0; n < 60; ++n) {
    const size_t begin = n * 31'000u % 1'000'000, length = bytes - begin - n * 17'000u % 900'000;
    OK(cuMemsetD8Async(device.address(), static_cast<unsigned char>(n), bytes, stream.cuda));
    OK(cuMemcpyDtoHAsync(to.data() + begin, device.address(), length, stream.cuda));
    std::memset(expected.data() + begin, static_cast<int>(n), length);
  }
  OK(cuStreamSynchronize(stream.cuda));
  HOLDS(std::memcmp(to.data(), expected.data(), bytes) == 0);
}

// The program may write pageable memory again as soon as the call has returned.
CASE(pageable_is_read_at_once) {
  constexpr size_t bytes = 1'500'000, copies = 20;
  Stream stream;
  Host from(Kind::pageable, bytes);
  kernels::Buffer<unsigned char> device(bytes * copies);
  for (size_t n = 0; n < copies; ++n) {
    std::memset(from.data(), static_cast<int>(n + 1), bytes);
    OK(cuMemcpyHtoDAsync(device.address() + n * bytes, from.data(), bytes, stream.cuda));
  }
  OK(cuStreamSynchronize(stream.cuda));
  const Bytes there = device.get();
  bool all = true;
  for (size_t i = 0; i < there.size(); ++i) all = all && there[i] == i / bytes + 1;
  HOLDS(all);
}

#endif
