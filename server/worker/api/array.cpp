// Arrays are charged for what they will take before they are made.

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "protocol/extent.h"
#include "server/worker/memory/scrub.h"
#include "server/worker/session/session.h"
#include "server_hand.h"
#include "struct_codecs.h"

namespace fargpu::server::hand {
namespace {

// Where the driver does not say what an array takes: what its elements do. No format has larger ones than this.
constexpr std::uint64_t element_bytes_max = 16;

std::uint64_t least_bytes(const CUDA_ARRAY3D_DESCRIPTOR& array, unsigned levels) {
  const std::uint64_t element = element_bytes(array.Format, array.NumChannels);
  const std::uint64_t rows = extent_of_rows(array.Height ? array.Height : 1, array.Depth ? array.Depth : 1, 1, 0);
  const std::uint64_t row = extent_of_rows(array.Width, element ? element : element_bytes_max, 1, 0);
  // All further levels together are smaller than the first.
  return extent_of_rows(row, rows, levels > 1 ? 2 : 1, extent_of_rows(row, rows, 1, 0));
}

// The driver tells what arrays take, not what they would. A twin of the array, into which memory would have to be
// mapped, takes none.
std::uint64_t bytes_of_array(DriverTable& driver, const CUDA_ARRAY3D_DESCRIPTOR& array, CUdevice device) {
  CUDA_ARRAY3D_DESCRIPTOR description = array;
  description.Flags |= CUDA_ARRAY3D_DEFERRED_MAPPING;
  CUarray twin{};
  CUDA_ARRAY_MEMORY_REQUIREMENTS needs{};
  if (driver.cuArray3DCreate_v2(&twin, &description) != CUDA_SUCCESS) return least_bytes(array, 1);
  const CUresult asked = driver.cuArrayGetMemoryRequirements(&needs, twin, device);
  driver.cuArrayDestroy(twin);
  return asked == CUDA_SUCCESS ? needs.size : least_bytes(array, 1);
}

std::uint64_t bytes_of_mipmap(DriverTable& driver, const CUDA_ARRAY3D_DESCRIPTOR& array, unsigned levels,
                              CUdevice device) {
  CUDA_ARRAY3D_DESCRIPTOR description = array;
  description.Flags |= CUDA_ARRAY3D_DEFERRED_MAPPING;
  CUmipmappedArray twin{};
  CUDA_ARRAY_MEMORY_REQUIREMENTS needs{};
  if (driver.cuMipmappedArrayCreate(&twin, &description, levels) != CUDA_SUCCESS) return least_bytes(array, levels);
  const CUresult asked = driver.cuMipmappedArrayGetMemoryRequirements(&needs, twin, device);
  driver.cuMipmappedArrayDestroy(twin);
  return asked == CUDA_SUCCESS ? needs.size : least_bytes(array, levels);
}

// Memory is mapped into such arrays later, and charged where it is made.
bool takes_nothing(const CUDA_ARRAY3D_DESCRIPTOR& array) {
  return (array.Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) != 0;
}

// What all kinds of arrays have in common: how they are made, scrubbed and given up.
template <class Object>
struct Making {
  HandleKind kind;
  std::uint64_t bytes;
  std::function<CUresult(Object*)> create;
  std::function<CUresult(Object)> scrub;
  std::function<void(Object)> destroy;
};

template <class Reply, class Object>
Outcome make(Session& session, Call& call, const CUDA_ARRAY3D_DESCRIPTOR& array, Making<Object> making) {
  session.objects().handles().require_room(making.kind);
  const bool scrubs = session.options().scrub && making.bytes != 0;
  std::shared_ptr<Charge> charge =
      Charge::take(session.ledger(), session.contexts().find(call.id().context)->device, making.bytes);
  if (!charge) return CUDA_ERROR_OUT_OF_MEMORY;
  Object object{};
  if (const CUresult result = making.create(&object); result != CUDA_SUCCESS)
    return result == CUDA_ERROR_OUT_OF_MEMORY ? session.wait_for_room(call, {charge->device(), making.bytes})
                                              : Outcome(result);
  if (scrubs && !can_scrub(array)) {  // what the driver refuses it refuses in its own words
    making.destroy(object);
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  const auto reveal = [&session, kind = making.kind, destroy = making.destroy, object, charge, id = call.id()] {
    const Handle handle = session.objects().reveal_made(kind, object, id, [&] { destroy(object); });
    session.objects().charge(handle, charge);
    return handle.value();
  };
  if (!scrubs) {
    call.out<Reply>().setPHandle(reveal());
    return CUDA_SUCCESS;
  }
  return session.aside_reply(
      call, [scrub = making.scrub, object] { return scrub(object); },
      [reveal, destroy = making.destroy, object](CUresult result, MessageWriter& writer) {
        if (result == CUDA_SUCCESS) writer.root<Reply>().setPHandle(reveal());
        else destroy(object);
        return result;
      });
}

Making<CUarray> plain_array(DriverTable& driver, std::uint64_t bytes, std::function<CUresult(CUarray*)> create) {
  return {HandleKind::array, bytes, std::move(create), [&driver](CUarray made) { return scrub(driver, made); },
          [&driver](CUarray made) { driver.cuArrayDestroy(made); }};
}

CUdevice device_of(Session& session, const Call& call) {
  return session.contexts().driver_ordinal(session.contexts().find(call.id().context)->device);
}

}  // namespace

Outcome cuArrayCreate_v2(Session& session, Call& call, wire::CuArrayCreateV2::Reader in) {
  DriverTable& driver = session.driver();
  CUDA_ARRAY_DESCRIPTOR array{};
  decode(in.getPAllocateArray(), array);
  const CUDA_ARRAY3D_DESCRIPTOR full{array.Width, array.Height, 0, array.Format, array.NumChannels, 0};
  const std::uint64_t bytes = bytes_of_array(driver, full, device_of(session, call));
  return make<wire::CuArrayCreateV2Reply>(session, call, full, plain_array(driver, bytes, [&](CUarray* out) {
                                            return driver.cuArrayCreate_v2(out, &array);
                                          }));
}

Outcome cuArray3DCreate_v2(Session& session, Call& call, wire::CuArray3DCreateV2::Reader in) {
  DriverTable& driver = session.driver();
  CUDA_ARRAY3D_DESCRIPTOR array{};
  decode(in.getPAllocateArray(), array);
  const std::uint64_t bytes = takes_nothing(array) ? 0 : bytes_of_array(driver, array, device_of(session, call));
  return make<wire::CuArray3DCreateV2Reply>(session, call, array, plain_array(driver, bytes, [&](CUarray* out) {
                                              return driver.cuArray3DCreate_v2(out, &array);
                                            }));
}

Outcome cuMipmappedArrayCreate(Session& session, Call& call, wire::CuMipmappedArrayCreate::Reader in) {
  DriverTable& driver = session.driver();
  CUDA_ARRAY3D_DESCRIPTOR array{};
  decode(in.getPMipmappedArrayDesc(), array);
  const unsigned levels = in.getNumMipmapLevels();
  const std::uint64_t bytes =
      takes_nothing(array) ? 0 : bytes_of_mipmap(driver, array, levels, device_of(session, call));
  // As many as lead to one element, whatever is asked for.
  const auto most =
      static_cast<unsigned>(std::bit_width(std::max({array.Width, array.Height, array.Depth, std::size_t{1}})));
  return make<wire::CuMipmappedArrayCreateReply>(
      session, call, array,
      Making<CUmipmappedArray>{
          HandleKind::mipmap, bytes,
          [&](CUmipmappedArray* out) { return driver.cuMipmappedArrayCreate(out, &array, levels); },
          [&driver, scrubbed = std::clamp(levels, 1u, most)](CUmipmappedArray made) {
            return scrub(driver, made, scrubbed);
          },
          [&driver](CUmipmappedArray made) { driver.cuMipmappedArrayDestroy(made); }});
}

namespace {

HeldCharges::Place place_of(wire::ArrayMapping::Reader item) {
  if (item.isTail()) {
    const auto tail = item.getTail();
    return {1, tail.getLayer(), tail.getOffset(), tail.getBytes()};
  }
  const auto level = item.getLevel();
  return {0,
          level.getLevel(),
          level.getLayer(),
          level.getX(),
          level.getY(),
          level.getZ(),
          level.getWidth(),
          level.getHeight(),
          level.getDepth()};
}

// An array has what a stream mapped into it until a later list of that stream takes it out again, or puts something
// else into just that place, and the stream has passed that. Where the stream fails or is destroyed before, the array
// has it for as long as it lives.
void charge_arrays(Session& session, wire::MapArrays::Reader in, const std::vector<CUarrayMapInfo>& list,
                   StreamState& stream) {
  std::vector<std::pair<std::weak_ptr<HeldCharges>, std::shared_ptr<Charge>>> leaving;
  for (unsigned i = 0; i < list.size(); ++i) {
    const auto item = in.getItems()[i];
    const std::shared_ptr<HeldCharges> held =
        session.objects().charges_of(Handle(item.getMipmap() != 0 ? item.getMipmap() : item.getArray()));
    auto gone = held->map(place_of(item),
                          item.getAllocation() != 0 ? session.memory().charge_of(list[i].memHandle.memHandle) : nullptr,
                          {stream.context->id, stream.handle, stream.submitted});
    if (gone) leaving.emplace_back(held, std::move(gone));
  }
  if (leaving.empty()) return;
  const auto passed = [leaving = std::move(leaving)](CUresult result) {
    if (result == CUDA_SUCCESS) return;
    for (const auto& [array, charge] : leaving)
      if (const auto still = array.lock()) still->keep(charge);
  };
  session.completions().after(stream, Completions::Kind::release, passed);
}

}  // namespace

Outcome mapArrays(Session& session, Call&, wire::MapArrays::Reader in, StreamState& stream) {
  const auto items = in.getItems();
  if (items.size() == 0) return CUDA_ERROR_INVALID_VALUE;
  const int device = session.contexts().driver_ordinal(stream.context->device);
  if (device < 0 || device >= std::numeric_limits<unsigned>::digits) return CUDA_ERROR_INVALID_DEVICE;
  std::vector<CUarrayMapInfo> list(list_size(items.size()));
  for (unsigned i = 0; i < list.size(); ++i) {
    CUarrayMapInfo& to = list[i];
    const auto from = items[i];
    if (from.getMipmap() != 0) {
      to.resourceType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
      if (!session.objects().resolve(HandleKind::mipmap, from.getMipmap(), to.resource.mipmap))
        return Objects::invalid(HandleKind::mipmap);
    } else {
      to.resourceType = CU_RESOURCE_TYPE_ARRAY;
      if (!session.objects().resolve(HandleKind::array, from.getArray(), to.resource.array))
        return Objects::invalid(HandleKind::array);
    }
    if (from.isLevel()) {
      const auto level = from.getLevel();
      to.subresourceType = CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL;
      to.subresource.sparseLevel = {level.getLevel(), level.getLayer(), level.getX(),      level.getY(),
                                    level.getZ(),     level.getWidth(), level.getHeight(), level.getDepth()};
    } else {
      const auto tail = from.getTail();
      to.subresourceType = CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL;
      to.subresource.miptail = {tail.getLayer(), tail.getOffset(), tail.getBytes()};
    }
    to.memHandleType = CU_MEM_HANDLE_TYPE_GENERIC;
    to.memOperationType = from.getAllocation() != 0 ? CU_MEM_OPERATION_TYPE_MAP : CU_MEM_OPERATION_TYPE_UNMAP;
    if (from.getAllocation() != 0) {
      if (!session.objects().resolve(HandleKind::allocation, from.getAllocation(), to.memHandle.memHandle))
        return Objects::invalid(HandleKind::allocation);
      if (from.getOffset() >= session.memory().charge_of(to.memHandle.memHandle)->bytes())
        return CUDA_ERROR_INVALID_VALUE;
      to.offset = from.getOffset();
    }
    to.deviceBitMask = 1u << device;
  }
  const CUresult result =
      session.driver().cuMemMapArrayAsync(list.data(), static_cast<unsigned>(list.size()), stream.cuda);
  if (result != CUDA_SUCCESS) return result;
  session.ordering().submitted(stream);
  charge_arrays(session, in, list, stream);
  return result;
}

}  // namespace fargpu::server::hand
