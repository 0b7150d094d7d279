// Loads each shared library that it is given, every symbol resolved at once.
#include <dlfcn.h>

#include <cstdio>

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (!dlopen(argv[i], RTLD_NOW)) return std::fprintf(stderr, "%s\n", dlerror()), 1;
    std::printf("loads: %s\n", argv[i]);
  }
}
