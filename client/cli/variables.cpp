#include <fmt/format.h>

#include <iostream>
#include <nlohmann/json.hpp>

#include "client/base/environment.h"
#include "commands.h"

namespace fargpu::client::cli {

int list_variables(const VariablesOptions& options) {
  if (options.output == "json") {
    auto list = nlohmann::ordered_json::array();
    for (const EnvironmentVariable& variable : environment_variables())
      list.push_back({{"name", variable.name}, {"default", variable.standard}, {"meaning", variable.meaning}});
    std::cout << list.dump(2) << "\n";
    return 0;
  }
  for (const EnvironmentVariable& variable : environment_variables())
    std::cout << fmt::format("{}{}\n    {}\n", variable.name,
                             *variable.standard ? fmt::format(" [{}]", variable.standard) : "", variable.meaning);
  return 0;
}

}  // namespace fargpu::client::cli
