// A CUDA program that does what it is told: one command a line on stdin, one line of outcome each on stdout, which
// begins with the name of the CUresult. Tests decide by it what is under way when something happens to the program or
// to what it depends on.

#include <cuda.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace {

const char* const kernels = R"(.version 7.0
.target sm_52
.address_size 64
.visible .entry fill32(.param .u64 address, .param .u32 count, .param .u32 value) { ret; }
.visible .entry crash(.param .u64 address, .param .u32 count, .param .u32 value) { ret; }
.visible .entry hang(.param .u64 address, .param .u32 count, .param .u32 value) { ret; }
)";

struct Block {
  CUdeviceptr address = 0;
  std::vector<unsigned char> bytes;  // what was last written to it
};

std::map<std::string, Block> blocks;
std::map<std::string, unsigned char*> pinned;
std::map<std::string, unsigned char*> mapped;
CUfunction fill = nullptr;   // writes to the block
CUfunction crash = nullptr;  // accesses what is not there
CUfunction hang = nullptr;   // never ends

std::string name_of(CUresult result) {
  const char* name = nullptr;
  cuGetErrorName(result, &name);
  const std::string text = name ? name : "CUDA_" + std::to_string(result);
  return result == CUDA_SUCCESS ? "SUCCESS" : text.rfind("CUDA_ERROR_", 0) == 0 ? text.substr(11) : text;
}

CUresult context() {
  CUdevice device;
  CUcontext context;
  if (const CUresult bad = cuDeviceGet(&device, 0); bad != CUDA_SUCCESS) return bad;
  if (const CUresult bad = cuDevicePrimaryCtxRetain(&context, device); bad != CUDA_SUCCESS) return bad;
  return cuCtxSetCurrent(context);
}

CUresult load() {
  CUmodule module;
  if (const CUresult bad = cuModuleLoadData(&module, kernels); bad != CUDA_SUCCESS) return bad;
  if (const CUresult bad = cuModuleGetFunction(&fill, module, "fill32"); bad != CUDA_SUCCESS) return bad;
  if (const CUresult bad = cuModuleGetFunction(&crash, module, "crash"); bad != CUDA_SUCCESS) return bad;
  return cuModuleGetFunction(&hang, module, "hang");
}

CUresult launch(CUfunction kernel, Block& block) {
  unsigned count = 16, value = 0x5a5a5a5a;
  void* arguments[] = {&block.address, &count, &value};
  return cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, nullptr, arguments, nullptr);
}

CUresult write(Block& block) { return cuMemcpyHtoD(block.address, block.bytes.data(), block.bytes.size()); }

CUresult read(Block& block, std::vector<unsigned char>& into) {
  into.resize(block.bytes.size());
  return cuMemcpyDtoH(into.data(), block.address, into.size());
}

// A bit of everything, with the outcome looked at.
CUresult work(Block& block) {
  std::vector<unsigned char> now;
  CUdeviceptr more = 0;
  if (const CUresult bad = write(block); bad != CUDA_SUCCESS) return bad;
  if (const CUresult bad = cuMemAlloc(&more, 1 << 16); bad != CUDA_SUCCESS) return bad;
  for (int i = 0; i < 8; ++i)
    if (const CUresult bad = launch(fill, block); bad != CUDA_SUCCESS) return bad;
  if (const CUresult bad = read(block, now); bad != CUDA_SUCCESS) return bad;
  // The kernel changes the first 64 bytes.
  if (!std::equal(now.begin() + 64, now.end(), block.bytes.begin() + 64)) return CUDA_ERROR_UNKNOWN;
  if (const CUresult bad = cuMemFree(more); bad != CUDA_SUCCESS) return bad;
  return cuCtxSynchronize();
}

// What CUPTI does first.
CUresult start_profiler() {
  const unsigned char id[16] = {0x2c, 0x8e, 0x0a, 0xd8, 0x07, 0x10, 0xab, 0x4e,
                                0x90, 0xdd, 0x54, 0x71, 0x9f, 0xe5, 0xf7, 0x4b};
  CUuuid wanted;
  std::memcpy(wanted.bytes, id, sizeof id);
  const void* table = nullptr;
  return cuGetExportTable(&table, &wanted);
}

CUresult multiprocessors(CUdevice device, unsigned& count) {
  CUdevResource resource;
  const CUresult result = cuDeviceGetDevResource(device, &resource, CU_DEV_RESOURCE_TYPE_SM);
  count = result == CUDA_SUCCESS ? resource.sm.smCount : 0;
  return result;
}

// A green context of so many of what there is; `count` is what it has.
CUresult green_context(unsigned wanted, unsigned& count) {
  CUdevResource all, group;
  unsigned groups = 1;
  CUdevResourceDesc description;
  CUgreenCtx green;
  if (const CUresult bad = cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM); bad != CUDA_SUCCESS) return bad;
  if (const CUresult bad = cuDevSmResourceSplitByCount(&group, &groups, &all, nullptr, 0, wanted); bad != CUDA_SUCCESS)
    return bad;
  if (const CUresult bad = cuDevResourceGenerateDesc(&description, &group, 1); bad != CUDA_SUCCESS) return bad;
  if (const CUresult bad = cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM); bad != CUDA_SUCCESS)
    return bad;
  if (const CUresult bad = cuGreenCtxGetDevResource(green, &group, CU_DEV_RESOURCE_TYPE_SM); bad != CUDA_SUCCESS)
    return bad;
  count = group.sm.smCount;
  return cuGreenCtxDestroy(green);
}

void say(const std::string& line) { std::cout << line << std::endl; }

// Does something again and again, after a first time that is known to be over when "begun" is said.
CUresult forever(const std::function<CUresult()>& action) {
  CUresult result = action();
  say("begun");
  while (result == CUDA_SUCCESS) result = action();
  return result;
}

std::string perform(std::istream& rest) {
  std::string command, name;
  rest >> command;
  if (command == "announce") {  // says that it begins with the command behind it
    say("begun");
    return perform(rest);
  }
  rest >> name;
  if (command == "init") return name_of(cuInit(0));
  if (command == "version") {
    int version = 0;
    const CUresult result = cuDriverGetVersion(&version);
    return name_of(result) + " " + std::to_string(version);
  }
  if (command == "setenv") {
    std::string value;
    rest >> value;
    return ::setenv(name.c_str(), value.c_str(), 1) == 0 ? "SUCCESS" : "UNKNOWN";
  }
  if (command == "context") return name_of(context());
  if (command == "load") return name_of(load());
  if (command == "profile") return name_of(start_profiler());
  if (command == "reset") return name_of(cuDevicePrimaryCtxReset(0));
  if (command == "sync") return name_of(cuCtxSynchronize());
  if (command == "count") {
    int count = -1;
    const CUresult result = cuDeviceGetCount(&count);
    return name_of(result) + " " + std::to_string(count);
  }
  if (command == "free_bytes") {
    std::size_t free = 0, total = 0;
    const CUresult result = cuMemGetInfo(&free, &total);
    return name_of(result) + " " + std::to_string(free);
  }
  if (command == "total_bytes") {
    std::size_t total = 0;
    const CUresult result = cuDeviceTotalMem(&total, std::atoi(name.c_str()));
    return name_of(result) + " " + std::to_string(total);
  }
  if (command == "multiprocessors") {  // as the attribute has it, the device, and its context if there is one
    int attribute = 0;
    unsigned device = 0;
    if (const CUresult bad =
            cuDeviceGetAttribute(&attribute, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, std::atoi(name.c_str()));
        bad != CUDA_SUCCESS)
      return name_of(bad);
    if (const CUresult bad = multiprocessors(std::atoi(name.c_str()), device); bad != CUDA_SUCCESS) return name_of(bad);
    std::string text = "SUCCESS " + std::to_string(attribute) + " " + std::to_string(device);
    CUcontext context = nullptr;
    CUdevResource resource;
    if (cuCtxGetCurrent(&context) == CUDA_SUCCESS && context &&
        cuCtxGetDevResource(context, &resource, CU_DEV_RESOURCE_TYPE_SM) == CUDA_SUCCESS)
      text += " " + std::to_string(resource.sm.smCount);
    return text;
  }
  if (command == "green") {
    unsigned count = 0;
    const CUresult result = green_context(static_cast<unsigned>(std::atoi(name.c_str())), count);
    return name_of(result) + (result == CUDA_SUCCESS ? " " + std::to_string(count) : "");
  }
  if (command == "create") {
    CUcontext context;
    return name_of(cuCtxCreate(&context, nullptr, 0, 0));
  }
  if (command == "uuid") {
    CUuuid uuid{};
    const CUresult result = cuDeviceGetUuid(&uuid, std::atoi(name.c_str()));
    std::string text;
    for (const char byte : uuid.bytes) {
      char digits[3];
      std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(byte));
      text += digits;
    }
    return name_of(result) + " " + text;
  }
  if (command == "device") {
    char device[64] = "";
    const CUresult result = cuDeviceGetName(device, sizeof(device), std::atoi(name.c_str()));
    return name_of(result) + " " + device;
  }
  Block& block = blocks[name];
  if (command == "alloc") {
    std::size_t bytes = 0;
    rest >> bytes;
    block.bytes.resize(bytes);
    return name_of(cuMemAlloc(&block.address, bytes));
  }
  if (command == "make") {  // memory of cuMemCreate, whose handle is kept
    std::size_t bytes = 0;
    rest >> bytes;
    block.bytes.resize(bytes);
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    const CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle memory{};
    CUresult result = cuMemCreate(&memory, bytes, &properties, 0);
    if (result == CUDA_SUCCESS) result = cuMemAddressReserve(&block.address, bytes, 0, 0, 0);
    if (result == CUDA_SUCCESS) result = cuMemMap(block.address, bytes, 0, memory, 0);
    if (result == CUDA_SUCCESS) result = cuMemSetAccess(block.address, bytes, &access, 1);
    return name_of(result);
  }
  if (command == "array") {  // of so many bytes, in rows of 64 KiB
    std::size_t bytes = 0;
    rest >> bytes;
    const CUDA_ARRAY_DESCRIPTOR shape{16384, bytes >> 16, CU_AD_FORMAT_FLOAT, 1};
    CUarray array{};
    return name_of(cuArrayCreate(&array, &shape));
  }
  if (command == "pin") {  // page-locked memory, of the bytes that were last written to the block
    void* memory = nullptr;
    const CUresult result = cuMemHostAlloc(&memory, block.bytes.size(), 0);
    if (result != CUDA_SUCCESS) return name_of(result);
    std::memcpy(memory, block.bytes.data(), block.bytes.size());
    pinned[name] = static_cast<unsigned char*>(memory);
    return name_of(result);
  }
  if (command == "unpin") return name_of(cuMemFreeHost(pinned[name]));
  if (command == "write_pinned")
    return name_of(cuMemcpyHtoDAsync(block.address, pinned[name], block.bytes.size(), nullptr));
  if (command == "touch_pinned") {
    std::memset(pinned[name], 1, block.bytes.size());
    return "SUCCESS";
  }
  if (command == "free") return name_of(cuMemFree(block.address));
  if (command == "write") {
    int value = 0;
    rest >> value;
    block.bytes.assign(block.bytes.size(), static_cast<unsigned char>(value));
    return name_of(write(block));
  }
  if (command == "scatter") {  // random bytes, the same for the same number
    std::uint64_t word = 0;
    rest >> word;
    for (unsigned char& byte : block.bytes) {
      word = word * 6364136223846793005u + 1442695040888963407u;
      byte = static_cast<unsigned char>(word >> 56);
    }
    return name_of(write(block));
  }
  if (command == "map") {  // the begin of a file, privately
    std::string path;
    rest >> path;
    const int file = open(path.c_str(), O_RDONLY);
    void* const memory = mmap(nullptr, block.bytes.size(), PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    if (memory == MAP_FAILED) return "NO_MAPPING";
    mapped[name] = static_cast<unsigned char*>(memory);
    return "SUCCESS";
  }
  if (command == "write_mapped") {  // what is mapped to the block
    const CUresult result = cuMemcpyHtoD(block.address, mapped[name], block.bytes.size());
    std::memcpy(block.bytes.data(), mapped[name], block.bytes.size());
    return name_of(result);
  }
  if (command == "poke_mapped") {  // a byte of it, which may be written for just as long
    std::size_t at = 0;
    rest >> at;
    if (mprotect(mapped[name], block.bytes.size(), PROT_READ | PROT_WRITE) != 0) return "NO_MAPPING";
    mapped[name][at] = static_cast<unsigned char>(~mapped[name][at]);
    return mprotect(mapped[name], block.bytes.size(), PROT_READ) == 0 ? "SUCCESS" : "NO_MAPPING";
  }
  if (command == "rewrite") {  // the parts of a block, of so many bytes, one after the other and from the first on
                               // again: so many copies
    std::size_t bytes = 0, copies = 0;
    rest >> bytes >> copies;
    for (std::size_t i = 0; i < copies; ++i) {
      const std::size_t place = i * bytes % block.bytes.size();
      std::memset(&block.bytes[place], static_cast<int>(1 + i % 250), bytes);
      if (const CUresult bad = cuMemcpyHtoD(block.address + place, &block.bytes[place], bytes); bad != CUDA_SUCCESS)
        return name_of(bad) + " in copy " + std::to_string(i);
    }
    return "SUCCESS";
  }
  if (command == "check") {
    std::vector<unsigned char> now;
    const CUresult result = read(block, now);
    return name_of(result) + (result != CUDA_SUCCESS ? "" : now == block.bytes ? " same" : " different");
  }
  if (command == "digest") {  // of what is on the device: CRC-32
    std::vector<unsigned char> now;
    const CUresult result = read(block, now);
    std::uint32_t digest = 0xffffffff;
    for (const unsigned char byte : now) {
      digest ^= byte;
      for (int bit = 0; bit < 8; ++bit) digest = digest >> 1 ^ (digest & 1 ? 0xedb88320 : 0);
    }
    return name_of(result) + " " + std::to_string(~digest);
  }
  if (command == "address") return "SUCCESS " + std::to_string(block.address);
  if (command == "export") {  // a block, for other processes
    CUipcMemHandle handle{};
    const CUresult result = cuIpcGetMemHandle(&handle, block.address);
    std::string text;
    for (const char byte : handle.reserved) {
      char digits[3];
      std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(byte));
      text += digits;
    }
    return name_of(result) + " " + text;
  }
  if (command == "open") {  // a block of another process, of the size that the one of this name has
    std::string text;
    rest >> text;
    CUipcMemHandle handle{};
    for (std::size_t i = 0; i < sizeof handle.reserved && 2 * i + 1 < text.size(); ++i)
      handle.reserved[i] = static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
    return name_of(cuIpcOpenMemHandle(&block.address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  }
  if (command == "close") return name_of(cuIpcCloseMemHandle(block.address));
  if (command == "launch") return name_of(launch(fill, block));
  if (command == "crash") return name_of(launch(crash, block));
  if (command == "hang") return name_of(launch(hang, block));
  if (command == "write_forever") return name_of(forever([&] { return write(block); }));
  if (command == "read_forever") {
    std::vector<unsigned char> now;
    return name_of(forever([&] { return read(block, now); }));
  }
  if (command == "work_forever") return name_of(forever([&] { return work(block); }));
  if (command == "launch_forever") return name_of(forever([&] { return launch(fill, block); }));
  return "no such command";
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    if (line.rfind("exit ", 0) == 0) return std::atoi(line.c_str() + 5);
    std::istringstream words(line);
    say(perform(words));
  }
  return 0;
}
