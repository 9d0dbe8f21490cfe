// Settings as texts of a settings file.

#include <toml++/toml.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "protocol/text.h"
#include "settings_file.h"
#include "settings_table.h"

namespace fargpu::server {

std::string sample_file() {
  std::string text =
      "# Settings of fargpud. What is commented out has its default: the value shown, where the words do not say "
      "otherwise.\n";
  for (const Setting& entry : settings_table()) {
    const bool quoted = std::holds_alternative<std::string Settings::*>(entry.field);
    // What depends on the machine and the user is shown by an example.
    std::string value = entry.standard, note;
    if (entry.field == decltype(entry.field)(&Settings::image_folder)) {
      value = "/var/cache/fargpu/images";
      note = " Default: .cache/fargpu/images in the user's home";
    } else if (entry.field == decltype(entry.field)(&Settings::worker)) {
      value = "/usr/local/libexec/fargpu/fargpu-worker";
      note = " Default: the one that was installed with fargpud";
    } else if (entry.field == decltype(entry.field)(&Settings::runtime_folder)) {
      value = "/run/fargpu/sessions";
      note = " Default: this one for the installed service, else none";
    }
    text += std::string("\n# ") + entry.help + "." + note + (note.empty() ? "" : ".") + "\n# " + entry.name + " = " +
            (quoted ? "\"" + value + "\"" : value) + "\n";
  }
  text +=
      "\n# Tenants of this host and their limits, a table each. Without any table there is one tenant, default, "
      "without limits. SIGHUP reads the tables again.\n"
      "# [tenant.lab]\n"
      "# memory = \"40GiB\"           # on all devices together\n"
      "# compute = \"150%\"           # of all devices together, 100% for each\n"
      "# sessions = 16              # at once\n"
      "# host_memory = \"16GiB\"      # of this host's memory, that the sessions of one lease may take together\n"
      "# bandwidth = \"100MB\"        # a second, that the sessions of one lease may move over the network together\n"
      "# kernel_seconds_max = 60    # instead of the host's\n"
      "# resume_seconds = 10        # instead of the host's\n"
      "# mps = \"/run/mps-lab\"       # folder of the pipes of the MPS daemon of the tenant, whose programs then run "
      "on a device at the same time\n"
      "# sm_partitions = false      # whether each lease has multiprocessors of its own, by its percentage; needs mps\n"
      "# administrator = false      # whether the tenant is an administrator: it sees all sessions, and may use "
      "`fargpu end`, `drain`, `policy`, `quota`\n"
      "# weight = 200               # against other tenants, for all its leases that have work; 100 by default\n"
      "# devices = [0, 1]           # that it may use, by their places in `devices`; all by default\n"
      "# priority = \"normal\"        # the highest that it may ask for: best-effort, normal or latency-critical\n"
      "# certificates = [\"node1\"]   # common names of client certificates, besides its own name\n"
      "# users = [1000]             # users of this machine, by number, that connect by its Unix socket\n";
  return text;
}

std::string settings_text(const Settings& settings) {
  std::string text;
  for (const Setting& entry : settings_table()) {
    std::string value;
    if (const auto* words = std::get_if<std::string Settings::*>(&entry.field))
      value = quoted(from_folder(std::filesystem::current_path(), entry, settings.*(*words)));
    else if (const auto* number = std::get_if<std::uint64_t Settings::*>(&entry.field))
      value = std::to_string(settings.*(*number));
    else value = settings.*std::get<bool Settings::*>(entry.field) ? "true" : "false";
    const auto origin = std::find_if(settings.origins.begin(), settings.origins.end(),
                                     [&](const auto& one) { return one.name == entry.name; });
    text += std::string(entry.name) + " = " + value + "   # " + printable(origin->from, 512) + "\n";
  }
  if (settings.file.empty()) return text;
  const toml::table table = read_toml(settings.file);
  const toml::node* const tenants = table.get("tenant");
  if (!tenants) return text;
  std::ostringstream words;
  words << "\n" << toml::toml_formatter(toml::table{{"tenant", *tenants->as_table()}}) << "\n";
  return text + words.str();
}

}  // namespace fargpu::server
