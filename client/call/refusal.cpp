#include "refusal.h"

#include <string>

#include "client/base/life.h"
#include "client/base/log.h"
#include "cuda_facts.h"
#include "error_log.h"
#include "stats.h"

namespace fargpu::client {

CUresult refuse(Symbol symbol) noexcept {
  const SymbolFacts& facts = facts_of(symbol);
  stats::count(symbol);
  if (!serving()) return unavailable();
  note_error(symbol, facts.error);
  try {
    log::write_once(log::Level::warn, std::string(facts.name),
                    fmt::format("{} is refused with {}: {}", facts.name, result_name(facts.error), facts.why));
  } catch (...) {}
  return facts.error;
}

CUresult refuse_denied(const char* what) noexcept {
  try {
    log::write_once(log::Level::debug, what,
                    fmt::format("{} is refused with CUDA_ERROR_NOT_SUPPORTED, as the device's attributes say", what));
  } catch (...) {}
  return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult refuse_use(const char* what) noexcept {
  try {
    log::write_once(log::Level::warn, what,
                    fmt::format("{} is refused with CUDA_ERROR_NOT_SUPPORTED: it is not served yet", what));
  } catch (...) {}
  return CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace fargpu::client
