// Arrays are charged for what they will take before they are made.

#include "protocol/extent.h"
#include "server/worker/session.h"
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

// The driver tells what arrays take, not what they would. A twin of the array, into which memory would have to be mapped, takes none.
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

std::uint64_t bytes_of_mipmap(DriverTable& driver, const CUDA_ARRAY3D_DESCRIPTOR& array, unsigned levels, CUdevice device) {
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

template <class Reply, class Object, class Create>
CUresult make(Session& session, Call& call, HandleKind kind, std::uint64_t bytes, Create&& create) {
  std::shared_ptr<Charge> charge = Charge::take(session.ledger(), session.context(call.id().context)->device, bytes);
  if (!charge) return CUDA_ERROR_OUT_OF_MEMORY;
  Object object{};
  if (const CUresult result = create(&object); result != CUDA_SUCCESS) return result;
  const Handle handle = session.reveal(kind, object, call);
  session.charge(handle, std::move(charge));
  call.out<Reply>().setPHandle(handle.value());
  return CUDA_SUCCESS;
}

CUdevice device_of(Session& session, const Call& call) { return session.driver_ordinal(session.context(call.id().context)->device); }

}  // namespace

Outcome cuArrayCreate_v2(Session& session, Call& call, wire::CuArrayCreateV2::Reader in) {
  DriverTable& driver = session.driver();
  CUDA_ARRAY_DESCRIPTOR array{};
  decode(in.getPAllocateArray(), array);
  const CUDA_ARRAY3D_DESCRIPTOR full{array.Width, array.Height, 0, array.Format, array.NumChannels, 0};
  return make<wire::CuArrayCreateV2Reply, CUarray>(session, call, HandleKind::array, bytes_of_array(driver, full, device_of(session, call)),
                                                   [&](CUarray* out) { return driver.cuArrayCreate_v2(out, &array); });
}

Outcome cuArray3DCreate_v2(Session& session, Call& call, wire::CuArray3DCreateV2::Reader in) {
  DriverTable& driver = session.driver();
  CUDA_ARRAY3D_DESCRIPTOR array{};
  decode(in.getPAllocateArray(), array);
  const std::uint64_t bytes = takes_nothing(array) ? 0 : bytes_of_array(driver, array, device_of(session, call));
  return make<wire::CuArray3DCreateV2Reply, CUarray>(session, call, HandleKind::array, bytes,
                                                     [&](CUarray* out) { return driver.cuArray3DCreate_v2(out, &array); });
}

Outcome cuMipmappedArrayCreate(Session& session, Call& call, wire::CuMipmappedArrayCreate::Reader in) {
  DriverTable& driver = session.driver();
  CUDA_ARRAY3D_DESCRIPTOR array{};
  decode(in.getPMipmappedArrayDesc(), array);
  const unsigned levels = in.getNumMipmapLevels();
  const std::uint64_t bytes = takes_nothing(array) ? 0 : bytes_of_mipmap(driver, array, levels, device_of(session, call));
  return make<wire::CuMipmappedArrayCreateReply, CUmipmappedArray>(
      session, call, HandleKind::mipmap, bytes,
      [&](CUmipmappedArray* out) { return driver.cuMipmappedArrayCreate(out, &array, levels); });
}

}  // namespace fargpu::server::hand
