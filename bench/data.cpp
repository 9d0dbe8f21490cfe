// The data path: how fast bytes move between the program's memory and the GPU. Told what to do as asked.h says. Buffers
// are touched and random before anything is measured, and what came back is compared once per answer.

#include <sys/mman.h>

#include <cstring>
#include <memory>
#include <random>
#include <tuple>

#include "asked.h"
#include "cuda_program.h"

namespace bench {
namespace {

struct Unmap {
  std::size_t size;
  void operator()(std::byte* memory) const { ::munmap(memory, size); }
};

class Buffers {
 public:
  Buffers(std::size_t size, const std::string& contents)
      : size(size), contents(contents), pageable_(map(size), Unmap{size}), back_(map(size), Unmap{size}) {
    OK(cuMemAlloc(&device, size));
    void* memory = nullptr;
    OK(cuMemAllocHost(&memory, size));
    pinned_ = static_cast<std::byte*>(memory);
    std::mt19937_64 random(size);
    if (contents == "random") {
      for (std::size_t i = 0; i + 8 <= size; i += 8) {
        const std::uint64_t value = random();
        std::memcpy(pageable_.get() + i, &value, 8);
      }
    } else if (contents == "bf16") {
      // Weights of a model: normally distributed, in 16 bits. As many as no codec remembers, and then the same again.
      constexpr std::size_t period = 4u << 20;
      std::normal_distribution<float> normal;
      for (std::size_t i = 0; i + 2 <= size && i < period; i += 2) {
        const float value = normal(random);
        std::memcpy(pageable_.get() + i, reinterpret_cast<const std::byte*>(&value) + 2, 2);
      }
      for (std::size_t i = period; i < size; i += period)
        std::memcpy(pageable_.get() + i, pageable_.get(), std::min(period, size - i));
    } else {
      throw std::invalid_argument("contents are random or bf16, not '" + contents + "'");
    }
    std::memcpy(pinned_, pageable_.get(), size);
    std::memset(back_.get(), 1, size);
  }
  ~Buffers() {
    cuMemFreeHost(pinned_);
    cuMemFree(device);
  }

  std::byte* host(const std::string& kind) const {
    if (kind == "pageable") return pageable_.get();
    if (kind == "pinned") return pinned_;
    throw std::invalid_argument("memory is pageable or pinned, not '" + kind + "'");
  }

  /// Memory that a copy to the host may overwrite: pinned, or pageable that is not the original contents.
  std::byte* target(const std::string& kind) const { return kind == "pageable" ? back_.get() : host(kind); }
  const std::byte* original() const { return pageable_.get(); }

  /// That the device holds what the host holds.
  void compare(const std::byte* host) const {
    OK(cuMemcpyDtoH(back_.get(), device, size));
    if (std::memcmp(back_.get(), host, size) != 0) throw std::runtime_error("other bytes came back than were sent");
  }

  const std::size_t size;
  const std::string contents;
  CUdeviceptr device = 0;

 private:
  static std::byte* map(std::size_t size) {
    void* const memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    return static_cast<std::byte*>(memory);
  }

  std::unique_ptr<std::byte, Unmap> pageable_, back_;
  std::byte* pinned_ = nullptr;
};

/// Other contents than before, in every page.
void stamp(std::byte* memory, std::size_t size, std::uint64_t mark) {
  constexpr std::size_t page = 4096;
  for (std::size_t i = 0; i + sizeof mark <= size; i += page) std::memcpy(memory + i, &mark, sizeof mark);
}

bool is_to_device(const Request& request) {
  const std::string direction = request.text("direction");
  if (direction != "htod" && direction != "dtoh") throw std::invalid_argument("direction is htod or dtoh");
  return direction == "htod";
}

class Stream {
 public:
  Stream() { OK(cuStreamCreate(&handle_, CU_STREAM_NON_BLOCKING)); }
  ~Stream() { cuStreamDestroy(handle_); }
  Stream(const Stream&) = delete;
  operator CUstream() const { return handle_; }
  void wait() const { OK(cuStreamSynchronize(handle_)); }

 private:
  CUstream handle_{};
};

class Data {
 public:
  /// `count` copies of `bytes` each, in one direction, to the end of all of them.
  void copy(const Request& request, Answer& answer) {
    const auto buffers = of(request.number("bytes"), request.text("contents", "random"));
    std::byte* const host = buffers->host(request.text("memory"));
    const bool to_device = is_to_device(request);
    OK(cuMemcpyHtoD(buffers->device, host, buffers->size));
    OK(cuCtxSynchronize());
    std::vector<double> samples(request.number("count"));
    const double cpu = process_cpu(), begin = now();
    for (double& sample : samples) {
      const double start = now();
      if (to_device) OK(cuMemcpyHtoD(buffers->device, host, buffers->size));
      else OK(cuMemcpyDtoH(host, buffers->device, buffers->size));
      OK(cuCtxSynchronize());
      sample = now() - start;
    }
    answer.add("seconds", (now() - begin) / static_cast<double>(samples.size()));
    answer.add("copy_cpu", (process_cpu() - cpu) / static_cast<double>(samples.size()));
    answer.add_samples("copy", samples);
    buffers->compare(host);
  }

  /// Asynchronous copies of `bytes`, in so many `pieces` in a row, and a wait for their stream, as frameworks copy:
  /// `count` times, and until so many `milliseconds` are over. A copy to the device has other contents each time. With
  /// checks=off nothing is prepared or compared, so that several programs that are told at the same time copy at the
  /// same time.
  void copy_async(const Request& request, Answer& answer) {
    const auto buffers = of(request.number("bytes"), "random");
    const std::string memory = request.text("memory");
    const bool to_device = is_to_device(request), checks = request.text("checks", "on") == "on";
    std::byte* const host = to_device ? buffers->host(memory) : buffers->target(memory);
    const std::uint64_t count = request.number("count"), pieces = request.number("pieces", 1);
    if (pieces == 0 || buffers->size % pieces != 0) throw std::invalid_argument("pieces do not divide the bytes");
    const std::size_t piece = buffers->size / pieces;
    if (checks && to_device) {
      OK(cuMemsetD8(buffers->device, 0, buffers->size));
    } else if (checks) {
      OK(cuMemcpyHtoD(buffers->device, buffers->original(), buffers->size));
      std::memset(host, 0, buffers->size);
    }
    OK(cuCtxSynchronize());
    std::vector<double> samples;
    const double least = 1e-3 * static_cast<double>(request.number("milliseconds", 0)), begin = now();
    double cpu = 0;
    while (samples.size() < count || now() - begin < least) {
      if (checks && to_device) stamp(host, buffers->size, ++marks_);
      const double cpu_start = process_cpu(), start = now();
      for (std::size_t at = 0; at < buffers->size; at += piece)
        if (to_device) OK(cuMemcpyHtoDAsync(buffers->device + at, host + at, piece, stream_));
        else OK(cuMemcpyDtoHAsync(host + at, buffers->device + at, piece, stream_));
      stream_.wait();
      samples.push_back(now() - start);
      cpu += process_cpu() - cpu_start;
    }
    const double made = static_cast<double>(samples.size());
    answer.add("made", made);
    answer.add("seconds", (now() - begin) / made);
    answer.add("copy_cpu", cpu / made);
    answer.add_samples("copy", samples);
    if (checks && to_device) buffers->compare(host);
    if (checks && !to_device && std::memcmp(host, buffers->original(), buffers->size) != 0)
      throw std::runtime_error("other bytes came back");
  }

  /// A copy to the device and one to the host at once, asynchronous and pinned, while a kernel runs. `covered` is the
  /// part of the turns in which it ran until both were done.
  void both_ways(const Request& request, Answer& answer) {
    const std::size_t size = request.number("bytes");
    const auto up = of(size, "random"), down = of(size, "random", "coming down");
    std::byte *const source = up->host("pinned"), *const target = down->target("pinned");
    OK(cuMemsetD8(up->device, 0, size));
    OK(cuMemcpyHtoD(down->device, down->original(), size));
    std::memset(target, 0, size);
    OK(cuCtxSynchronize());
    std::vector<double> samples;
    double cpu = 0, covered = 0;
    const Stream back;
    const std::uint64_t count = request.number("count");
    for (std::uint64_t i = 0; i < count; ++i) {
      stamp(source, size, ++marks_);
      if (both_seconds_ > 0) program_.launch_spin(computing_, turns_for(2 * both_seconds_));
      const double cpu_start = process_cpu(), start = now();
      OK(cuMemcpyHtoDAsync(up->device, source, size, stream_));
      OK(cuMemcpyDtoHAsync(target, down->device, size, back));
      stream_.wait();
      back.wait();
      samples.push_back(now() - start);
      covered += cuStreamQuery(computing_) == CUDA_ERROR_NOT_READY;
      // The shortest, for a device that copies only when the kernel is done would make it longer each time.
      both_seconds_ = both_seconds_ > 0 ? std::min(both_seconds_, samples.back()) : samples.back();
      cpu += process_cpu() - cpu_start;
      computing_.wait();
    }
    answer.add("copy_cpu", cpu / static_cast<double>(count));
    answer.add("covered", covered / static_cast<double>(count));
    answer.add_samples("copy", samples);
    up->compare(source);
    if (std::memcmp(target, down->original(), size) != 0) throw std::runtime_error("other bytes came back");
  }

  /// A copy, a kernel that takes as long, and both at once on two streams.
  void overlap(const Request& request, Answer& answer) {
    const auto buffers = of(request.number("bytes"), "random");
    std::byte* const host = buffers->host("pinned");
    const Stream copying, computing;
    const auto timed = [&](bool copies, std::uint64_t turns) {
      const double begin = now();
      if (turns) program_.launch_spin(computing, turns);
      if (copies) OK(cuMemcpyHtoDAsync(buffers->device, host, buffers->size, copying));
      copying.wait();
      computing.wait();
      return now() - begin;
    };
    timed(true, 1);
    const double copy = timed(true, 0);
    // Turns that take as long as the copy: doubled until they take longer, then shortened by what is too much.
    std::uint64_t turns = 1024;
    double took = timed(false, turns);
    for (; took < copy; took = timed(false, turns)) turns *= 2;
    turns = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(static_cast<double>(turns) * copy / took));
    std::vector<double> alone, compute, both;
    for (std::uint64_t i = 0; i < request.number("count"); ++i) {
      alone.push_back(timed(true, 0));
      compute.push_back(timed(false, turns));
      both.push_back(timed(true, turns));
    }
    answer.add_samples("copy", alone);
    answer.add_samples("compute", compute);
    answer.add_samples("both", both);
  }

 private:
  /// Kept from one request to the next, as long as they are few. `name` tells two of the same size and contents apart.
  std::shared_ptr<const Buffers> of(std::size_t size, const std::string& contents, const std::string& name = "") {
    constexpr std::size_t kept_most = 3;
    const Key key{size, contents, name};
    if (!buffers_.contains(key)) {
      if (buffers_.size() == kept_most) buffers_.clear();
      buffers_.emplace(key, std::make_shared<const Buffers>(size, contents));
    }
    return buffers_.at(key);
  }

  /// Turns of the kernel that last so many seconds.
  std::uint64_t turns_for(double seconds) {
    constexpr double enough = 2e-3;  // to know a turn's time by
    for (std::uint64_t turns = 1024; turn_seconds_ == 0; turns *= 2) {
      const double begin = now();
      program_.launch_spin(computing_, turns);
      computing_.wait();
      if (const double took = now() - begin; took > enough) turn_seconds_ = took / static_cast<double>(turns);
    }
    return std::max<std::uint64_t>(1, static_cast<std::uint64_t>(seconds / turn_seconds_));
  }

  using Key = std::tuple<std::size_t, std::string, std::string>;

  const Program program_;
  const Stream stream_, computing_;
  std::map<Key, std::shared_ptr<const Buffers>> buffers_;
  double turn_seconds_ = 0, both_seconds_ = 0;  // 0: not known yet
  std::uint64_t marks_ = 0;
};

}  // namespace
}  // namespace bench

int main() {
  try {
    bench::Data data;
    return bench::answer_requests({
        {"copy", [&](const bench::Request& r, bench::Answer& a) { data.copy(r, a); }},
        {"copy_async", [&](const bench::Request& r, bench::Answer& a) { data.copy_async(r, a); }},
        {"both_ways", [&](const bench::Request& r, bench::Answer& a) { data.both_ways(r, a); }},
        {"overlap", [&](const bench::Request& r, bench::Answer& a) { data.overlap(r, a); }},
    });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "data: %s\n", error.what());
    return 2;
  }
}
