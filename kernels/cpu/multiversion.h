// Portable binaries that use the vector units of the machine: a marked function is compiled once for each instruction
// set, and the loader selects one. Builds with sanitizers compile it once, because their runtimes start after that
// selection.
#pragma once

#if defined(__clang__)
#define HPMOE_KNOWS_CLONES (__clang_major__ >= 18)
#else
#define HPMOE_KNOWS_CLONES (__GNUC__ >= 12)
#endif
#if defined(__x86_64__) && defined(__GLIBC__) && HPMOE_KNOWS_CLONES && !defined(__SANITIZE_THREAD__) && \
    !defined(__SANITIZE_ADDRESS__)
#define HPMOE_MULTIVERSION __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define HPMOE_MULTIVERSION
#endif

#define HPMOE_INLINE inline __attribute__((always_inline))
