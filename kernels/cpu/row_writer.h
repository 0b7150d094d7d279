// Writes rows past the caches if they are not read soon.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace hpmoe {

class RowWriter {
 public:
  explicit RowWriter(bool is_streamed) : is_streamed_(is_streamed) {}
  // Orders the streamed stores before later stores.
  ~RowWriter() {
#if defined(__SSE2__)
    _mm_sfence();
#endif
  }

  void write(char* to, const char* from, int64_t bytes) const {
#if defined(__SSE2__)
    if (is_streamed_) {
      const int64_t head = std::min<int64_t>(bytes, -reinterpret_cast<intptr_t>(to) & 15);
      std::memcpy(to, from, head);
      int64_t i = head;
      for (; i + 16 <= bytes; i += 16) {
        _mm_stream_si128(reinterpret_cast<__m128i*>(to + i), _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
      }
      std::memcpy(to + i, from + i, bytes - i);
      return;
    }
#endif
    std::memcpy(to, from, bytes);
  }

 private:
  const bool is_streamed_;
};

}  // namespace hpmoe
