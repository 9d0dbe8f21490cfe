#include "filter.h"

#include <fnmatch.h>

namespace fargpu::client::cli {
namespace {

bool matches(const std::string& pattern, const std::string& name) {
  return pattern.empty() || ::fnmatch(pattern.c_str(), name.c_str(), FNM_CASEFOLD) == 0;
}

}  // namespace

bool Filter::shows_host(const std::string& name) const { return matches(host, name); }
bool Filter::shows_model(const std::string& name) const {
  return matches(model.empty() ? model : "*" + model + "*", name);
}

std::string Filter::hosts_text() const {
  std::string text;
  if (!host.empty()) text = "--host '" + host + "'";
  if (!model.empty()) text += (text.empty() ? "" : " and ") + std::string("--model '") + model + "'";
  return text;
}

}  // namespace fargpu::client::cli
