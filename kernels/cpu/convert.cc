// Integer arithmetic without branches, so that compilers vectorise the loops for every instruction set.
#include "convert.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "bits.h"
#include "multiversion.h"

namespace hpmoe {
namespace {

HPMOE_INLINE float from_bfloat16(uint16_t bits) { return bits_as<float>(uint32_t{bits} << 16); }

HPMOE_INLINE uint16_t to_bfloat16(float value) {
  const uint32_t bits = bits_as<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
  const uint32_t quiet_nan = bits >> 16 | 0x40u;
  return static_cast<uint16_t>(choose((bits & 0x7FFFFFFFu) > 0x7F800000u, quiet_nan, rounded));
}

HPMOE_INLINE float from_float16(uint16_t half) {
  const uint32_t sign = (uint32_t{half} & 0x8000u) << 16, magnitude = uint32_t{half} & 0x7FFFu;
  const uint32_t normal = (magnitude << 13) + (112u << 23);
  const uint32_t special = magnitude << 13 | 0x7F800000u;
  const uint32_t subnormal = bits_as<uint32_t>(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f);
  const uint32_t finite = choose(magnitude < 0x400u, subnormal, normal);
  return bits_as<float>(sign | choose(magnitude >= 0x7C00u, special, finite));
}

HPMOE_INLINE uint16_t to_float16(float value) {
  const uint32_t bits = bits_as<uint32_t>(value), magnitude = bits & 0x7FFFFFFFu;
  const uint32_t normal = (magnitude - (112u << 23) + 0xFFFu + (magnitude >> 13 & 1u)) >> 13;
  // Adding 0.5 shifts a multiple of 2^-24, the smallest float16, into the lowest bits.
  const uint32_t subnormal = bits_as<uint32_t>(bits_as<float>(magnitude) + 0.5f) - 0x3F000000u;
  const uint32_t special = choose(magnitude > 0x7F800000u, 0x7E00u, 0x7C00u);
  const uint32_t finite = choose(magnitude < 0x38800000u, subnormal, normal);
  return static_cast<uint16_t>(choose(magnitude >= 0x47800000u, special, finite) | (bits >> 16 & 0x8000u));
}

HPMOE_MULTIVERSION
void widen_bfloat16(int64_t n, const uint16_t* from, float* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = from_bfloat16(from[i]);
}

HPMOE_MULTIVERSION
void narrow_bfloat16(int64_t n, const float* from, uint16_t* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = to_bfloat16(from[i]);
}

HPMOE_MULTIVERSION
void widen_float16(int64_t n, const uint16_t* from, float* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = from_float16(from[i]);
}

HPMOE_MULTIVERSION
void narrow_float16(int64_t n, const float* from, uint16_t* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = to_float16(from[i]);
}

}  // namespace

void to_float32(Dtype dtype, const void* from, int64_t n, float* to) {
  switch (dtype) {
    case Dtype::BFLOAT16: return widen_bfloat16(n, static_cast<const uint16_t*>(from), to);
    case Dtype::FLOAT16: return widen_float16(n, static_cast<const uint16_t*>(from), to);
    case Dtype::FLOAT32: std::memcpy(to, from, n * sizeof(float)); return;
    case Dtype::INT32:
    case Dtype::INT64:
    case Dtype::UINT8: break;
  }
  std::fill_n(to, n, std::numeric_limits<float>::quiet_NaN());
}

void from_float32(Dtype dtype, const float* from, int64_t n, void* to) {
  switch (dtype) {
    case Dtype::BFLOAT16: return narrow_bfloat16(n, from, static_cast<uint16_t*>(to));
    case Dtype::FLOAT16: return narrow_float16(n, from, static_cast<uint16_t*>(to));
    case Dtype::FLOAT32: std::memcpy(to, from, n * sizeof(float)); return;
    case Dtype::INT32:
    case Dtype::INT64:
    case Dtype::UINT8: break;
  }
  std::fill_n(static_cast<float*>(to), n, std::numeric_limits<float>::quiet_NaN());
}

}  // namespace hpmoe
