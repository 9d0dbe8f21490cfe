#pragma once
// What of the commands' help is in tables: what a value is called, and an example of each command.

#include <CLI/CLI.hpp>

#include <string>

namespace fargpu::client::cli {

/// Completes the help of all commands below this one.
void complete_help(CLI::App& app);

/// "; perhaps '--mem' is meant", of the options and commands of this command, or nothing.
std::string perhaps_meant(const CLI::App& command, const std::string& written);

}  // namespace fargpu::client::cli
