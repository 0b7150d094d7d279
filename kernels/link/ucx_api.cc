#include "link/ucx_api.h"

#include <dlfcn.h>

#include <cstdlib>
#include <memory>

namespace hpmoe::ucx {
namespace {

// The first version whose active messages can keep their data; the declarations have not changed since.
constexpr unsigned kMajor = 1, kLeastMinor = 12;

std::string folder_of(const void* symbol) {
  Dl_info info{};
  if (!dladdr(symbol, &info) || !info.dli_fname) return "";
  const std::unique_ptr<char, void (*)(void*)> path(realpath(info.dli_fname, nullptr), std::free);
  const std::string name = path ? path.get() : info.dli_fname;
  return name.substr(0, name.rfind('/'));
}

bool find_all(void* library, Api& api, std::string& why) {
  const auto find = [&](const char* name) {
    void* const found = dlsym(library, name);
    if (!found) why = std::string("it has no ") + name;
    return found;
  };
#define HPMOE_UCX_FIND(result, name, parameters) \
  if (!(api.name = reinterpret_cast<result(*) parameters>(find(#name)))) return false;
  HPMOE_UCX_FUNCTIONS(HPMOE_UCX_FIND)
#undef HPMOE_UCX_FIND
  return true;
}

}  // namespace

const Api* load(const char* folder, std::string& why) {
  static Api api;
  setenv("UCX_LOG_LEVEL", "fatal", 0);  // the end of a peer is an error of this library
  void* const library = dlopen((std::string(folder) + "/libucp.so.0").c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    why = dlerror();
    return nullptr;
  }
  if (!find_all(library, api, why)) return nullptr;
  unsigned major = 0, minor = 0, release = 0;
  api.ucp_get_version(&major, &minor, &release);
  if (major != kMajor || minor < kLeastMinor) {
    why = "it is version " + std::to_string(major) + "." + std::to_string(minor) + ", and 1.12 or later is needed";
    return nullptr;
  }
  // UCX finds its parts by name, and another UCX of this process may have loaded the names first.
  const void* const part = dlsym(library, "ucs_status_string");
  if (!part || folder_of(part) != folder_of(reinterpret_cast<const void*>(api.ucp_get_version))) {
    why = "another UCX is loaded in this process, of " + folder_of(part);
    return nullptr;
  }
  return &api;
}

}  // namespace hpmoe::ucx
