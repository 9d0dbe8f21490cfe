#include "copy_job.h"

namespace fargpu::client {

CUresult copy_in(const CopyJob& job, const CopyShape& shape, const CopySide& target, const CopySide& source,
                 Sending sending, std::span<const std::byte> frame) {
  RemoteCall<wire::CopyIn> call(job.thread, job.stream.context);
  auto in = call.in();
  in.setStream(job.stream.wire());
  encode(shape, source, target, in.initCopy());
  in.setTakenForDone(job.copy.done_on_return);
  if (job.host_sees_target) call.host_visible();
  if (sending == Sending::with_call) call.taken();
  call.bulk(frame);
  return call.post(job.stream);
}

CopyOutCall::CopyOutCall(const CopyJob& job, const CopyShape& shape, const CopySide& source, const CopySide& target)
    : RemoteCall(job.thread, job.stream.context) {
  in().setStream(job.stream.wire());
  encode(shape, source, target, in().initCopy());
}

}  // namespace fargpu::client
