// Resources of devices, of which green contexts are made. The driver's structs stay here: what is in them only the
// driver may say.

#include <algorithm>
#include <vector>

#include "server/worker/session/session.h"
#include "server_hand.h"

namespace fargpu::server::hand {
namespace {

void write_resource(Session& session, const CUdevResource& resource, wire::Resource::Builder out) {
  out.setType(resource.type);
  if (resource.type == CU_DEV_RESOURCE_TYPE_INVALID) return;
  out.setNumber(session.resources().add(resource));
  out.setProcessors(resource.sm.smCount);
  out.setSmallestPart(resource.sm.minSmPartitionSize);
  out.setAlignment(resource.sm.smCoscheduledAlignment);
}

}  // namespace

Outcome deviceResource(Session& session, Call& call, wire::DeviceResource::Reader in) {
  const auto type = static_cast<CUdevResourceType>(in.getType());
  DriverTable& driver = session.driver();
  CUdevResource resource{};
  CUresult result;
  if (in.getOf().isDevice()) {
    const int device = session.contexts().driver_ordinal(in.getOf().getDevice());
    if (device < 0) return CUDA_ERROR_INVALID_DEVICE;
    if (Partition* const part = session.contexts().partition(
            in.getOf().getDevice())) {  // which is the device, as far as programs are concerned
      result = part->open();
      if (result == CUDA_SUCCESS) result = driver.cuGreenCtxGetDevResource(part->green(), &resource, type);
    } else {
      result = driver.cuDeviceGetDevResource(device, &resource, type);
    }
  } else {
    const ContextState* const context = session.contexts().find(Handle(in.getOf().getContext()));
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    const CUgreenCtx green = context->green ? context->green : context->part;
    result = green ? driver.cuGreenCtxGetDevResource(green, &resource, type)
                   : driver.cuCtxGetDevResource(context->cuda, &resource, type);
  }
  if (result != CUDA_SUCCESS) return result;
  if (session.resources().full()) return CUDA_ERROR_OUT_OF_MEMORY;
  write_resource(session, resource, call.out<wire::DeviceResourceReply>().initResource());
  return result;
}

Outcome splitResource(Session& session, Call& call, wire::SplitResource::Reader in) {
  constexpr unsigned groups_max = 1024;  // more than any device has processors
  const CUdevResource* const resource = session.resources().find(in.getResource());
  if (!resource) return CUDA_ERROR_INVALID_VALUE;
  if (session.resources().full()) return CUDA_ERROR_OUT_OF_MEMORY;
  unsigned count = std::min(in.getGroups(), groups_max);
  std::vector<CUdevResource> groups(count);
  CUdevResource rest{};
  const CUresult result =
      session.driver().cuDevSmResourceSplitByCount(in.getSimulate() ? nullptr : groups.data(), &count, resource,
                                                   in.getRest() ? &rest : nullptr, in.getFlags(), in.getSmallest());
  if (result != CUDA_SUCCESS) return result;
  auto out = call.out<wire::SplitResourceReply>();
  out.setCount(count);
  if (!in.getSimulate()) {
    groups.resize(std::min<std::size_t>(count, groups.size()));
    auto list = out.initGroups(static_cast<unsigned>(groups.size()));
    for (unsigned i = 0; i < groups.size(); ++i) write_resource(session, groups[i], list[i]);
  }
  if (in.getRest()) write_resource(session, rest, out.initRest());
  return result;
}

Outcome describeResources(Session& session, Call& call, wire::DescribeResources::Reader in) {
  std::vector<CUdevResource> resources;
  for (const std::uint64_t number : in.getResources()) {
    const CUdevResource* const resource = session.resources().find(number);
    if (!resource) return CUDA_ERROR_INVALID_VALUE;
    resources.push_back(*resource);
    list_size(resources.size());
  }
  if (resources.empty()) return CUDA_ERROR_INVALID_VALUE;
  session.objects().handles().require_room(HandleKind::resourcedesc);
  CUdevResourceDesc description{};
  const CUresult result = session.driver().cuDevResourceGenerateDesc(&description, resources.data(),
                                                                     static_cast<unsigned>(resources.size()));
  if (result == CUDA_SUCCESS)
    call.out<wire::DescribeResourcesReply>().setDescription(
        session.objects().reveal(HandleKind::resourcedesc, description, call).value());
  return result;
}

}  // namespace fargpu::server::hand
