#pragma once
// Runs what waits for a registry to its end.

#include <asio.hpp>

#include <chrono>
#include <exception>
#include <functional>
#include <optional>
#include <stdexcept>

#include "server/pool/registry.h"

namespace fargpu::test {

template <class Result>
Result run(asio::io_context& io, asio::awaitable<Result> work, std::chrono::seconds most = std::chrono::seconds(20)) {
  std::optional<Result> result;
  std::exception_ptr failure;
  bool done = false;
  asio::co_spawn(io, std::move(work), [&](std::exception_ptr error, Result value) {
    failure = error;
    if (!error) result.emplace(std::move(value));
    done = true;
  });
  io.restart();
  const auto end = std::chrono::steady_clock::now() + most;
  while (!done && std::chrono::steady_clock::now() < end) io.run_one_until(end);
  if (!done) throw std::runtime_error("it does not end");
  if (failure) std::rethrow_exception(failure);
  return std::move(*result);
}

/// Lets what is under way go on for a while.
inline void go_on(asio::io_context& io, std::chrono::milliseconds time) {
  io.restart();
  const auto work = asio::make_work_guard(io);
  io.run_for(time);
}

template <class Condition>
bool comes(asio::io_context& io, Condition condition, std::chrono::milliseconds most = std::chrono::seconds(10)) {
  const auto end = std::chrono::steady_clock::now() + most;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    go_on(io, std::chrono::milliseconds(2));
  }
  return true;
}

/// How it fails; nothing if it does not.
template <class Work>
std::optional<server::pool::RegistryError> failure(asio::io_context& io, Work&& work) {
  try {
    run(io, std::forward<Work>(work)());
  } catch (const server::pool::RegistryError& error) {
    return error;
  }
  (void)io;
  return std::nullopt;
}

}  // namespace fargpu::test
