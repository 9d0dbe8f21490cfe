#include "context.h"

#include <dlfcn.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <mutex>

#include "protocol/plugin_folders.h"
#include "protocol/text.h"
#include "protocol/version.h"

namespace fargpu::rdma {
namespace {

constexpr const char* file_name = "libfargpu-ucx.so";

std::atomic<const Interface*> instead{nullptr};

std::filesystem::path find_plugin() {
  std::error_code error;
  for (const std::filesystem::path& folder : plugin_folders())
    if (std::filesystem::exists(folder / file_name, error)) return folder / file_name;
  throw RdmaError("the plugin " + std::string(file_name) + " is missing; install the package fargpu-ucx");
}

const Interface& load() {
  const std::filesystem::path path = find_plugin();
  // The plugin keeps from UCX's libraries what they must not have in a program (ucx/interposed.cpp), if it comes first
  // for them.
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  if (!library) {
    const char* const error = ::dlerror();
    throw RdmaError(std::string("the plugin cannot be loaded: ") + printable(error ? error : "?", 512) +
                    "; install UCX 1.13 or newer (libucx0 in Debian)");
  }
  const auto entry = reinterpret_cast<Entry>(::dlsym(library, entry_name));
  if (!entry) throw RdmaError(path.string() + " is no plugin of fargpu");
  const Interface* const functions = entry();
  if (functions->version != interface_version || functions->release != std::string(our_release)) {
    throw RdmaError(
        path.string() + " is of fargpu " +
        (functions->version == interface_version ? printable(functions->release, 64) : "of other versions") +
        ", and this is " + our_release + "; install fargpu-ucx of this release");
  }
  return *functions;
}

}  // namespace

const Interface& plugin() {
  if (const Interface* const other = instead.load()) return *other;
  static std::mutex mutex;
  static const Interface* loaded = nullptr;
  const std::lock_guard lock(mutex);
  if (!loaded) loaded = &load();
  return *loaded;
}

void use_instead(const Interface* functions) { instead = functions; }

OpenedDevices::OpenedDevices(const Interface& functions, const std::string& devices, const std::string& transports)
    : functions_(functions), context_([&] {
        std::array<char, why_bytes> why{};
        Context* const opened = functions.open(devices.c_str(), transports.c_str(), why.data());
        if (!opened) throw RdmaError(printable(why.data(), why_bytes));
        return opened;
      }()) {}

OpenedDevices::~OpenedDevices() { functions_.close(context_); }

}  // namespace fargpu::rdma
