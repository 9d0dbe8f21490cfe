// The data path: how fast bytes move between the program's memory and the GPU. Told what to do as asked.h says. Buffers are touched and
// random before anything is measured, and what came back is compared once per answer.

#include <sys/mman.h>

#include <cstring>
#include <memory>
#include <random>

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
      for (std::size_t i = period; i < size; i += period) std::memcpy(pageable_.get() + i, pageable_.get(), std::min(period, size - i));
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

class Data {
 public:
  /// `count` copies of `bytes` each, in one direction, to the end of all of them.
  void copy(const Request& request, Answer& answer) {
    const Buffers& buffers = of(request.number("bytes"), request.text("contents", "random"));
    std::byte* const host = buffers.host(request.text("memory"));
    const std::string direction = request.text("direction");
    if (direction != "htod" && direction != "dtoh") throw std::invalid_argument("direction is htod or dtoh");
    const bool to_device = direction == "htod";
    OK(cuMemcpyHtoD(buffers.device, host, buffers.size));
    OK(cuCtxSynchronize());
    std::vector<double> samples(request.number("count"));
    const double cpu = process_cpu(), begin = now();
    for (double& sample : samples) {
      const double start = now();
      if (to_device) OK(cuMemcpyHtoD(buffers.device, host, buffers.size));
      else OK(cuMemcpyDtoH(host, buffers.device, buffers.size));
      OK(cuCtxSynchronize());
      sample = now() - start;
    }
    answer.add("seconds", (now() - begin) / static_cast<double>(samples.size()));
    answer.add("copy_cpu", (process_cpu() - cpu) / static_cast<double>(samples.size()));
    answer.add_samples("copy", samples);
    buffers.compare(host);
  }

  /// A copy, a kernel that takes as long, and both at once on two streams.
  void overlap(const Request& request, Answer& answer) {
    const Buffers& buffers = of(request.number("bytes"), "random");
    std::byte* const host = buffers.host("pinned");
    CUstream copying{}, computing{};
    OK(cuStreamCreate(&copying, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&computing, CU_STREAM_NON_BLOCKING));
    const auto timed = [&](bool copies, std::uint64_t turns) {
      const double begin = now();
      if (turns) program_.launch_spin(computing, turns);
      if (copies) OK(cuMemcpyHtoDAsync(buffers.device, host, buffers.size, copying));
      OK(cuStreamSynchronize(copying));
      OK(cuStreamSynchronize(computing));
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
    OK(cuStreamDestroy(copying));
    OK(cuStreamDestroy(computing));
    answer.add_samples("copy", alone);
    answer.add_samples("compute", compute);
    answer.add_samples("both", both);
  }

 private:
  const Buffers& of(std::size_t size, const std::string& contents) {
    if (!buffers_ || buffers_->size != size || buffers_->contents != contents) buffers_.reset();
    if (!buffers_) buffers_ = std::make_unique<Buffers>(size, contents);
    return *buffers_;
  }

  const Program program_;
  std::unique_ptr<Buffers> buffers_;
};

}  // namespace
}  // namespace bench

int main() {
  try {
    bench::Data data;
    return bench::answer_requests({
        {"copy", [&](const bench::Request& r, bench::Answer& a) { data.copy(r, a); }},
        {"overlap", [&](const bench::Request& r, bench::Answer& a) { data.overlap(r, a); }},
    });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "data: %s\n", error.what());
    return 2;
  }
}
