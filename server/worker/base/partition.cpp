#include "partition.h"

#include <algorithm>
#include <string>

#include "driver_library.h"
#include "server/sm_groups.h"

namespace fargpu::server {
namespace {

// How many there are only the driver knows: of 132 multiprocessors it makes 15 groups and a rest of 12 (measured,
// H200).
CUresult split(DriverTable& driver, CUdevice device, std::vector<CUdevResource>& groups) {
  CUdevResource whole{};
  if (const CUresult asked = driver.cuDeviceGetDevResource(device, &whole, CU_DEV_RESOURCE_TYPE_SM);
      asked != CUDA_SUCCESS)
    return asked;
  unsigned count = std::min(whole.sm.smCount / sm_group_size, sm_groups_max);
  groups.resize(count);
  if (count == 0) return CUDA_SUCCESS;
  const CUresult result = driver.cuDevSmResourceSplitByCount(groups.data(), &count, &whole, nullptr, 0, sm_group_size);
  groups.resize(result == CUDA_SUCCESS ? std::min<std::size_t>(count, groups.size()) : 0);
  return result;
}

}  // namespace

unsigned count_sm_groups(DriverTable& driver, CUdevice device) {
  std::vector<CUdevResource> groups;
  split(driver, device, groups);
  return static_cast<unsigned>(groups.size());
}

std::vector<CUdevResource> choose_sm_groups(DriverTable& driver, CUdevice device,
                                            const std::vector<unsigned>& numbers) {
  std::vector<CUdevResource> all, chosen;
  if (const CUresult result = split(driver, device, all); result != CUDA_SUCCESS) {
    const char* name = "?";
    driver.cuGetErrorName(result, &name);
    throw DriverError("the driver does not divide the multiprocessors of device " + std::to_string(device) + ": " +
                      name);
  }
  for (const unsigned number : numbers) {
    if (number >= all.size())
      throw DriverError("device " + std::to_string(device) + " has " + std::to_string(all.size()) +
                        " groups of multiprocessors, and not number " + std::to_string(number));
    chosen.push_back(all[number]);
  }
  return chosen;
}

unsigned processors_of(const std::vector<CUdevResource>& groups) {
  unsigned count = 0;
  for (const CUdevResource& group : groups) count += group.sm.smCount;
  return count;
}

CUresult Partition::open() {
  if (green_) return CUDA_SUCCESS;
  CUdevResourceDesc description{};
  CUgreenCtx green = nullptr;
  CUresult result =
      driver_.cuDevResourceGenerateDesc(&description, groups_.data(), static_cast<unsigned>(groups_.size()));
  if (result == CUDA_SUCCESS)
    result = driver_.cuGreenCtxCreate(&green, description, device_, CU_GREEN_CTX_DEFAULT_STREAM);
  if (result != CUDA_SUCCESS) return result;
  result = driver_.cuCtxFromGreenCtx(&cuda_, green);
  if (result == CUDA_SUCCESS) green_ = green;
  else driver_.cuGreenCtxDestroy(green);
  return result;
}

void Partition::close() {
  if (green_) driver_.cuGreenCtxDestroy(green_);
  green_ = nullptr;
  cuda_ = nullptr;
}

}  // namespace fargpu::server
