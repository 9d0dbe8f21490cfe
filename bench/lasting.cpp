// A program whose session lasts, whatever happens to its connections and its host's broker: it computes and copies both
// ways, in large pieces and small ones, and compares. Told what to do as asked.h says.
//
//   lasting BYTES    of a large piece

#include <algorithm>
#include <cstring>

#include "asked.h"
#include "cuda_program.h"

namespace bench {
namespace {

constexpr std::uint32_t threads = 256;
constexpr int small_pieces = 8;

class Lasting {
 public:
  explicit Lasting(std::size_t bytes) : words_(std::max<std::size_t>(bytes / 4, threads)) {
    OK(cuMemAlloc(&device_, words_ * 4));
  }

  // Pieces of which the device changes the first words: so many large ones, and for so long. `ends` is when their
  // copies back were there, in seconds of the monotonic clock; `wrong`, how many of them held something else than they
  // should.
  void work(const Request& request, Answer& answer) {
    std::vector<double> ends;
    unsigned wrong = 0;
    const double until = now() + 1e-3 * static_cast<double>(request.number("milliseconds", 0));
    for (std::uint64_t round = 0; round < request.number("count") || now() < until; ++round) {
      wrong += !there_and_back(words_);
      ends.push_back(now());
      for (int i = 0; i < small_pieces; ++i) {
        wrong += !there_and_back(threads << i);
        ends.push_back(now());
      }
    }
    answer.add("wrong", wrong);
    answer.add_list("ends", ends);
  }

  void ping(const Request& request, Answer& answer) {
    std::vector<double> samples;
    for (std::uint64_t i = 0; i < request.number("count"); ++i) {
      const double begin = now();
      std::size_t free = 0, total = 0;
      OK(cuMemGetInfo(&free, &total));
      samples.push_back(now() - begin);
    }
    answer.add_samples("seconds", std::move(samples));
  }

 private:
  bool there_and_back(std::size_t most) {
    constexpr unsigned launches = 8, step = 3;
    const std::size_t count = std::min(most, words_);
    std::vector<std::uint32_t> sent(count), back(count);
    for (std::uint32_t& word : sent) word = state_ = state_ * 1664525 + 1013904223;
    OK(cuMemcpyHtoD(device_, sent.data(), count * 4));
    for (unsigned i = 0; i < launches; ++i) {
      std::uint32_t n = threads, by = step;
      void* arguments[] = {&device_, &device_, &n, &by};
      OK(cuLaunchKernel(program_.add, 1, 1, 1, threads, 1, 1, 0, nullptr, arguments, nullptr));
    }
    OK(cuMemcpyDtoH(back.data(), device_, count * 4));
    for (std::uint32_t i = 0; i < threads; ++i) sent[i] += launches * step;
    return back == sent;
  }

  Program program_;
  const std::size_t words_;
  CUdeviceptr device_ = 0;
  std::uint32_t state_ = 1;
};

}  // namespace
}  // namespace bench

int main(int count, char** words) {
  if (count != 2) {
    std::fprintf(stderr, "usage: lasting BYTES\n");
    return 2;
  }
  bench::Lasting lasting(std::stoul(words[1]));
  return bench::answer_requests({{"work", [&](const auto& request, auto& answer) { lasting.work(request, answer); }},
                                 {"ping", [&](const auto& request, auto& answer) { lasting.ping(request, answer); }}});
}
