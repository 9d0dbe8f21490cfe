#include "tenants.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "protocol/limits.h"
#include "protocol/text.h"
#include "settings.h"
#include "settings_file.h"

namespace fargpu::server {
namespace {

constexpr const char* default_name = "default";
constexpr std::uint64_t least_bytes = 1u << 20;  // that anybody means

/// One table [tenant.NAME], with words for what is wrong in it.
class Reading {
 public:
  Reading(const std::string& file, const std::string& name, const toml::table& table)
      : file_(file), name_(name), table_(table) {}

  /// `item`: what of a list is wrong; null for the value itself.
  [[noreturn]] void complain(const char* key, const std::string& wanted, const toml::node* item = nullptr) const {
    const toml::node& node = item ? *item : *table_.get(key);
    throw SettingsError(place_of(file_, node) + ": " + key + " of tenant '" + name_ + (item ? "' holds " : "' is ") +
                        what_is(node) + "; give " + wanted);
  }

  void check_keys() const {
    static const std::vector<std::string> known{
        "memory",        "compute",     "weight",    "sessions",           "devices", "priority",      "certificates",
        "users",         "host_memory", "bandwidth", "kernel_seconds_max", "mps",     "sm_partitions", "administrator",
        "resume_seconds"};
    for (const auto& [key, value] : table_) {
      const std::string written(key.str());
      if (std::find(known.begin(), known.end(), written) != known.end()) continue;
      if (is_setting(written))
        throw SettingsError(place_of(file_, key) + ": '" + written + "' is a setting of the host and not of tenant '" +
                            name_ +
                            "'; what stands below [tenant.NAME] is of that tenant, so move it above the first of them");
      throw SettingsError(
          place_of(file_, key) + ": tenant '" + name_ + "' has no setting '" + written + "'" + perhaps(written, known) +
          "; there are memory, host_memory, bandwidth, compute, weight, sessions, devices, priority, "
          "kernel_seconds_max, resume_seconds, mps, sm_partitions, administrator, certificates and users");
    }
  }

  /// What a number or a text says, read as text.
  std::optional<std::string> text(const char* key, const std::string& wanted) const {
    const toml::node* const node = table_.get(key);
    if (!node) return std::nullopt;
    if (const auto* value = node->as_string()) return value->get();
    if (const auto* value = node->as_integer()) return std::to_string(value->get());
    complain(key, wanted);
  }

  bool has(const char* key) const { return table_.contains(key); }

  std::uint64_t bytes(const char* key, const char* example) const {
    const std::string wanted = fmt::format("an amount such as \"{}\"", example);
    const auto said = text(key, wanted);
    if (!said) return 0;
    const auto bytes = parse_bytes(*said);
    if (!bytes) complain(key, wanted);
    // A number without a unit, most likely.
    if (*bytes < least_bytes)
      complain(key,
               fmt::format("{}, with its unit: this is {}, which is less than 1 MiB", wanted, so_many(*bytes, "byte")));
    return *bytes;
  }

  bool yes(const char* key) const {
    const toml::node* const node = table_.get(key);
    if (!node) return false;
    const auto* const value = node->as_boolean();
    if (!value) complain(key, "true or false");
    return value->get();
  }

  std::uint64_t number(const char* key, std::uint64_t standard, std::uint64_t least, std::uint64_t most) const {
    const std::string wanted = "a whole number from " + std::to_string(least) + " to " + std::to_string(most);
    const toml::node* const node = table_.get(key);
    if (!node) return standard;
    const auto* const value = node->as_integer();
    if (!value || value->get() < 0) complain(key, wanted);
    const auto result = static_cast<std::uint64_t>(value->get());
    if (result < least || result > most) complain(key, wanted);
    return result;
  }

  std::vector<unsigned> numbers(const char* key, std::uint64_t most) const {
    std::vector<unsigned> result;
    const toml::node* const node = table_.get(key);
    if (!node) return result;
    const std::string wanted = "a list of whole numbers from 0 to " + std::to_string(most);
    const auto* const list = node->as_array();
    if (!list) complain(key, wanted);
    for (const auto& item : *list) {
      const auto* const value = item.as_integer();
      if (!value || value->get() < 0 || static_cast<std::uint64_t>(value->get()) > most) complain(key, wanted, &item);
      result.push_back(static_cast<unsigned>(value->get()));
    }
    return result;
  }

  std::vector<std::string> texts(const char* key) const {
    std::vector<std::string> result;
    const toml::node* const node = table_.get(key);
    if (!node) return result;
    const auto* const list = node->as_array();
    if (!list) complain(key, "a list of texts");
    for (const auto& item : *list) {
      const auto* const value = item.as_string();
      if (!value) complain(key, "a list of texts", &item);
      result.push_back(value->get());
    }
    return result;
  }

 private:
  const std::string& file_;
  const std::string& name_;
  const toml::table& table_;
};

Tenant read_tenant(const std::string& file, const std::string& name, const toml::table& table) {
  const Reading reading(file, name, table);
  reading.check_keys();
  Tenant tenant;
  tenant.name = name;
  tenant.memory_bytes = reading.bytes("memory", "40GiB");
  tenant.host_bytes = reading.bytes("host_memory", "16GiB");
  tenant.bandwidth = reading.bytes("bandwidth", "100MB");
  constexpr std::uint64_t bandwidth_least = 1u << 20;  // less would be taken for a host that does not answer
  if (reading.has("bandwidth") && tenant.bandwidth < bandwidth_least)
    reading.complain("bandwidth", "bytes a second, at least \"1MiB\"; leave it out for no limit");
  if (reading.has("resume_seconds")) tenant.resume_seconds = reading.number("resume_seconds", 0, 0, 86'400);
  if (reading.has("kernel_seconds_max")) tenant.kernel_seconds_max = reading.number("kernel_seconds_max", 0, 0, 86'400);
  if (const auto folder = reading.text("mps", "a folder")) {
    if (!folder->starts_with('/'))
      reading.complain("mps", "the folder of an MPS daemon's pipes, from the root on, such as \"/run/mps-lab\"");
    // One name for one daemon: its tenants share its multiprocessors.
    std::string name = std::filesystem::path(*folder).lexically_normal();
    while (name.size() > 1 && name.ends_with('/')) name.pop_back();
    tenant.mps = std::move(name);
  }
  tenant.sm_partitions = reading.yes("sm_partitions");
  if (tenant.sm_partitions && tenant.mps.empty())
    reading.complain("sm_partitions",
                     "its `mps` too: programs that do not go by MPS have a device one after the other, each all of it");
  tenant.administrator = reading.yes("administrator");
  constexpr std::uint32_t percent_max = 100 * limits::devices_max;
  if (const auto text = reading.text("compute", "a share such as \"150%\"")) {
    const auto percent = parse_percent(*text, percent_max);
    if (!percent) reading.complain("compute", "a share such as \"150%\", where 100% is one device");
    tenant.compute_percent = *percent;
  }
  tenant.weight = static_cast<std::uint32_t>(reading.number("weight", tenant.weight, 1, 10'000));
  tenant.sessions_max = reading.number("sessions", 0, 1, 100'000);
  tenant.devices = reading.numbers("devices", limits::devices_max - 1);
  if (table.contains("devices") && tenant.devices.empty())
    reading.complain("devices", "at least one device, or leave it out for all");
  std::sort(tenant.devices.begin(), tenant.devices.end());
  tenant.devices.erase(std::unique(tenant.devices.begin(), tenant.devices.end()), tenant.devices.end());
  if (const auto text = reading.text("priority", "a priority")) {
    const auto priority = parse_priority(*text);
    if (!priority) reading.complain("priority", "best-effort, normal or latency-critical");
    tenant.priority = *priority;
  }
  tenant.certificates = reading.texts("certificates");
  tenant.users = reading.numbers("users", 0xFFFF'FFFE);
  return tenant;
}

// Names stand in file names, logs and certificates.
bool plain(std::string_view name) {
  return !name.empty() && name.size() <= 64 && name[0] != '.' &&
         std::all_of(name.begin(), name.end(),
                     [](unsigned char c) { return std::isalnum(c) || c == '-' || c == '_' || c == '.'; });
}

}  // namespace

int rank(wire::Priority priority) {
  switch (priority) {
    case wire::Priority::LATENCY_CRITICAL: return 2;
    case wire::Priority::NORMAL: return 1;
    default: return 0;
  }
}

const char* text_of(wire::Priority priority) {
  switch (priority) {
    case wire::Priority::LATENCY_CRITICAL: return "latency-critical";
    case wire::Priority::NORMAL: return "normal";
    default: return "best-effort";
  }
}

std::optional<wire::Priority> parse_priority(const std::string& text) {
  for (const auto priority : {wire::Priority::LATENCY_CRITICAL, wire::Priority::NORMAL, wire::Priority::BEST_EFFORT})
    if (text == text_of(priority)) return priority;
  return std::nullopt;
}

Tenants::Tenants() {
  Tenant& everybody = tenants_[default_name];
  everybody.name = default_name;
  everybody.priority = wire::Priority::LATENCY_CRITICAL;
}

Tenants Tenants::read(const std::string& file) {
  Tenants tenants;
  if (file.empty()) return tenants;
  const toml::table table = read_toml(file);
  const toml::node* const all = table.get("tenant");
  if (!all) return tenants;
  const auto require_table = [&](const std::string& key, const toml::node& node) {
    if (!node.is_table())
      throw SettingsError(place_of(file, node) + ": " + key + " is " + what_is(node) + "; write tables [tenant.NAME]");
  };
  require_table("tenant", *all);
  tenants.tenants_.clear();
  tenants.configured_ = true;
  std::set<std::string> taken;
  std::set<std::uint32_t> users;
  for (const auto& [key, value] : *all->as_table()) {
    const std::string name(key.str());
    require_table("tenant." + name, value);
    if (!plain(name))
      throw SettingsError(file + ": '" + name + "' cannot be a tenant's name; use letters, digits, '-', '_' and '.'");
    const Tenant& tenant = tenants.tenants_[name] = read_tenant(file, name, *value.as_table());
    for (const std::string& certificate : tenant.certificates)
      if (!taken.insert(certificate).second)
        throw SettingsError(file + ": certificate '" + certificate + "' is of two tenants");
    for (const std::uint32_t user : tenant.users)
      if (!users.insert(user).second)
        throw SettingsError(file + ": user " + std::to_string(user) + " is of two tenants");
  }
  return tenants;
}

const Tenant* Tenants::find(const std::string& name) const {
  const auto found = tenants_.find(name);
  return found == tenants_.end() ? nullptr : &found->second;
}

const Tenant* Tenants::of_certificate(const std::string& common_name) const {
  for (const auto& [name, tenant] : tenants_)
    if (std::find(tenant.certificates.begin(), tenant.certificates.end(), common_name) != tenant.certificates.end())
      return &tenant;
  return find(common_name);
}

const Tenant* Tenants::of_user(std::uint32_t user) const {
  for (const auto& [name, tenant] : tenants_)
    if (std::find(tenant.users.begin(), tenant.users.end(), user) != tenant.users.end()) return &tenant;
  return find(default_name);
}

}  // namespace fargpu::server
