#include "copy_job.h"

namespace fargpu::client {

namespace {

class CopyInCall : public RemoteCall<wire::CopyIn> {
 public:
  CopyInCall(const CopyJob& job, const CopyShape& shape, const CopySide& source, const CopySide& target)
      : RemoteCall(job.thread, job.stream.context) {
    auto call = in();  // once: it is looked up in the message each time
    call.setStream(job.stream.wire());
    encode(shape, source, target, call.initCopy());
    call.setTakenForDone(job.copy.done_on_return);
    if (job.host_sees_target) host_visible();
  }
};

}  // namespace

CUresult copy_in(const CopyJob& job, const CopyShape& shape, const CopySide& target, const CopySide& source,
                 Sending sending) {
  CopyInCall call(job, shape, source, target);
  if (sending == Sending::with_call) call.taken();
  return call.post(job.stream);
}

std::optional<CUresult> copy_frame_in(const CopyJob& job, const CopyShape& shape, const CopySide& target,
                                      std::span<const std::byte> frame, bool if_room) {
  CopyInCall call(job, shape, {}, target);
  call.taken();
  call.bulk(frame);
  if (if_room) return call.post_if_room(job.stream);
  return call.post(job.stream);
}

CopyOutCall::CopyOutCall(const CopyJob& job, const CopyShape& shape, const CopySide& source, const CopySide& target)
    : RemoteCall(job.thread, job.stream.context) {
  in().setStream(job.stream.wire());
  encode(shape, source, target, in().initCopy());
}

}  // namespace fargpu::client
