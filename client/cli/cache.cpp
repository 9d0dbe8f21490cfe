// `fargpu cache`: what a host keeps of a tenant's contents of memory.

#include <fmt/format.h>

#include <iostream>
#include <nlohmann/json.hpp>

#include "administration.h"
#include "commands.h"
#include "protocol/text.h"

namespace fargpu::client::cli {
namespace {

void print(const nlohmann::ordered_json& kept, bool cleared) {
  const auto number = [&](const char* key) { return kept[key].get<std::uint64_t>(); };
  const auto tenant = kept["tenant"].get<std::string>(), host = kept["host"].get<std::string>();
  if (number("bytes_max") == 0) {
    std::cout << host << " keeps no contents: its content_bytes_max is 0, or it has no folder for them\n";
    return;
  }
  std::cout << fmt::format("{} {} {} of tenant {} in {}, at most {}\n", host, cleared ? "kept" : "keeps",
                           memory_text(number("bytes")), tenant, so_many(number("blocks"), "block"),
                           memory_text(number("bytes_max")));
  if (cleared) std::cout << "now it keeps nothing of them\n";
  std::cout << fmt::format("since fargpud began: {} need not travel, {} were added\n",
                           memory_text(number("known_bytes")), memory_text(number("kept_bytes")));
}

}  // namespace

int cache(const CacheOptions& options) {
  ControlConnection broker(one_host(options.host), ControlConnection::For::host);
  int code = 0;
  broker.ask(
      [&](wire::Control::Builder control) {
        auto request = control.initContentsRequest();
        request.setTenant(options.tenant);
        request.setClear(options.clear);
      },
      wire::Control::CONTENTS_ANSWER,
      [&](wire::Control::Reader control) {
        const auto answer = control.getContentsAnswer();
        if (const auto failure = answer.getFailure(); failure.getReason() != wire::Failure::Reason::NONE) {
          std::cerr << "fargpu: " << printable(failure.getText().cStr(), 512) << "\n";
          code = failure.getReason() == wire::Failure::Reason::DENIED ? exit_denied : exit_own_error;
          return;
        }
        const nlohmann::ordered_json kept{{"host", broker.name()},
                                          {"tenant", printable(answer.getTenant().cStr())},
                                          {"bytes", answer.getBytes()},
                                          {"blocks", answer.getBlocks()},
                                          {"bytes_max", answer.getBytesMax()},
                                          {"known_bytes", answer.getKnownBytes()},
                                          {"kept_bytes", answer.getKeptBytes()},
                                          {"cleared", options.clear}};
        if (options.output == "json") std::cout << kept.dump(2) << "\n";
        else print(kept, options.clear);
      });
  return code;
}

}  // namespace fargpu::client::cli
