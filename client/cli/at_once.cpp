#include "at_once.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <vector>

namespace fargpu::client::cli {

std::size_t at_once(std::size_t count, const std::function<void(std::size_t)>& work,
                    std::chrono::steady_clock::time_point until) {
  constexpr std::size_t threads_most = 32;
  std::atomic<std::size_t> next = 0;
  std::vector<std::future<void>> threads;
  for (std::size_t i = 0; i < std::min(threads_most, count); ++i)
    threads.push_back(std::async(std::launch::async, [&] {
      while (std::chrono::steady_clock::now() < until) {
        const std::size_t mine = next++;
        if (mine >= count) return;
        work(mine);
      }
    }));
  for (auto& thread : threads) thread.wait();
  for (auto& thread : threads) thread.get();
  return std::min<std::size_t>(next, count);
}

}  // namespace fargpu::client::cli
