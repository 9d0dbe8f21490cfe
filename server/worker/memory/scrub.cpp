#include "scrub.h"

#include <sys/random.h>

#include <algorithm>
#include <vector>

#include "device_memory.h"
#include "protocol/copy.h"
#include "protocol/extent.h"

namespace fargpu::server {
namespace {

// So many addresses that a place among them cannot be guessed: four million places. Where neither windows nor what the
// driver places by itself lie, if that can be had. (Drivers were seen to keep to wishes for ranges as large as this,
// and not always for small ones.)
constexpr std::uint64_t region_bytes = std::uint64_t{1} << 43;
constexpr CUdeviceptr region_wishes[] = {0x6000'0000'0000, 0x2000'0000'0000, 0x4000'0000'0000, 0};
constexpr int places_tried = 8;
constexpr std::uint64_t zeros_bytes = 4u << 20;  // more than a row of the widest array
constexpr int most_urgent = -100;                // the driver takes its most urgent priority for it

/// A context of the device, current to this thread, which has none of its own.
class Entered {
 public:
  Entered(DriverTable& driver, CUcontext context, int device) : driver_(driver), device_(device) {
    if (!context) {  // none yet: the primary one, for this alone
      result_ = driver_.cuDevicePrimaryCtxRetain(&context, device);
      retained_ = result_ == CUDA_SUCCESS;
    }
    if (result_ == CUDA_SUCCESS) result_ = driver_.cuCtxSetCurrent(context);
  }
  Entered(const Entered&) = delete;
  Entered& operator=(const Entered&) = delete;
  ~Entered() {
    driver_.cuCtxSetCurrent(nullptr);
    if (retained_) driver_.cuDevicePrimaryCtxRelease_v2(device_);
  }
  CUresult result() const { return result_; }

 private:
  DriverTable& driver_;
  const int device_;
  CUresult result_ = CUDA_SUCCESS;
  bool retained_ = false;
};

/// A stream of its own, so that what the session does is not waited for.
class OwnStream {
 public:
  explicit OwnStream(DriverTable& driver)
      : driver_(driver), made_(driver.cuStreamCreateWithPriority(&stream_, CU_STREAM_NON_BLOCKING, most_urgent)) {}
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  ~OwnStream() {
    if (made_ == CUDA_SUCCESS) driver_.cuStreamDestroy_v2(stream_);
  }
  CUresult made() const { return made_; }
  operator CUstream() const { return stream_; }

 private:
  DriverTable& driver_;
  CUstream stream_ = nullptr;
  const CUresult made_;
};

CUresult fill_with_zeros(DriverTable& driver, CUdeviceptr address, std::uint64_t bytes) {
  const OwnStream stream(driver);
  if (stream.made() != CUDA_SUCCESS) return stream.made();
  const CUresult given = driver.cuMemsetD8Async(address, 0, bytes, stream);
  const CUresult done = driver.cuStreamSynchronize(stream);  // in any case: the address goes away
  return given != CUDA_SUCCESS ? given : done;
}

}  // namespace

Scrubber::~Scrubber() {
  if (region_ != 0) driver_.cuMemAddressFree(region_, region_bytes);
}

bool Scrubber::reserve() {
  const std::lock_guard lock(mutex_);
  for (const CUdeviceptr wish : region_wishes) {
    if (region_ != 0) break;
    CUdeviceptr got = 0;
    if (driver_.cuMemAddressReserve(&got, region_bytes, 0, wish, 0) != CUDA_SUCCESS) continue;
    if (wish == 0 || got == wish) region_ = got;
    else driver_.cuMemAddressFree(got, region_bytes);
  }
  return region_ != 0;
}

// Other memory may be there at the moment.
CUresult Scrubber::put_somewhere(CUmemGenericAllocationHandle handle, std::uint64_t bytes, CUdeviceptr& address) {
  if (bytes >= region_bytes || !reserve()) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
  for (int i = 0; i < places_tried && result != CUDA_SUCCESS; ++i) {
    std::uint64_t random = 0;
    if (::getrandom(&random, sizeof(random), 0) != sizeof(random)) return CUDA_ERROR_OPERATING_SYSTEM;
    address = region_ + random % ((region_bytes - bytes) / DeviceMemory::granularity) * DeviceMemory::granularity;
    result = driver_.cuMemMap(address, bytes, 0, handle, 0);
  }
  return result;
}

CUresult Scrubber::fill(CUcontext context, int device, CUmemGenericAllocationHandle handle, std::uint64_t bytes) {
  const Entered entered(driver_, context, device);
  if (entered.result() != CUDA_SUCCESS) return entered.result();
  CUdeviceptr address = 0;
  if (const CUresult put = put_somewhere(handle, bytes, address); put != CUDA_SUCCESS) return put;
  CUmemAccessDesc access{};
  access.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CUresult result = driver_.cuMemSetAccess(address, bytes, &access, 1);
  if (result == CUDA_SUCCESS) result = fill_with_zeros(driver_, address, bytes);
  const CUresult unmapped = driver_.cuMemUnmap(address, bytes);
  return result != CUDA_SUCCESS ? result : unmapped;
}

bool can_scrub(const CUDA_ARRAY3D_DESCRIPTOR& array) { return element_bytes(array.Format, array.NumChannels) != 0; }

// There is no memset of arrays: zeros are copied in, as many slices or rows at once as there are zeros for.
CUresult scrub(DriverTable& driver, CUarray array) {
  CUDA_ARRAY3D_DESCRIPTOR description{};
  if (const CUresult asked = driver.cuArray3DGetDescriptor_v2(&description, array); asked != CUDA_SUCCESS) return asked;
  const std::uint64_t row = description.Width * element_bytes(description.Format, description.NumChannels);
  const std::uint64_t rows = std::max<std::uint64_t>(1, description.Height),
                      slices = std::max<std::uint64_t>(1, description.Depth);
  if (row == 0 || row > zeros_bytes) return CUDA_ERROR_NOT_SUPPORTED;
  const std::uint64_t rows_at_once = std::min(rows, zeros_bytes / row);
  const std::uint64_t slices_at_once = rows_at_once < rows ? 1 : std::min(slices, zeros_bytes / (row * rows));
  const std::vector<std::byte> zeros(row * rows_at_once * slices_at_once);
  const OwnStream stream(driver);
  if (stream.made() != CUDA_SUCCESS) return stream.made();
  CUresult result = CUDA_SUCCESS;
  for (std::uint64_t z = 0; z < slices; z += slices_at_once) {
    for (std::uint64_t y = 0; y < rows && result == CUDA_SUCCESS; y += rows_at_once) {
      const CopyShape shape{row, std::min(rows_at_once, rows - y), std::min(slices_at_once, slices - z)};
      const CopySide target{
          .kind = CopySide::Kind::array, .place = reinterpret_cast<std::uint64_t>(array), .y = y, .z = z};
      const auto copy = cuda_copy<CUDA_MEMCPY3D>(shape, CopySide::packed_at(zeros.data(), shape), target);
      result = driver.cuMemcpy3DAsync_v2(&copy, stream);
    }
  }
  const CUresult done = driver.cuStreamSynchronize(stream);
  return result != CUDA_SUCCESS ? result : done;
}

CUresult scrub(DriverTable& driver, CUmipmappedArray mipmap, unsigned levels) {
  CUresult result = CUDA_SUCCESS;
  for (unsigned level = 0; level < levels && result == CUDA_SUCCESS; ++level) {
    CUarray array{};
    result = driver.cuMipmappedArrayGetLevel(&array, mipmap, level);
    if (result == CUDA_SUCCESS) result = scrub(driver, array);
  }
  return result;
}

}  // namespace fargpu::server
