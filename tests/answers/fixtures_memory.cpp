// Memory of all kinds, pools, mappings, and what describes them.

#include "fixtures.h"
#include <sys/mman.h>
#include <unistd.h>

namespace answers {

namespace {

Slot device_memory(World& w) {
  CUdeviceptr made;
  MUST(cuMemAlloc(&made, memory_bytes));
  w.at_end([made] { (void)cuMemFree(made); });
  MUST(cuMemsetD8(made, memory_byte, memory_bytes));
  MUST(cuCtxSynchronize());  // streams of cases do not wait for others
  return slot_of(made);
}
Slot ranged(World& w, CUdeviceptr made, const char* name, std::size_t bytes) {
  w.name(made, name, bytes);
  return slot_of(made);
}
CUmemAllocationProp allocation_of_device(CUmemAllocationHandleType handles = CU_MEM_HANDLE_TYPE_NONE) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = location_of(CU_MEM_LOCATION_TYPE_DEVICE);
  prop.requestedHandleTypes = handles;
  return prop;
}
CUmemGenericAllocationHandle allocation(World& w, CUmemAllocationHandleType handles = CU_MEM_HANDLE_TYPE_NONE) {
  const CUmemAllocationProp prop = allocation_of_device(handles);
  CUmemGenericAllocationHandle made;
  MUST(cuMemCreate(&made, piece_bytes, &prop, 0));
  w.at_end([made] { (void)cuMemRelease(made); });
  return made;
}
CUdeviceptr reservation(World& w) {
  CUdeviceptr made;
  MUST(cuMemAddressReserve(&made, piece_bytes, 0, 0, 0));
  w.at_end([made] { (void)cuMemAddressFree(made, piece_bytes); });
  return made;
}
Slot pool(World& w, CUmemAllocationHandleType handles) {
  const CUmemPoolProps props = pool_of(CU_MEM_LOCATION_TYPE_DEVICE, handles);
  CUmemoryPool made;
  MUST(cuMemPoolCreate(&made, &props));
  w.at_end([made] { (void)cuMemPoolDestroy(made); });
  return slot_of(made);
}

}  // namespace

CUmemLocation location_of(CUmemLocationType type) {
  CUmemLocation location{};
  location.type = type;
  return location;
}
CUmemAccessDesc access_of_device() {
  CUmemAccessDesc access{};
  access.location = location_of(CU_MEM_LOCATION_TYPE_DEVICE);
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return access;
}
CUmemPoolProps pool_of(CUmemLocationType type, CUmemAllocationHandleType handles) {
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.handleTypes = handles;
  props.location = location_of(type);
  return props;
}

void add_memory(Makers& makers) {
  makers.insert({
      {"memory", [](World& w) { return ranged(w, device_memory(w).get<CUdeviceptr>(), "memory", memory_bytes); }},
      {"memory2", [](World& w) { return ranged(w, device_memory(w).get<CUdeviceptr>(), "memory2", memory_bytes); }},
      {"zeroed",
       [](World& w) {
         const CUdeviceptr made = device_memory(w).get<CUdeviceptr>();
         MUST(cuMemsetD8(made, 0, memory_bytes));
         MUST(cuCtxSynchronize());
         return ranged(w, made, "zeroed", memory_bytes);
       }},
      {"managed",
       [](World& w) {
         CUdeviceptr made;
         MUST(cuMemAllocManaged(&made, memory_bytes, CU_MEM_ATTACH_GLOBAL));
         w.at_end([made] { (void)cuMemFree(made); });
         return ranged(w, made, "managed", memory_bytes);
       }},
      {"async_memory",
       [](World& w) {
         CUdeviceptr made;
         MUST(cuMemAllocAsync(&made, memory_bytes, w.get<CUstream>("stream")));
         w.at_end([made] { (void)cuMemFreeAsync(made, nullptr); });
         return ranged(w, made, "async_memory", memory_bytes);
       }},
      {"pinned",
       [](World& w) {
         void* made;
         MUST(cuMemHostAlloc(&made, memory_bytes, 0));
         w.at_end([made] { (void)cuMemFreeHost(made); });
         return ranged(w, reinterpret_cast<CUdeviceptr>(made), "pinned", memory_bytes);
       }},
      {"pages",
       [](World& w) {
         void* made = ::mmap(nullptr, 2 * memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
         if (made == MAP_FAILED) throw NoFixture("mmap");
         w.at_end([made] {
           (void)cuMemHostUnregister(made);
           ::munmap(made, 2 * memory_bytes);
         });
         return ranged(w, reinterpret_cast<CUdeviceptr>(made), "pages", 2 * memory_bytes);
       }},
      {"registered",
       [](World& w) {
         void* made = w.get<void*>("pages");
         MUST(cuMemHostRegister(made, memory_bytes, 0));
         return slot_of(made);
       }},
      {"host",
       [](World& w) {
         unsigned char* made = w.memory(memory_bytes);
         for (std::size_t i = 0; i < memory_bytes; ++i) made[i] = static_cast<unsigned char>(i * 7 + 1);
         return slot_of(made);
       }},
      {"allocation", [](World& w) { return slot_of(allocation(w)); }},
      {"exportable", [](World& w) { return slot_of(allocation(w, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)); }},
      {"descriptor",
       [](World& w) {
         int file;
         MUST(cuMemExportToShareableHandle(&file, w.get<CUmemGenericAllocationHandle>("exportable"),
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
         w.at_end([file] { ::close(file); });
         return slot_of(std::intptr_t{file});
       }},
      {"reservation", [](World& w) { return ranged(w, reservation(w), "reservation", piece_bytes); }},
      {"mapped",
       [](World& w) {
         const CUdeviceptr made = reservation(w);
         MUST(cuMemMap(made, piece_bytes, 0, w.get<CUmemGenericAllocationHandle>("allocation"), 0));
         w.at_end([made] { (void)cuMemUnmap(made, piece_bytes); });
         const CUmemAccessDesc access = access_of_device();
         MUST(cuMemSetAccess(made, piece_bytes, &access, 1));
         return ranged(w, made, "mapped", piece_bytes);
       }},
      {"access", [](World& w) { return pointer_to(w, access_of_device()); }},
      {"allocation_prop", [](World& w) { return pointer_to(w, allocation_of_device()); }},
      {"location", [](World&) { return slot_of(location_of(CU_MEM_LOCATION_TYPE_DEVICE)); }},
      {"location_pointer", [](World& w) { return pointer_to(w, location_of(CU_MEM_LOCATION_TYPE_DEVICE)); }},
      {"location_host", [](World& w) { return pointer_to(w, location_of(CU_MEM_LOCATION_TYPE_HOST)); }},
      {"pool", [](World& w) { return pool(w, CU_MEM_HANDLE_TYPE_NONE); }},
      {"shared_pool", [](World& w) { return pool(w, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR); }},
      {"shared_pool_memory",
       [](World& w) {
         CUdeviceptr made;
         MUST(cuMemAllocFromPoolAsync(&made, memory_bytes, w.get<CUmemoryPool>("shared_pool"),
                                      w.get<CUstream>("stream")));
         w.at_end([made] { (void)cuMemFreeAsync(made, nullptr); });
         return slot_of(made);
       }},
      {"pointer_export",
       [](World& w) {
         auto* made = w.zeroed<CUmemPoolPtrExportData>();
         MUST(cuMemPoolExportPointer(made, w.get<CUdeviceptr>("shared_pool_memory")));
         return slot_of(made);
       }},
      {"pool_props", [](World& w) { return pointer_to(w, pool_of(CU_MEM_LOCATION_TYPE_DEVICE)); }},
      {"pool_props_host", [](World& w) { return pointer_to(w, pool_of(CU_MEM_LOCATION_TYPE_HOST)); }},
      {"pool_props_shared",
       [](World& w) {
         return pointer_to(w, pool_of(CU_MEM_LOCATION_TYPE_DEVICE, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
       }},
      {"memory_handle",
       [](World& w) {
         CUipcMemHandle made;
         MUST(cuIpcGetMemHandle(&made, w.get<CUdeviceptr>("memory")));
         return slot_of(made);
       }},
      {"memory_list", [](World& w) { return slot_of(w.list<CUdeviceptr>({w.get<CUdeviceptr>("memory")})); }},
      {"memory_list2", [](World& w) { return slot_of(w.list<CUdeviceptr>({w.get<CUdeviceptr>("memory2")})); }},
      {"managed_list", [](World& w) { return slot_of(w.list<CUdeviceptr>({w.get<CUdeviceptr>("managed")})); }},
      {"memory_operation", [](World& w) { return pointer_to(w, write_value(w)); }},
      {"copy_attributes",
       [](World& w) {
         CUmemcpyAttributes a{};
         a.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
         return pointer_to(w, a);
       }},
      {"copy_batch",
       [](World& w) {
         CUDA_MEMCPY3D_BATCH_OP p{};
         p.src.type = p.dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
         p.src.op.ptr.ptr = w.get<CUdeviceptr>("memory2");
         p.dst.op.ptr.ptr = w.get<CUdeviceptr>("memory");
         p.src.op.ptr.locHint = p.dst.op.ptr.locHint = location_of(CU_MEM_LOCATION_TYPE_DEVICE);
         p.extent = {32, 2, 1};
         p.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
         return pointer_to(w, p);
       }},
      {"decompression",
       [](World& w) {
         CUmemDecompressParams p{};
         p.algo = CU_MEM_DECOMPRESS_ALGORITHM_DEFLATE;
         p.src = reinterpret_cast<void*>(w.get<CUdeviceptr>("memory2"));
         p.dst = reinterpret_cast<void*>(w.get<CUdeviceptr>("memory"));
         p.srcNumBytes = 64;
         p.dstNumBytes = 128;
         return pointer_to(w, p);
       }},
      {"map_info", [](World& w) { return pointer_to(w, CUarrayMapInfo{}); }},
  });
}

}  // namespace answers
