// FAN_OUT and FAN_IN: between tokens that a rank received once and the rows of its experts for these tokens.
#pragma once

#include "counters.h"
#include "transfer_body.h"

namespace hpmoe {

// Returns the routing to the experts of the ranks that a token goes to.
__aicore__ inline RoutingTables experts_of(const Frame& frame) {
  const RankView& rank = *frame.rank;
  RoutingTables experts;
  experts.init(rank.image, frame.routing.route().of, rank.num_aiv, rank.args);
  return experts;
}

// Iterates over the tokens of a slot of a route to ranks, as many at a time as UB can list rows for.
class Fans {
 public:
  __aicore__ inline Fans(VectorUnit& unit, const Frame& frame)
      : unit_(unit),
        frame_(frame),
        experts_(experts_of(frame)),
        has_many_(experts_.route().top_k > kMaxFans),
        is_of_relays_(frame.rank->image.passed_on(frame.op.route) >= 0),
        most_fans_(has_many_ ? VectorUnit::kMostEntries / 2 : kMaxFans) {}

  // Lists the next tokens; returns false at the end.
  __aicore__ inline bool next() {
    part_.first_row += count_;
    part_.first_entry += count_;
    part_.rows -= count_;
    count_ = 0;
    const int32_t me = frame_.rank->args.rank;
    while (part_.rows <= 0) {
      if (++source_ == frame_.rank->image.header().ep_size) return false;
      part_ = frame_.routing.segment_in_slot(source_, me, frame_.unit);
    }
    const RouteTables& tables = frame_.routing.tables();
    const int32_t most_tokens = least(kMaxTokens, part_.rows);
    starts_ = unit_.read_entries(address_of(tables.fan_start + part_.first_entry), most_tokens + 1);
    for (count_ = 1; count_ < most_tokens && starts_.GetValue(count_ + 1) - starts_.GetValue(0) <= most_fans_;) ++count_;
    const uint64_t list = address_of(tables.fans + 2 * starts_.GetValue(0));
    const int32_t words = 2 * (starts_.GetValue(count_) - starts_.GetValue(0));
    rows_ = has_many_ ? unit_.read_long_entries(list, words) : unit_.read_entries(list, words, kRowsFrom);
    return true;
  }

  // Returns the number of listed tokens, the received row of the first, and a token's number of rows and each row.
  __aicore__ inline int32_t count() const { return count_; }
  __aicore__ inline int32_t first_row() const { return part_.first_row; }
  __aicore__ inline int32_t num_rows(int32_t token) const { return starts_.GetValue(token + 1) - starts_.GetValue(token); }
  __aicore__ inline Fan fan(int32_t token, int32_t i) const {
    const int32_t at = 2 * (starts_.GetValue(token) - starts_.GetValue(0) + i);
    return {rows_.GetValue(at), rows_.GetValue(at + 1)};
  }
  // Returns the row of a token; for relays, row * K + choice of what came back.
  __aicore__ inline int32_t row(int32_t token, int32_t i) const {
    if (is_of_relays_) return (first_row() + token) * experts_.route().top_k + fan(token, i).place;
    return experts_.row_of(source_, fan(token, i));
  }

 private:
  static constexpr int32_t kMaxTokens = 64, kRowsFrom = 80, kMaxFans = 256;
  static_assert(kRowsFrom > kMaxTokens && kRowsFrom + 2 * kMaxFans <= kEntryWords, "both lists fit their buffer");

  __aicore__ inline uint64_t address_of(int32_t word) const {
    return address_on(frame_.rank->args.tables, source_) + static_cast<uint64_t>(word) * sizeof(int32_t);
  }

  VectorUnit& unit_;
  const Frame& frame_;
  const RoutingTables experts_;
  const bool has_many_;  // a token may have more rows than fit beside the list of starts
  const bool is_of_relays_;
  const int32_t most_fans_;
  AscendC::LocalTensor<int32_t> starts_, rows_;
  Segment part_{0, 0, 0, 0, 0, 0};
  int32_t source_ = -1, count_ = 0;
};

// The padding rows of the rank's experts, which the task of the first unit writes; such a task exists on every rank that
// receives tokens.
class FanPadding {
 public:
  __aicore__ inline explicit FanPadding(const Frame& frame)
      : experts_(experts_of(frame)), rank_(frame.rank->args.rank), expert_(frame.task.row == 0 ? -1 : kNone) {}

  // Advances to the next expert with padding; returns false at the end.
  __aicore__ inline bool next() {
    if (expert_ == kNone) return false;
    while (++expert_ < experts_.num_local_experts())
      if (num_rows() > 0) return true;
    expert_ = kNone;
    return false;
  }
  __aicore__ inline int32_t expert() const { return expert_; }
  __aicore__ inline int32_t num_rows() const { return experts_.expert_padding(rank_, expert_); }
  __aicore__ inline int32_t first_row() const { return experts_.expert_start(rank_, expert_ + 1) - num_rows(); }

 private:
  static constexpr int32_t kNone = -2;
  RoutingTables experts_;
  int32_t rank_, expert_;
};

// Computes out[r] = in[t] for the rows r that the rank's experts have of each token, and 0 for padding rows.
__aicore__ inline void fan_out(VectorUnit& unit, const Frame& frame) {
  const Buffer to = frame.buffer(0), from = frame.buffer(1);
  const int32_t size = element_bytes(to.dtype), width = frame.num_cols(0, to) * size, row_bytes = from.cols * size;
  const int32_t part = least(width, kPassBytes), pitch = round_up(part, kBlockBytes), rows_at_once = kPassBytes / pitch;
  for (Fans fans(unit, frame); fans.next();) {
    for (int32_t first = 0; first < fans.count(); first += rows_at_once) {
      const int32_t rows = least(rows_at_once, fans.count() - first);
      for (int32_t begin = 0; begin < width; begin += part) {
        const int32_t bytes = least(part, width - begin);
        Bytes buffer = unit.passing.AllocTensor<uint8_t>();
        unit.copy_in(buffer, frame.element(1, from, fans.first_row() + first, frame.first_col(1)) + begin, rows, bytes,
                     row_bytes, pitch);
        unit.passing.EnQue(buffer);
        buffer = unit.passing.DeQue<uint8_t>();
        for (int32_t r = 0; r < rows; ++r)
          for (int32_t i = 0; i < fans.num_rows(first + r); ++i)
            unit.copy_out(frame.element(0, to, fans.row(first + r, i), frame.first_col(0)) + begin, buffer[r * pitch], 1,
                          bytes, 0, pitch);
        unit.passing.FreeTensor(buffer);
      }
    }
  }
  for (FanPadding zeros(frame); zeros.next();)
    clear_rows(unit, frame.element(0, to, zeros.first_row(), frame.first_col(0)), static_cast<int64_t>(to.cols) * size,
               zeros.num_rows(), width);
}

// A part of the rows of a token; is_first and is_last mark the first and last part for these columns.
struct FanPiece {
  int32_t token, first, num_rows, col, num_cols, pitch;
  bool is_first, is_last;
};

// Iterates token by token and columns by columns, with as many rows as fit.
class FanPieces {
 public:
  __aicore__ inline FanPieces(const Fans& fans, int32_t num_cols, int32_t elements) : fans_(fans), num_cols_(num_cols) {
    cols_ = least(num_cols, elements / kLane * kLane);
    pitch_ = round_up(cols_, kLane);
    rows_ = elements / pitch_;
  }
  __aicore__ inline bool is_done() const { return token_ >= fans_.count(); }
  __aicore__ inline FanPiece next() {
    const int32_t all = fans_.num_rows(token_), rows = least(rows_, all - first_);
    const FanPiece piece{
        token_, first_, rows, col_, least(cols_, num_cols_ - col_), pitch_, first_ == 0, first_ + rows == all};
    first_ += rows;
    if (piece.is_last) {
      first_ = 0;
      col_ += cols_;
    }
    if (col_ >= num_cols_) {
      col_ = 0;
      ++token_;
    }
    return piece;
  }

 private:
  const Fans& fans_;
  int32_t num_cols_, cols_, pitch_, rows_, token_ = 0, first_ = 0, col_ = 0;
};

// Computes out[t] = sum of w[r] * in[r] over the rows r that the rank's experts have of the token, in the order of its
// choices.
struct FanIn {
  VectorUnit& unit;
  const Fans& fans;
  Rows2d out, in, weights;
  bool is_weighted;

  __aicore__ inline void load(const Bytes& loaded, const FanPiece& piece) {
    const int32_t size = element_bytes(in.dtype), size_w = element_bytes(weights.dtype);
    for (int32_t i = 0; i < piece.num_rows; ++i) {
      const int64_t row = fans.row(piece.token, piece.first + i);
      unit.copy_in(loaded[i * piece.pitch * size], in.address + row * in.row_bytes + piece.col * size, 1,
                   piece.num_cols * size, 0, piece.pitch * size);
      if (is_weighted)
        unit.copy_in(loaded[kPieceBytes + i * kLane * size_w], weights.address + row * weights.row_bytes, 1, size_w, 0,
                     kLane * size_w);
    }
  }
  __aicore__ inline void widen(const Bytes& loaded, const FanPiece& piece) {
    if (piece.is_first) AscendC::Duplicate(unit.floats(0), 0.0f, piece.pitch);
    unit.widen(unit.floats(1), loaded, 0, in.dtype, piece.num_rows * piece.pitch);
    if (is_weighted) unit.widen(unit.floats(2), loaded, 1, weights.dtype, piece.num_rows * kLane);
  }
  __aicore__ inline void compute(const FanPiece& piece) {
    const Floats sum = unit.floats(0), x = unit.floats(1), w = unit.floats(2);
    if (is_weighted) unit.wait_for_results();
    for (int32_t i = 0; i < piece.num_rows; ++i) {
      in_order::Axpy(sum, x[i * piece.pitch], is_weighted ? w.GetValue(i * kLane) : 1.0f, piece.pitch);
    }
    if (piece.is_last) unit.write(out, {piece.token, piece.col, 1, piece.num_cols, piece.pitch}, sum, piece.pitch);
  }
};

__aicore__ inline void sum_fans(VectorUnit& unit, const Frame& frame, const Rows2d& weights, bool is_weighted) {
  const Buffer to = frame.buffer(0);
  const Rows2d out = frame.rows(0), in = frame.rows(1);
  const int32_t widest = most(most(element_bytes(out.dtype), element_bytes(in.dtype)),
                              is_weighted ? element_bytes(weights.dtype) : 0);
  for (Fans fans(unit, frame); fans.next();) {
    FanIn body{unit, fans, out, in, weights, is_weighted};
    body.out.address = frame.element(0, to, fans.first_row(), frame.first_col(0));
    run_pieces(unit, FanPieces(fans, out.cols, piece_elements(widest)), body);
  }
}

__aicore__ inline void fan_in(VectorUnit& unit, const Frame& frame) {
  const bool is_weighted = frame.op.num_operands > 2;
  sum_fans(unit, frame, is_weighted ? frame.rows(2) : Rows2d{}, is_weighted);
}

// Counts the rows of each slot of an expert that a FAN_OUT has made, for as many slots as fit. It sees every row twice:
// the first pass counts, the second signals.
struct FanTallies {
  VectorUnit& unit;
  const Counters& counters;
  int32_t event, first, count, pass;

  __aicore__ inline void see(int32_t slot) const {
    if (slot < first || slot >= first + count) return;
    const AscendC::LocalTensor<int32_t> tallies = unit.words();
    const int32_t rows = tallies.GetValue(slot - first);
    if (pass == 1 && rows > 0) unit.add_to_counter(counters.address(event + slot), rows);
    tallies.SetValue(slot - first, pass == 0 ? rows + 1 : 0);
  }
};

// Signals each slot of an expert for the rows that a FAN_OUT has made.
__aicore__ inline void signal_fans(VectorUnit& unit, const Frame& frame, const Counters& counters, int32_t event) {
  constexpr int32_t kAtOnce = (kNumFloats - 1) * kPieceFloats;  // the last piece may have the list
  const RoutingTables experts = experts_of(frame);
  const int32_t num_slots = experts.route().num_slots;
  for (int32_t first = 0; first < num_slots; first += kAtOnce) {
    drain_pipes();
    AscendC::Duplicate(unit.words(), 0, least(kAtOnce, num_slots - first));
    unit.wait_for_results();
    for (int32_t pass = 0; pass < 2; ++pass) {
      const FanTallies tallies{unit, counters, event, first, kAtOnce, pass};
      for (Fans fans(unit, frame); fans.next();) {
        for (int32_t token = 0; token < fans.count(); ++token)
          for (int32_t i = 0; i < fans.num_rows(token); ++i)
            tallies.see(experts.slot_of(fans.fan(token, i).expert, fans.row(token, i)));
      }
      for (FanPadding zeros(frame); zeros.next();)
        for (int32_t i = 0; i < zeros.num_rows(); ++i) tallies.see(experts.slot_of(zeros.expert(), zeros.first_row() + i));
    }
  }
  drain_pipes();
}

}  // namespace hpmoe
