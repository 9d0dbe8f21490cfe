// Two hosts in one program: how fast bytes go from the program to the devices of both, and from a device of the one to
// a device of the other, how long a stream of the one waits for an event of the other, and how long calls to the one
// take whose host dies. Told what to do as asked.h says. The devices are the first and the last; `apart=0` names the
// first one twice.

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>

#include "asked.h"
#include "cuda_program.h"

namespace bench {
namespace {

struct Side {
  explicit Side(CUdevice device) {
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuCtxSetCurrent(context));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(cuMemAlloc(&word, 4096));
  }
  void make_current() const { OK(cuCtxSetCurrent(context)); }

  CUcontext context = nullptr;
  CUstream stream = nullptr;
  CUevent event = nullptr;
  CUdeviceptr word = 0;
};

class Hosts {
 public:
  Hosts() {
    OK(cuInit(0));
    int count = 0;
    OK(cuDeviceGetCount(&count));
    first_ = std::make_unique<Side>(0);
    beside_ = std::make_unique<Side>(0);
    other_ = std::make_unique<Side>(count - 1);
  }

  // What has arrived is compared once.
  void copy(const Request& request, Answer& answer) {
    const std::size_t size = request.number("bytes");
    std::vector<std::uint64_t> sent(size / 8), read(size / 8);
    std::mt19937_64 random(size);
    for (std::uint64_t& value : sent) value = random();
    first_->make_current();
    CUdeviceptr from = 0, to = 0;
    OK(cuMemAlloc(&from, size));
    OK(cuMemcpyHtoD(from, sent.data(), sent.size() * 8));
    other_->make_current();
    OK(cuMemAlloc(&to, size));
    OK(cuMemsetD8(to, 0, size));
    std::vector<double> samples;
    for (std::uint64_t i = 0; i < request.number("count"); ++i) {
      const double begin = now();
      OK(cuMemcpyPeerAsync(to, other_->context, from, first_->context, size, other_->stream));
      OK(cuStreamSynchronize(other_->stream));
      samples.push_back(now() - begin);
    }
    OK(cuMemcpyDtoH(read.data(), to, read.size() * 8));
    if (read != sent) throw std::runtime_error("what has arrived is something else");
    OK(cuMemFree(to));
    first_->make_current();
    OK(cuMemFree(from));
    answer.add_samples("copy", std::move(samples));
  }

  // From pinned memory, to the devices that `to` names: `first`, `other` or `both` at once. What has arrived is
  // compared once.
  void upload(const Request& request, Answer& answer) {
    const std::size_t size = request.number("bytes");
    struct Upload {
      const Side& side;
      void* from = nullptr;
      CUdeviceptr to = 0;
    };
    std::vector<Upload> uploads;
    if (request.text("to") != "other") uploads.push_back({*first_});
    if (request.text("to") != "first") uploads.push_back({*other_});
    std::mt19937_64 random(size);
    for (Upload& upload : uploads) {
      upload.side.make_current();
      OK(cuMemHostAlloc(&upload.from, size, 0));
      OK(cuMemAlloc(&upload.to, size));
      for (std::size_t i = 0; i < size / 8; ++i) static_cast<std::uint64_t*>(upload.from)[i] = random();
    }
    std::vector<double> samples;
    for (std::uint64_t i = 0; i < request.number("count"); ++i) {
      const double begin = now();
      for (const Upload& upload : uploads) {
        upload.side.make_current();
        OK(cuMemcpyHtoDAsync(upload.to, upload.from, size, upload.side.stream));
      }
      for (const Upload& upload : uploads) OK(cuStreamSynchronize(upload.side.stream));
      samples.push_back(now() - begin);
    }
    std::vector<std::byte> read(size);
    for (const Upload& upload : uploads) {
      upload.side.make_current();
      OK(cuMemcpyDtoH(read.data(), upload.to, size));
      if (std::memcmp(read.data(), upload.from, size) != 0)
        throw std::runtime_error("what has arrived is something else");
      OK(cuMemFree(upload.to));
      OK(cuMemFreeHost(upload.from));
    }
    answer.add_samples("upload", std::move(samples));
  }

  // One stream works, the other one waits for it and works, and the program waits for that.
  void wait(const Request& request, Answer& answer) {
    const Side& after = request.number("apart", 1) ? *other_ : *beside_;
    std::vector<double> samples;
    for (std::uint64_t i = 0; i < request.number("count"); ++i) {
      const double begin = now();
      OK(cuMemsetD32Async(first_->word, static_cast<unsigned>(i), 1, first_->stream));
      OK(cuEventRecord(first_->event, first_->stream));
      OK(cuStreamWaitEvent(after.stream, first_->event, 0));
      OK(cuMemsetD32Async(after.word, static_cast<unsigned>(i), 1, after.stream));
      OK(cuStreamSynchronize(after.stream));
      samples.push_back(now() - begin);
    }
    answer.add_samples("seconds", std::move(samples));
  }

  // Until a call to the first device fails, as its host dies meanwhile: how long that call took. Then the other device
  // has to go on.
  void lose(const Request& request, Answer& answer) {
    constexpr std::size_t size = 1 << 20;
    constexpr double most = 120;
    const std::string call = request.text("call");
    std::vector<std::byte> bytes(size);
    other_->make_current();
    CUdeviceptr there = 0;
    OK(cuMemAlloc(&there, size));
    first_->make_current();
    CUdeviceptr here = 0;
    OK(cuMemAlloc(&here, size));
    const std::map<std::string, std::function<CUresult()>> calls{
        {"alloc",
         [&] {
           CUdeviceptr more = 0;
           const CUresult result = cuMemAlloc(&more, size);
           return result == CUDA_SUCCESS ? cuMemFree(more) : result;
         }},
        {"upload", [&] { return cuMemcpyHtoD(here, bytes.data(), size); }},
        {"download", [&] { return cuMemcpyDtoH(bytes.data(), here, size); }},
        {"synchronize",
         [&] {
           const CUresult result = cuMemsetD8Async(here, 1, size, first_->stream);
           return result == CUDA_SUCCESS ? cuStreamSynchronize(first_->stream) : result;
         }},
        {"query",
         [&] {
           CUresult result = cuEventRecord(first_->event, first_->stream);
           while (result == CUDA_SUCCESS && (result = cuEventQuery(first_->event)) == CUDA_ERROR_NOT_READY)
             result = CUDA_SUCCESS;
           return result;
         }},
        {"peer", [&] { return cuMemcpyPeer(there, other_->context, here, first_->context, size); }},
    };
    const auto chosen = calls.find(call);
    if (chosen == calls.end()) throw std::invalid_argument("there is no call '" + call + "'");
    const double end = now() + most;
    while (true) {
      const double begin = now();
      const CUresult result = chosen->second();
      const double took = now() - begin;
      if (result != CUDA_SUCCESS) {
        answer.add("seconds", took);
        break;
      }
      if (now() > end) throw std::runtime_error("the host has not died");
    }
    other_->make_current();
    OK(cuMemcpyHtoD(there, bytes.data(), size));
    OK(cuMemsetD8Async(there, 1, size, other_->stream));
    OK(cuStreamSynchronize(other_->stream));
    OK(cuMemFree(there));
  }

 private:
  std::unique_ptr<Side> first_, beside_, other_;
};

}  // namespace
}  // namespace bench

int main() {
  bench::Hosts hosts;
  return bench::answer_requests({{"upload", [&](const auto& request, auto& answer) { hosts.upload(request, answer); }},
                                 {"copy", [&](const auto& request, auto& answer) { hosts.copy(request, answer); }},
                                 {"wait", [&](const auto& request, auto& answer) { hosts.wait(request, answer); }},
                                 {"lose", [&](const auto& request, auto& answer) { hosts.lose(request, answer); }}});
}
