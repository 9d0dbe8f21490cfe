#include "help.h"

#include <map>
#include <vector>

#include "protocol/nearest.h"

namespace fargpu::client::cli {
namespace {

/// By the names of options, and of what stands without one.
const std::map<std::string, const char*> value_names = {
    {"pool", "HOSTS"},      {"host", "HOST"},      {"gpus", "COUNT"},      {"hosts", "COUNT"},   {"mem", "SIZE"},
    {"compute", "PERCENT"}, {"priority", "CLASS"}, {"wait", "TIME"},       {"output", "FORMAT"}, {"delay", "SECONDS"},
    {"file", "FILE"},       {"folder", "FOLDER"},  {"life", "TIME"},       {"ttl", "TIME"},      {"server", "NAME"},
    {"tenant", "NAME"},     {"name", "NAME"},      {"percent", "PERCENT"}, {"weight", "WEIGHT"}, {"session", "NUMBER"},
    {"policy", "NAME"},     {"program", "WORD"},   {"for", "TIME"},        {"model", "WORD"},    {"leases", "COUNT"},
};

/// By the whole name of a command.
const std::map<std::string, const char*> examples = {
    {"fargpu", "fargpu run -- python3 train.py"},
    {"fargpu run", "fargpu run -n 1 -m 8GiB --wait 10min -- python3 train.py"},
    {"fargpu ls", "fargpu ls --pool gpuhost1,gpuhost2"},
    {"fargpu top", "fargpu top -d 5"},
    {"fargpu policy", "fargpu policy show"},
    {"fargpu policy show", "fargpu policy show --host gpuhost"},
    {"fargpu policy set", "fargpu policy set fair"},
    {"fargpu quota", "fargpu quota 12 --percent 30"},
    {"fargpu pool", "fargpu pool set lab --mem 160GiB --leases 8"},
    {"fargpu pool set", "fargpu pool set lab --mem 160GiB --leases 8"},
    {"fargpu end", "fargpu end 12"},
    {"fargpu evict", "fargpu evict 12"},
    {"fargpu cache", "fargpu cache --host gpuhost --clear"},
    {"fargpu drain", "fargpu drain --host gpuhost --for 2h"},
    {"fargpu resume", "fargpu resume --host gpuhost"},
    {"fargpu smi", "fargpu smi -o json"},
    {"fargpu doctor", "fargpu doctor --pool gpuhost"},
    {"fargpu variables", "fargpu variables -o json"},
    {"fargpu token", "fargpu token list --file tokens"},
    {"fargpu token create", "fargpu token create --file tokens --tenant lab --name anna --ttl 90d > anna.token"},
    {"fargpu token list", "fargpu token list --file tokens"},
    {"fargpu token revoke", "fargpu token revoke --file tokens anna"},
    {"fargpu pki", "fargpu pki init --folder pki"},
    {"fargpu pki init", "fargpu pki init --folder pki"},
    {"fargpu pki issue", "fargpu pki issue --folder pki --server gpuhost --host gpuhost.example.org"},
    {"fargpu pki renew", "fargpu pki renew --folder pki gpuhost"},
};

void complete(CLI::App& app, const std::string& name) {
  for (CLI::Option* const option : app.get_options()) {
    if (option->get_type_size() == 0) continue;  // a flag
    const auto& names = option->get_lnames();
    const auto known = value_names.find(names.empty() ? option->get_single_name() : names.front());
    if (known != value_names.end()) option->type_name(known->second);
  }
  if (const auto example = examples.find(name); example != examples.end()) {
    const std::string footer = app.get_footer();
    app.footer(std::string("Example:\n  ") + example->second + (footer.empty() ? "" : "\n\n" + footer));
  }
  for (CLI::App* const command : app.get_subcommands(nullptr)) complete(*command, name + " " + command->get_name());
}

}  // namespace

void complete_help(CLI::App& app) { complete(app, app.get_name()); }

std::string perhaps_meant(const CLI::App& command, const std::string& written) {
  std::vector<std::string> names;
  const bool is_option = written.starts_with('-');
  if (is_option)
    for (const CLI::Option* const option : command.get_options())
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  else
    for (const CLI::App* const below : command.get_subcommands(nullptr)) names.push_back(below->get_name());
  // A value that was written with the option is not part of its name.
  return perhaps(written.substr(0, written.find('=')), names);
}

}  // namespace fargpu::client::cli
