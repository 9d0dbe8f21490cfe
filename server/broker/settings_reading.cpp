// Settings from the command line, the environment and the settings file.

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <toml++/toml.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <variant>

#include "protocol/given_words.h"
#include "protocol/own_executable.h"
#include "protocol/text.h"
#include "settings_checks.h"
#include "settings_file.h"
#include "settings_table.h"

namespace fargpu::server {
namespace {

constexpr const char* footer =
    "Example:\n"
    "  fargpud --listen tls://0.0.0.0:8470 --psk-file shared.key\n"
    "Each setting can also be given by its environment variable or in the settings file, under its name with "
    "underscores.\n"
    "Flags count more than variables, variables more than the file. Bytes may have a unit, such as 4GiB.\n"
    "Paths in the file count from its folder, others from the one in which fargpud is started.\n"
    "Exit codes:\n"
    "  0   it was asked to end\n"
    "  1   it cannot go on, as without a driver, or while another process has its address\n"
    "  2   a setting is wrong";

/// What stands on the command line.
struct CommandLine {
  std::string file;  ///< of settings; empty: the usual one
  bool show_config = false, only_check = false;
  std::map<std::string, std::string> given;  ///< values of settings
};

// Below the prefix that fargpud lies in, which need not be the one that the build was configured with; packages have
// /usr and /etc.
std::string default_file() {
  const std::filesystem::path folder = own_executable().parent_path();
  std::filesystem::path etc = FARGPU_SYSCONFDIR;
  if (folder == "/usr/bin") etc = "/etc";
  else if (folder.filename() == "bin") etc = folder.parent_path() / "etc";
  return etc / "fargpu" / "fargpud.toml";
}

std::string flag_of(const Setting& entry) {
  std::string flag = std::string("--") + entry.name;
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

// What a value is, in the help.
const char* kind_of(const Setting& entry) {
  const std::string_view name = entry.name;
  if (entry.in_bytes()) return "BYTES";
  if (std::holds_alternative<std::uint64_t Settings::*>(entry.field))
    return name.ends_with("_ms")               ? "MILLISECONDS"
           : name.ends_with("_us")             ? "MICROSECONDS"
           : name.find("seconds") != name.npos ? "SECONDS"
                                               : "COUNT";
  if (name.ends_with("folder")) return "FOLDER";
  if (entry.names != Setting::Names::nothing) return "FILE";
  if (name.ends_with("listen") || name == "pool_registry") return "ADDRESSES";
  if (name == "pool_address") return "ADDRESS";
  if (name.ends_with("networks")) return "NETWORKS";
  if (name.ends_with("user")) return "USER";
  return name == "devices" ? "NUMBERS" : "WORD";
}

std::string variable_of(const Setting& entry) {
  std::string variable = std::string("FARGPUD_") + entry.name;
  std::transform(variable.begin(), variable.end(), variable.begin(), [](unsigned char c) { return std::toupper(c); });
  return variable;
}

// A flag for each setting; what they give is kept by the settings' names.
void add_flags(CLI::App& app, std::map<std::string, std::string>& given) {
  for (const Setting& entry : settings_table()) {
    const std::string help = std::string(entry.help) + " [" + (entry.standard.empty() ? "-" : entry.standard) + ", " +
                             variable_of(entry) + "]";
    if (std::holds_alternative<bool Settings::*>(entry.field)) {
      const std::string no = "--no-" + flag_of(entry).substr(2);
      app.add_flag_callback(
          flag_of(entry), [&given, &entry] { given[entry.name] = "true"; }, help + "; " + no + " for not");
      app.add_flag_callback(no, [&given, &entry] { given[entry.name] = "false"; })->group("");  // told with the other
    } else {
      app.add_option_function<std::string>(
             flag_of(entry), [&given, &entry](const std::string& value) { given[entry.name] = value; }, help)
          ->type_name(kind_of(entry));
    }
  }
}

[[noreturn]] void refuse(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<std::string> unknown = app.remaining();
  if (unknown.empty()) throw SettingsError(std::string(error.what()) + "; see `fargpud --help`");
  std::vector<std::string> names;
  for (const CLI::Option* const option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  throw SettingsError("there is no option '" + unknown[0] + "'" +
                      perhaps(unknown[0].substr(0, unknown[0].find('=')), names) + "; see `fargpud --help`");
}

// False if help or version was printed.
bool parse_command_line(int argc, char** argv, CommandLine& line, int& exit_code) {
  CLI::App app("fargpud lets other machines use the GPUs of this one.", "fargpud");
  app.set_version_flag("--version", "fargpud " FARGPU_VERSION);
  app.add_option("--config", line.file,
                 std::string("Settings file, TOML (default: ") + default_file() + ", if there is one)")
      ->type_name("FILE");
  app.add_flag("--show-config", line.show_config, "Print every setting and where it came from, and end");
  app.add_flag("--check", line.only_check,
               "Find all that a start would, and end: settings, tenants, certificates, keys, tokens, addresses and the "
               "driver. 0 if all is in order, 2 if a setting is wrong, 1 if the driver does not work. The log warns of "
               "what ends within 30 days");
  app.add_flag_callback(
      "--sample-config",
      [] {
        std::cout << sample_file();
        throw CLI::Success();
      },
      "Print a settings file with every setting explained, and end");
  add_flags(app, line.given);
  app.footer(footer);
  try {
    std::set<std::string, std::less<>> options;
    add_option_names(std::as_const(app), options);
    GivenWords given(argc, argv, options);
    app.parse(given.count(), given.words());
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) refuse(app, error);
    exit_code = app.exit(error);
    return false;
  }
  return true;
}

// Not refused: Kubernetes gives variables of such names to a pod beside a service called fargpud.
std::vector<std::string> unknown_variables() {
  std::vector<std::string> unknown;
  for (char** variable = environ; *variable; ++variable) {
    const std::string_view name = std::string_view(*variable).substr(0, std::string_view(*variable).find('='));
    if (name.starts_with("FARGPUD_") && std::none_of(settings_table().begin(), settings_table().end(),
                                                     [&](const Setting& entry) { return name == variable_of(entry); }))
      unknown.emplace_back(name);
  }
  return unknown;
}

// Names that there are not, of which one may be meant.
void check_names(const std::string& file, const toml::table& table) {
  std::vector<std::string> known{"tenant"};  // read apart, and again when they change
  for (const Setting& entry : settings_table()) known.emplace_back(entry.name);
  for (const auto& [key, value] : table) {
    const std::string written(key.str());
    if (std::find(known.begin(), known.end(), written) != known.end()) continue;
    const std::string what = place_of(file, key) + ": there is no setting '" + written + "'";
    if (const auto* const inner = value.as_table()) {
      if (nearest(written, known) == "tenant") {
        const std::string name =
            inner->empty() || !inner->begin()->second.is_table() ? "NAME" : printable(inner->begin()->first.str(), 64);
        throw SettingsError(what + "; did you mean [tenant." + name + "]?");
      }
      throw SettingsError(what + "; the only tables are [tenant.NAME]");
    }
    throw SettingsError(what + perhaps(written, known) + "; `fargpud --help` lists them all");
  }
}

// The file's values; none where there is no file and none is named.
toml::table read_file(std::string file, Settings& settings) {
  toml::table table;
  const bool wanted = !file.empty();
  if (!wanted) file = default_file();
  std::error_code error;
  const auto status = std::filesystem::status(file, error);
  const bool there = std::filesystem::exists(status);
  if (!there && error && error != std::errc::no_such_file_or_directory && error != std::errc::not_a_directory)
    throw SettingsError("cannot read " + file + " (" + error.message() + "); fargpud's user must be able to");
  if (wanted || there) {
    if (!there) throw SettingsError(file + ": there is no such file; name one with --config");
    if (std::filesystem::is_directory(status)) throw SettingsError(file + " is a folder; name a file with --config");
    table = read_toml(file);
    settings.file = file;
    check_names(file, table);
  }
  return table;
}

void store(Settings& settings, const Setting& entry, const std::string& value, const std::string& from) {
  const auto complain = [&](const std::string& wanted) {
    throw SettingsError(std::string(entry.name) + " is '" + value + "' (" + from + "); " + wanted);
  };
  if (const auto* text = std::get_if<std::string Settings::*>(&entry.field)) {
    settings.*(*text) = value;
  } else if (const auto* number = std::get_if<std::uint64_t Settings::*>(&entry.field)) {
    std::uint64_t parsed = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), parsed);
    const bool whole = error == std::errc{} && end == value.data() + value.size() && !value.empty();
    const auto bytes = entry.in_bytes() && !whole ? parse_bytes(value) : std::nullopt;
    if (!whole && !bytes)
      complain(entry.in_bytes() ? "an amount is wanted, for example 4GiB" : "a whole number is wanted");
    settings.*(*number) = bytes.value_or(parsed);
  } else {
    const bool yes = value == "true" || value == "1" || value == "yes";
    if (!yes && value != "false" && value != "0" && value != "no") complain("true or false is wanted");
    settings.*std::get<bool Settings::*>(entry.field) = yes;
  }
  settings.origins.push_back({entry.name, value, from});
}

// A value of the file, as flags and variables have it.
std::string text_of(const std::string& file, const Setting& entry, const toml::node& node) {
  const auto complain = [&](const std::string& wanted) -> std::string {
    throw SettingsError(place_of(file, node) + ": " + entry.name + " is " + what_is(node) + "; " + wanted);
  };
  if (std::holds_alternative<std::uint64_t Settings::*>(entry.field)) {
    const auto* const value = node.as_integer();
    if (const auto* const amount = node.as_string(); entry.in_bytes()) {
      if (amount && parse_bytes(amount->get())) return amount->get();
      if (!value || value->get() < 0)
        complain(std::string("an amount is wanted, for example ") + entry.name + " = \"4GiB\"");
    }
    return value && value->get() >= 0
               ? std::to_string(value->get())
               : complain(std::string("a whole number is wanted, for example ") + entry.name + " = " + entry.standard);
  }
  if (std::holds_alternative<bool Settings::*>(entry.field)) {
    const auto* const value = node.as_boolean();
    return value ? (value->get() ? "true" : "false") : complain("true or false is wanted, without quotes");
  }
  const auto item = [&](const toml::node& one) -> std::string {
    if (const auto* value = one.as_string()) return value->get();
    if (const auto* value = one.as_integer(); value && entry.field == decltype(entry.field)(&Settings::devices))
      return std::to_string(value->get());
    if (entry.field == decltype(entry.field)(&Settings::memory_oversubscription) && one.is_number())
      return fmt::format("{}", *one.value<double>());
    return complain("a text in quotes is wanted, or a list of what `fargpud --help` separates by commas");
  };
  const auto* const list = node.as_array();
  if (!list)
    return from_folder(std::filesystem::absolute(file).parent_path(), entry,
                       item(node));  // wherever fargpud is started
  std::string joined;
  for (const auto& one : *list) joined += (joined.empty() ? "" : ",") + item(one);
  return joined;
}

}  // namespace

Command read_settings(int argc, char** argv, Settings& settings, int& exit_code) {
  settings.arguments.assign(argv, argv + argc);
  CommandLine line;
  if (!parse_command_line(argc, argv, line, exit_code)) return Command::done;
  settings.unknown_variables = unknown_variables();
  const toml::table table = read_file(line.file, settings);
  for (const Setting& entry : settings_table()) {
    const char* const variable = std::getenv(variable_of(entry).c_str());
    if (const auto flag = line.given.find(entry.name); flag != line.given.end())
      store(settings, entry, flag->second, "flag " + flag_of(entry));
    else if (variable) store(settings, entry, variable, "environment variable " + variable_of(entry));
    else if (const auto* node = table.get(entry.name))
      store(settings, entry, text_of(settings.file, entry, *node), "file " + settings.file);
    else store(settings, entry, entry.standard, "default");
  }
  check_settings(settings);
  return line.show_config ? Command::show_config : line.only_check ? Command::check : Command::serve;
}

}  // namespace fargpu::server
