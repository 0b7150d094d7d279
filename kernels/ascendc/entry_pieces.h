// Divides the entries of tokens into pieces for sums over entries.
#pragma once

#include "vector_unit.h"

namespace hpmoe {

// Some columns of the entries of tokens: of all their entries, or of `entries` entries of one token.
struct EntryPiece {
  Piece tokens;
  int32_t first, entries;
  bool is_last;

  // Returns the piece as rows of the array of all entries.
  __aicore__ inline Piece of(int32_t top_k) const {
    return {tokens.row * top_k + first, tokens.col, tokens.num_rows * entries, tokens.num_cols, tokens.pitch};
  }
};

// Iterates over pieces: all entries of several tokens, or a part of the entries of one.
class EntryPieces {
 public:
  __aicore__ inline EntryPieces(int32_t num_rows, int32_t num_cols, int32_t top_k, int32_t elements)
      : top_k_(top_k), at_once_(least(top_k, elements / kLane)), tokens_(num_rows, num_cols, elements / at_once_) {}
  __aicore__ inline bool is_done() const { return first_ == 0 && tokens_.is_done(); }
  __aicore__ inline EntryPiece next() {
    if (first_ == 0) piece_ = tokens_.next();
    const int32_t first = first_, entries = least(at_once_, top_k_ - first);
    const bool is_last = first + entries == top_k_;
    first_ = is_last ? 0 : first + entries;
    return {piece_, first, entries, is_last};
  }

 private:
  int32_t top_k_, at_once_, first_ = 0;
  Pieces tokens_;
  Piece piece_{};
};

}  // namespace hpmoe
