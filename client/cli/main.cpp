// fargpu: the command line of people who use remote GPUs.

#include <CLI/CLI.hpp>

#include <algorithm>
#include <iostream>

#include "commands.h"

int main(int argc, char** argv) {
  using namespace fargpu::client;
  CLI::App app("fargpu runs programs on GPUs of other machines.", "fargpu");
  app.set_version_flag("--version", "fargpu " FARGPU_VERSION);
  app.require_subcommand(1);
  app.footer("The pool of GPU hosts is FARGPU_POOL=host[:port][,host...], or --pool.\n"
             "Exit codes: the program's own; 75 no capacity now; 125 an error of fargpu; 126 denied, or no\n"
             "program that can be executed; 127 program not found.");

  cli::RunOptions run;
  CLI::App* const run_command = app.add_subcommand("run", "Run a program with the pool's GPUs");
  run_command->add_option("--pool", run.pool, "GPU hosts, host[:port][,host...] (default: FARGPU_POOL)");
  run_command->add_flag("--no-check", run.no_check, "Start the program without asking the pool first");
  run_command->add_option("program", run.arguments, "The program and its arguments, after --")->required();
  run_command->prefix_command(false);
  run_command->positionals_at_end();

  cli::ListOptions list;
  CLI::App* const list_command = app.add_subcommand("ls", "Show hosts, devices and sessions");
  list_command->add_option("--pool", list.pool, "GPU hosts (default: FARGPU_POOL)");
  list_command->add_option("-o,--output", list.output, "table or json")->check(CLI::IsMember({"table", "json"}));

  cli::SmiOptions smi;
  CLI::App* const smi_command = app.add_subcommand("smi", "Show the devices that programs would get here, and what they do");
  smi_command->add_option("--pool", smi.pool, "GPU hosts (default: FARGPU_POOL)");
  smi_command->add_option("-o,--output", smi.output, "table or json")->check(CLI::IsMember({"table", "json"}));

  cli::DoctorOptions doctor;
  CLI::App* const doctor_command = app.add_subcommand("doctor", "Check everything that a program will need, and say how to mend it");
  doctor_command->add_option("--pool", doctor.pool, "GPU hosts (default: FARGPU_POOL)");

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const auto commands = app.get_subcommands(nullptr);
    const std::string word = argc > 1 ? argv[1] : "";
    const auto is_word = [&](const CLI::App* command) { return command->get_name() == word; };
    if (!word.empty() && word[0] != '-' && std::none_of(commands.begin(), commands.end(), is_word)) {
      std::cerr << "fargpu: there is no command '" << word << "'; commands are";
      for (const CLI::App* command : commands) std::cerr << " " << command->get_name();
      std::cerr << "; `fargpu run -- " << word << "` runs a program\n";
      return cli::exit_own_error;
    }
    const int code = app.exit(error);
    return code == 0 ? 0 : cli::exit_own_error;
  }
  try {
    if (run_command->parsed()) return cli::run(run);
    if (list_command->parsed()) return cli::list(list);
    if (smi_command->parsed()) return cli::smi(smi);
    return cli::doctor(doctor);
  } catch (const std::exception& error) {
    std::cerr << "fargpu: " << error.what() << "\n";
    return cli::exit_own_error;
  }
}
