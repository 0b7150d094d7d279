// The enums of an image; see protocol.py and hpmoe/tile_ops.
// Written by `python -m hpmoe.kernels.schema`; a test holds it equal to the definitions.
// clang-format off
#pragma once

#include <cstdint>

namespace hpmoe {

enum class Opcode : int32_t {
  PUT = 1, PUT_BACK = 2, REDUCE = 3, GMM = 4, WGRAD = 5, MAP = 6, SWIGLU = 7, SWIGLU_GRAD = 8, ROW_REDUCE = 9, ROW_DOT = 10,
  COL_SUM = 11, ALL_TO_ALL = 12, ALL_TO_ALL_BACK = 13, NOTIFY = 14, GATHER = 15, KEEP = 16, DROP_COUNTS = 17, LAUNCH = 18,
  REPLICATE = 19, RETURN_GRADS = 20, FAN_OUT = 21, FAN_IN = 22, TOP_K = 23, TAKE_COLS = 24, ADD_COLS = 25, CUMSUM = 26,
  DRAW = 27, PICK = 28, PLACE = 29, GROUP_REDUCE = 30, FILL_OUTSIDE = 31, COUNT_OUTSIDE = 32, QUANTIZE = 33, DEQUANTIZE = 34,
  REDUCE_QUANTIZED = 35, COUNT_AND_FILL = 36, REDUCE_AND_FILL = 37, RELAY_SUM = 38, GMM_INT8 = 39, RESCALE = 40,
  GMM_DEQUANTIZED = 41, QUANTIZE_WEIGHT = 42, DEQUANTIZE_WEIGHT = 43, GMM_FP8 = 44, RMS_NORM = 45, RMS_NORM_GRAD = 46
};
enum class MapCode : int32_t {
  COPY = 0, NEG = 1, EXP = 2, LOG = 3, SQRT = 4, RSQRT = 5, SIGMOID = 6, TANH = 7, SILU = 8, RELU = 9, ERF = 10, ABS = 11,
  RECIPROCAL = 12, SQUARE = 13, SIN = 14, COS = 15, SIGN = 16, SOFTPLUS = 17, FLOOR = 18, ROUND = 19, ADD = 32, SUB = 33,
  MUL = 34, DIV = 35, POW = 36, MAXIMUM = 37, MINIMUM = 38, GREATER = 39, GREATER_EQUAL = 40, LESS = 41, LESS_EQUAL = 42,
  EQUAL = 43, NOT_EQUAL = 44, FLOOR_DIV = 45, REMAINDER = 46, SELECT = 64
};
enum class Domain : int32_t { ONCE = 0, TILES = 1, SLOTS = 2, EXPERTS = 3, COPIES = 4 };
enum class Rows : int16_t {
  OWN = 0, ALL = 1, ONE = 2, SLOT_EXPERT = 3, EXPERT = 4, PEER = 5, ENTRIES = 6, TOKENS = 7, REPLICA = 8, RETURNED = 9,
  FAN = 10, RELAY_ROWS = 11, RELAY_ENTRIES = 12
};
enum class Cols : int16_t { OWN = 0, ALL = 1, ONE = 2 };
enum class Index : int32_t { STATIC = 0, SLOT_EXPERT = 1, ENTRY_TILE = 2, UNIT = 3, EXPERT = 4, PEER = 5, PEER_UNIT = 6 };
enum class Amount : int16_t { ROWS = 0, COUNT = 1 };
enum class Remote : int32_t { LOCAL = 0, PEER = 1, EVERY = 2 };
enum class Extent : int32_t {
  ONE = 0, SLOT = 1, EXPERT = 2, RECEIVED = 3, TILE = 4, STATIC_TILE = 5, TOKENS = 6, ENTRIES = 7, TILE_ENTRIES = 8,
  SENT_TO = 9, SENT_TO_EXPERT = 10, RETURNED_TO = 11, RETURNED_TO_FROM_EXPERT = 12, REPLICA = 13, REPLICAS = 14,
  RELAYED = 15
};
enum class Dtype : int32_t { FLOAT32 = 0, INT32 = 1, BFLOAT16 = 2, FLOAT16 = 3, INT64 = 4, UINT8 = 5 };
enum class Reduction : int32_t { SUM = 0, MAX = 1 };
enum class Fill : int32_t { ZERO = 0, MEAN = 1, SPREAD = 2 };
enum class Leg : int32_t { DISPATCH = 0, COMBINE = 1 };
enum class LaidOut : int32_t { NO_ROWS = 0, SENT_ROWS = 1, RECEIVED_ROWS = 2 };
enum class Element : int32_t { INT8 = 0, E4M3 = 1 };
enum class BlockScale : int32_t { FLOAT32 = 0, E8M0 = 1 };
enum class DropPolicy : int32_t { NONE = 0, ERROR = 1, POSITION = 2, PROBS = 3 };
enum class Code : int32_t {
  OK = 0, TIMEOUT = 1, ABORTED_PEER = 2, OUT_OF_MEMORY = 3, BAD_IMAGE = 4, INTERRUPTED = 5, WRONG_COUNT = 6,
  SLOT_OVERFLOW = 7, INDEX_OUT_OF_RANGE = 8, OVER_CAPACITY = 9, NOT_A_NUMBER = 10, NO_ROW_CAPACITY = 11, PEER_DIED = 12,
  PEER_LEFT = 13, PEER_LATE = 14, PEER_FAILED = 15, OTHER_CALL = 16, IDS_CHANGED = 17, NOT_SHARED = 18, PEER_LOST = 19
};

constexpr int32_t kNumOpcode = 46, kNumMapCode = 36, kNumDomain = 5, kNumRows = 13, kNumCols = 3, kNumIndex = 7;
constexpr int32_t kNumAmount = 2, kNumRemote = 3, kNumExtent = 16, kNumDtype = 6, kNumReduction = 2, kNumFill = 3;
constexpr int32_t kNumLeg = 2, kNumLaidOut = 3, kNumElement = 2, kNumBlockScale = 2, kNumDropPolicy = 4, kNumCode = 20;

}  // namespace hpmoe
