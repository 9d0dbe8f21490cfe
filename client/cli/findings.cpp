#include "findings.h"

#include <fmt/format.h>

#include <iostream>

namespace fargpu::client::cli {

void Findings::begin(const std::string& address) {
  if (!json_) std::cout << (address.empty() ? "this machine" : address) << "\n";
  nlohmann::ordered_json place;
  if (!address.empty()) place["host"] = address;
  place["findings"] = nlohmann::ordered_json::array();
  places_.push_back(std::move(place));
}

void Findings::add(const char* kind, const std::string& what, const std::string& repair) {
  if (!json_) {
    std::cout << fmt::format("  {:<4}  {}\n", kind, what);
    if (!repair.empty()) std::cout << "        " << repair << "\n";
    return;
  }
  nlohmann::ordered_json finding{{"kind", kind}, {"text", what}};
  if (!repair.empty()) finding["repair"] = repair;
  places_.back()["findings"].push_back(std::move(finding));
}

void Findings::good(const std::string& what) { add("ok", what, ""); }

void Findings::bad(const std::string& what, const std::string& repair) {
  add("FAIL", what, repair);
  ++failures_;
}

void Findings::note(const std::string& what) { add("note", what, ""); }

void Findings::fact(const char* name, nlohmann::ordered_json value) { places_.back()[name] = std::move(value); }

void Findings::end() const {
  if (!json_) {
    std::cout << (failures_ == 0 ? "everything is in order\n"
                                 : fmt::format("{} {} to fix\n", failures_, failures_ == 1 ? "thing" : "things"));
    return;
  }
  nlohmann::ordered_json report{{"failures", failures_}, {"machine", places_.front()}};
  report["hosts"] = nlohmann::ordered_json(places_.begin() + 1, places_.end());
  std::cout << report.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
}

}  // namespace fargpu::client::cli
