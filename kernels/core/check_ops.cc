#include "core/check_ops.h"

#include <algorithm>

#include "core/check_quantized.h"
#include "core/check_routes.h"
#include "core/dtypes.h"

namespace hpmoe {
namespace {

static_assert(sizeof(OpRule::operands) == kMaxOperands * sizeof(OperandRule), "a rule for each operand of an op");

class OpChecker {
 public:
  explicit OpChecker(const Image& image) : image_(image) {}

  const char* check(const Op& op) const {
    const OpRule* rule = find_rule(op.opcode);
    if (!rule) return "an op has an unknown opcode";
    if (!in_range(op.domain, kNumDomain) || !(rule->domains >> op.domain & 1))
      return "an op's domain is not one its opcode can have";
    if (op.route != -1 && !route_of(op.route)) return "an op names a route that does not exist";
    if (op.route == -1 && (rule->needs_route || op.domain == int32_t(Domain::SLOTS)))
      return "an op needs a route and has none";
    if (op.num_rows < 0 || op.blocks < 1) return "an op has negative rows or no blocks";
    const int num_inputs = applies_function(rule->opcode) ? num_map_inputs(op.param[0]) : 0;
    if (applies_function(rule->opcode) && num_inputs == 0) return "a MAP has an unknown code";
    const int least = std::max(rule->min_operands, rule->num_outputs + num_inputs);
    if (op.num_operands < least || op.num_operands > kMaxOperands) return "an op has too few or too many operands";
    if (op.num_outputs != rule->num_outputs) return "an op writes another number of operands than its opcode does";
    for (int i = 0; i < op.num_operands; ++i)
      if (const char* fault = check_operand(op, *rule, i)) return fault;
    if (const char* fault = check_grid(op, rule->opcode)) return fault;
    return check_shapes(op, rule->opcode);
  }

 private:
  const Route* route_of(int32_t index) const { return find_route(image_, index); }

  // Rows a task's unit has at most, and the rows an operand must therefore have (0: known only when it runs).
  int64_t domain_rows(const Op& op) const {
    switch (static_cast<Domain>(op.domain)) {
      case Domain::ONCE: return 1;
      case Domain::TILES: return op.num_rows;
      case Domain::SLOTS: return max_rows_of(image_.routes[op.route], image_.header->tile_rows);
      default: return 0;
    }
  }

  // Experts whose matrices an operand has: all local ones, but for a product that has those of copies in another operand.
  int64_t num_weights(const Op& op, const Route& route) const {
    bool has_replicas = false;
    for (int i = 3; i < op.num_operands; ++i)
      has_replicas = has_replicas || static_cast<Rows>(op.operands[i].rows) == Rows::REPLICA;
    return has_replicas ? num_own(image_, route) : route.num_local_experts;
  }

  // Rows that a relay may receive, of an op on what it passes on.
  int64_t relayed_rows(const Op& op) const {
    const Route* relays = route_of(op.route);
    if (relays && opcode_of(op) != Opcode::RELAY_SUM) relays = route_of(relays->over);
    return relays ? max_rows_of(*relays, image_.header->tile_rows) : 0;
  }

  // Of a token, the rows that may come back to its relay.
  int64_t relayed_choices(const Op& op, const Route& route) const {
    const bool sums = opcode_of(op) == Opcode::RELAY_SUM && route_of(op.param[0]);
    return sums ? route_of(op.param[0])->top_k : route.top_k;
  }

  int64_t needed_rows(const Op& op, const Operand& operand) const {
    const Route* route = route_of(op.route);
    const int64_t received = route ? max_rows_of(*route, image_.header->tile_rows) : 0;
    const int64_t matrix = image_.buffers[operand.buffer].rows_per_expert;
    switch (static_cast<Rows>(operand.rows)) {
      case Rows::OWN: return domain_rows(op);
      case Rows::ONE: return 1;
      case Rows::SLOT_EXPERT:
        if (!route) return matrix > 0 ? matrix : 1;
        return matrix > 0 ? num_weights(op, *route) * matrix : route->num_local_experts;
      case Rows::REPLICA: return route ? (route->num_local_experts - num_own(image_, *route)) * matrix : 0;
      case Rows::EXPERT:
      case Rows::PEER: return received;
      case Rows::ENTRIES: return route ? int64_t{route->num_tokens} * route->top_k : 0;
      case Rows::TOKENS: return route ? route->num_tokens : 0;
      case Rows::RELAY_ROWS: return relayed_rows(op);
      case Rows::RELAY_ENTRIES: return route ? relayed_rows(op) * relayed_choices(op, *route) : 0;
      case Rows::FAN: return route && route->of >= 0 ? max_rows_of(image_.routes[route->of], image_.header->tile_rows) : 0;
      default: return 0;
    }
  }

  static bool takes_dtype(int traits, Dtype dtype) {
    if (is_integer(dtype) && traits & kMayBeInteger) return true;
    if (dtype == Dtype::UINT8 || traits & kIsBytes) return dtype == Dtype::UINT8 && traits & (kIsBytes | kMayBeBytes);
    return traits & kIsInteger ? dtype == Dtype::INT32 : is_float(dtype);
  }

  const char* check_operand(const Op& op, const OpRule& rule, int i) const {
    const Operand& operand = op.operands[i];
    if (operand.buffer == -1 && rule.operands[i].traits & kMayBeNumber) return nullptr;
    if (!in_range(operand.buffer, image_.header->num_buffers)) return "an operand names a buffer that does not exist";
    if (!in_range(operand.rows, kNumRows) || !in_range(operand.cols, kNumCols))
      return "an operand has an unknown rows or cols mode";
    if (!(rule.operands[i].rows >> operand.rows & 1) || !(rule.operands[i].cols >> operand.cols & 1)) {
      return "an operand has a rows or cols mode its op cannot take";
    }
    const Buffer& buffer = image_.buffers[operand.buffer];
    if (!is_turned_weight(op, i) && !in_range(operand.offset, buffer.cols))
      return "an operand's offset is outside its columns";
    if (!is_transfer(rule.opcode) && !takes_dtype(rule.operands[i].traits, static_cast<Dtype>(buffer.dtype)))
      return "an operand has a dtype its op cannot take";
    const bool by_expert = static_cast<Rows>(operand.rows) == Rows::SLOT_EXPERT;
    if (applies_function(rule.opcode) && by_expert && buffer.rows_per_expert > 0)
      return "a MAP takes one row an expert, not a matrix";
    if (buffer.rows > 0 && needed_rows(op, operand) > buffer.rows) return "an operand's buffer has too few rows for its op";
    return nullptr;
  }

  // The weight of a transposed GMM, whose rows are the output's columns.
  static bool is_turned_weight(const Op& op, int i) {
    return find_rule(op.opcode)->operands[i].traits & kIsCutByBody && op.param[0] == 1;
  }

  const Buffer& buffer(const Op& op, int i) const { return image_.buffers[op.operands[i].buffer]; }

  Dtype dtype(const Op& op, int i) const { return static_cast<Dtype>(buffer(op, i).dtype); }

  int64_t width(const Op& op, int i) const { return buffer(op, i).cols - op.operands[i].offset; }

  // Both of floats, or both of integers.
  bool same_kind(const Op& op, int i, int j) const { return is_integer(dtype(op, i)) == is_integer(dtype(op, j)); }

  // Two operands that are walked together over the same columns.
  bool same_columns(const Op& op, int i, int j) const {
    return op.operands[i].cols == op.operands[j].cols &&
           (static_cast<Cols>(op.operands[i].cols) != Cols::ALL ||
            buffer(op, i).cols - op.operands[i].offset == buffer(op, j).cols - op.operands[j].offset);
  }

  // What is read before a task's events have come is what none of them stands for.
  bool is_made(int32_t buffer) const {
    for (int32_t i = 0; i < image_.header->num_ops; ++i)
      for (int k = 0; k < image_.ops[i].num_outputs && k < kMaxOperands; ++k)
        if (image_.ops[i].operands[k].buffer == buffer) return true;
    return false;
  }

  const char* check_shapes(const Op& op, Opcode opcode) const {
    if (may_be_early(opcode) && (!in_range(op.param[1], 2) || (op.param[1] == 1 && is_made(op.operands[2].buffer))))
      return "a weight that is read early is none that is given";
    switch (opcode) {
      case Opcode::GMM: return check_gmm(op);
      case Opcode::GMM_INT8:
      case Opcode::GMM_FP8:
      case Opcode::GMM_WIDENED:
      case Opcode::RESCALE:
      case Opcode::QUANTIZE_WEIGHT:
      case Opcode::WIDEN_WEIGHT:
      case Opcode::QUANTIZE:
      case Opcode::DEQUANTIZE: return check_quantized(image_, op);
      case Opcode::WGRAD:
      case Opcode::COL_SUM: return check_expert_op(op, opcode);
      case Opcode::PUT:
      case Opcode::PUT_BACK:
      case Opcode::ALL_TO_ALL:
      case Opcode::ALL_TO_ALL_BACK: return check_transfer(op);
      case Opcode::REPLICATE:
      case Opcode::RETURN_GRADS: return check_copies(image_, op);
      case Opcode::REDUCE_QUANTIZED:
        if (const char* fault = check_quantized(image_, op)) return fault;
        return check_reduce(op);
      case Opcode::REDUCE: return same_columns(op, 0, 1) ? check_reduce(op) : "an op's operands differ in columns";
      case Opcode::KEEP: {
        const Route& route = image_.routes[op.route];
        const bool fits = op.num_rows <= route.num_tokens && buffer(op, 0).cols == route.top_k && buffer(op, 1).cols == 1 &&
                          buffer(op, 0).dtype == buffer(op, 1).dtype;
        return fits ? nullptr : "a KEEP's operands are not a value for each entry of its route";
      }
      case Opcode::DROP_COUNTS:
        return buffer(op, 0).cols == image_.routes[op.route].num_experts / image_.routes[op.route].tp_size
                   ? nullptr
                   : "DROP_COUNTS has other columns than experts";
      case Opcode::FAN_OUT:
      case Opcode::FAN_IN:
        if (image_.routes[op.route].of < 0) return "a fan's route is not one to ranks";
        return opcode == Opcode::FAN_IN || buffer(op, 0).dtype == buffer(op, 1).dtype ? nullptr
                                                                                      : "a transfer's two rows differ";
      case Opcode::RELAY_SUM: return check_relay_sum(op);
      case Opcode::NOTIFY: return in_range(op.param[0], kNumWay) ? nullptr : "a NOTIFY tells of no way that rows go";
      case Opcode::LAUNCH: return in_range(op.param[0], kNumLaidOut) ? nullptr : "a LAUNCH lays out rows of an unknown kind";
      case Opcode::ROW_DOT: return same_columns(op, 1, 2) ? nullptr : "an op's operands differ in columns";
      case Opcode::GATHER:
      case Opcode::CUMSUM:
        if (!same_columns(op, 0, 1)) return "an op's operands differ in columns";
        return same_kind(op, 0, 1) ? nullptr : "an op makes integers of floats, or floats of integers";
      case Opcode::FILL_OUTSIDE: {
        const bool fits = same_columns(op, 0, 1) && width(op, 2) == width_found(op) && in_range(op.param[0], 3);
        return fits ? nullptr : "a FILL_OUTSIDE's rows differ in columns";
      }
      case Opcode::REDUCE_AND_FILL: {
        const Route& route = image_.routes[op.route];
        if (op.num_rows > route.num_tokens) return "a REDUCE_AND_FILL has more rows than its route has tokens";
        const bool is_weighted = op.num_operands > 5;
        if (is_weighted && buffer(op, 5).cols < route.top_k) return "a REDUCE_AND_FILL has fewer weights than entries";
        return fits_guard(op) ? nullptr : "a REDUCE_AND_FILL's rows differ in columns";
      }
      case Opcode::COUNT_AND_FILL: return fits_guard(op) ? nullptr : "a COUNT_AND_FILL's rows differ in columns";
      case Opcode::COUNT_OUTSIDE: return width(op, 0) == 1 ? nullptr : "a COUNT_OUTSIDE makes more than one column";
      case Opcode::TOP_K: {
        const bool fits = same_columns(op, 0, 1) && width(op, 0) <= width(op, 2) && same_kind(op, 0, 2);
        return fits ? nullptr : "a TOP_K's choices are not values and indices of its rows";
      }
      case Opcode::TAKE_COLS:
      case Opcode::ADD_COLS: {
        const bool is_number = op.operands[1].buffer < 0;
        const bool fits = is_integer(dtype(op, 2)) && same_columns(op,
                                                                   opcode == Opcode::TAKE_COLS ? 0
                                                                   : is_number                 ? 2
                                                                                               : 1,
                                                                   2);
        return fits && (is_number || same_kind(op, 0, 1)) ? nullptr : "an op has other indices than elements";
      }
      case Opcode::ROW_REDUCE:
        return in_range(op.param[0], kNumReduction) ? nullptr : "a ROW_REDUCE has an unknown reduction";
      case Opcode::PICK:
      case Opcode::PLACE: return check_axis(op, opcode);
      case Opcode::GROUP_REDUCE: return check_groups(op);
      default: return nullptr;
    }
  }

  // How many values of a row of an op's first output, and words of a bit for each.
  int64_t width_found(const Op& op) const { return 1 + (width(op, 0) + 31) / 32; }

  bool fits_guard(const Op& op) const {
    return same_columns(op, 0, 2) && width(op, 1) == width_found(op) && in_range(op.param[0], 3);
  }

  // Columns are counted from the first one.
  bool has_offset(const Op& op) const { return op.operands[0].offset != 0 || op.operands[1].offset != 0; }

  const char* check_axis(const Op& op, Opcode opcode) const {
    const int64_t size = op.param[0], inner = op.param[1], start = op.param[2], step = op.param[3];
    const int64_t width = buffer(op, 0).cols, given = buffer(op, 1).cols, part = size * inner;
    const char* const fault = "an op's columns are not along an axis of its rows";
    if (size < 1 || inner < 1 || start < 0 || step < 0 || width % part || has_offset(op)) return fault;
    const int64_t outer = width / part;
    if (buffer(op, 0).dtype != buffer(op, 1).dtype || outer < 1 || given % (outer * inner)) return fault;
    const int64_t there = given / (outer * inner);
    const bool picks = opcode == Opcode::PICK;
    const bool fits = picks ? start + (size - 1) * step < there : step >= 1 && start + (there - 1) * step < size;
    return fits && there > 0 ? nullptr : fault;
  }

  const char* check_groups(const Op& op) const {
    const int64_t size = op.param[1], inner = op.param[2], width = buffer(op, 0).cols;
    if (!in_range(op.param[0], kNumReduction)) return "a GROUP_REDUCE has an unknown reduction";
    const bool fits = size >= 1 && inner >= 1 && width % inner == 0 && width * size == buffer(op, 1).cols && !has_offset(op);
    return fits && same_kind(op, 0, 1) ? nullptr : "a GROUP_REDUCE's groups are not those of its rows";
  }

  const char* check_gmm(const Op& op) const {
    if (!in_range(op.param[0], 2)) return "a GMM's weight is neither as it is nor turned";
    const Buffer& weight = buffer(op, 2);
    const bool by_expert = static_cast<Rows>(op.operands[2].rows) == Rows::SLOT_EXPERT && op.route >= 0;
    if (by_expert && weight.rows_per_expert == 0) return "a GMM over experts has a weight without experts";
    const bool is_one = static_cast<Rows>(op.operands[2].rows) != Rows::SLOT_EXPERT;
    if (is_one && weight.rows_per_expert > 0 && weight.rows_per_expert != weight.rows)
      return "a GMM takes the matrices of experts as one";
    const int64_t num_k = buffer(op, 1).cols - op.operands[1].offset;
    const int64_t weight_rows = weight.rows_per_expert > 0 ? weight.rows_per_expert : weight.rows;
    const int64_t weight_k = op.param[0] == 1 ? weight.cols : weight_rows;
    if (op.num_operands > 3) {
      const Buffer& replicas = buffer(op, 3);
      const bool is_same = replicas.cols == weight.cols && replicas.rows_per_expert == weight.rows_per_expert &&
                           replicas.dtype == weight.dtype && op.operands[3].offset == op.operands[2].offset;
      if (!by_expert || !is_same || !image_.shares_of(image_.routes[op.route]))
        return "a GMM's copies are not like its weights";
    }
    return weight_k == 0 || weight_k == num_k ? nullptr : "a GMM's inner sizes differ";
  }

  const char* check_reduce(const Op& op) const {
    const Route& route = image_.routes[op.route];
    if (op.num_rows > route.num_tokens) return "a REDUCE has more rows than its route has tokens";
    if (op.num_operands > 2 && buffer(op, 2).cols < route.top_k) return "a REDUCE has fewer weights than entries";
    return nullptr;
  }

  const char* check_transfer(const Op& op) const {
    if (may_be_paced(opcode_of(op)) && op.param[0] < 0) return "rows are put at a pace below zero";
    const Buffer &out = buffer(op, 0), &in = buffer(op, 1);
    if (out.cols != in.cols || out.dtype != in.dtype || !same_columns(op, 0, 1)) return "a transfer's two rows differ";
    if (is_relayed(op) && image_.routes[op.route].over < 0) return "an op is about relays of a route that has none";
    if (is_relayed(op) && image_.routes[op.route].alignment > 1) return "an op has relays pass on rows of zeros";
    const Buffer& received = goes_back(op) ? in : out;
    const int64_t most = max_rows_of(image_.routes[op.route], image_.header->tile_rows);
    return received.rows == 0 || received.rows >= most ? nullptr : "a transfer's received rows pass their buffer";
  }

  const char* check_relay_sum(const Op& op) const {
    const bool fits = in_range(op.param[0], image_.header->num_routes) && image_.routes[op.param[0]].over == op.route &&
                      same_columns(op, 0, 1) &&
                      (op.num_operands < 3 || buffer(op, 2).cols >= image_.routes[op.param[0]].top_k);
    return fits ? nullptr : "a RELAY_SUM's rows are not those of relays";
  }

  const char* check_expert_op(const Op& op, Opcode opcode) const {
    const Route* route = route_of(op.route);
    const bool all = static_cast<Rows>(op.operands[1].rows) == Rows::ALL;
    if (!all && !route) return "an op needs a route and has none";
    const int64_t first = first_expert(op);
    if (all ? op.num_rows != 1 || op.param[1] < 0 || first != 0
            : first < 0 || op.num_rows < 1 || first + op.num_rows > route->num_local_experts ||
                  (opcode == Opcode::COL_SUM && op.num_rows != route->num_local_experts)) {
      return "an op over experts has another number of them than its route";
    }
    const Buffer &x = buffer(op, 1), &out = buffer(op, 0);
    if (all && x.rows > 0 && op.param[1] > x.rows) return "an operand's buffer has too few rows for its op";
    if (opcode == Opcode::COL_SUM) {
      return out.rows == 0 || out.rows >= op.num_rows ? nullptr : "an operand's buffer has too few rows for its op";
    }
    const Buffer& dy = buffer(op, 2);
    if (op.operands[2].rows != op.operands[1].rows) return "a WGRAD takes different rows of its two inputs";
    if (all && dy.rows > 0 && op.param[1] > dy.rows) return "an operand's buffer has too few rows for its op";
    const int64_t num_k = x.cols - op.operands[1].offset;
    if (op.param[0] < 1 || (op.blocks - int64_t{1}) * op.param[0] >= num_k) return "a WGRAD's blocks pass its rows";
    if (out.rows_per_expert > 0 && out.rows_per_expert != num_k) return "a WGRAD's output has another number of rows";
    if (out.rows > 0 && out.rows < op.num_rows * num_k) return "an operand's buffer has too few rows for its op";
    for (int i = 3; i < op.num_operands; ++i)
      if (const char* fault = check_added(image_, op, i, num_k)) return fault;
    const bool adds_twice = op.num_operands > 4 && op.operands[3].rows == op.operands[4].rows;
    return adds_twice ? "a WGRAD adds to two arrays of a kind" : nullptr;
  }

  // Of a WGRAD, whose output may be that of some of the experts.
  static int64_t first_expert(const Op& op) { return makes_blocks(opcode_of(op)) ? op.param[3] : 0; }

  // The grid of an op's tasks: all of them are checked here, so that a word only needs a place in it.
  const char* check_grid(const Op& op, Opcode opcode) const {
    if (op.num_units < 0 || op.num_peers < 0 || op.cols < 0 || (op.cols > 0 && op.tile_cols < 1))
      return "an op's tasks have a negative number or no columns";
    if (grid_size(op) > INT32_MAX) return "an op has more tasks than a word can name";
    if (op.num_units > 0 && (!row_ok(op, op.first_row) || !row_ok(op, int64_t{op.first_row} + op.num_units - 1)))
      return "a task's row is outside its op's domain";
    if (op.num_peers > image_.header->ep_size) return "a task's peer is outside the peer order";
    if (op.num_peers == 0 && (is_put(opcode) || is_notice(opcode))) return "a transfer has no peer";
    return check_columns(op);
  }

  bool row_ok(const Op& op, int64_t row) const {
    if (is_notice(opcode_of(op))) {
      return row >= -1 && row < image_.routes[op.route].num_local_experts;
    }
    switch (static_cast<Domain>(op.domain)) {
      case Domain::ONCE: return row == 0;
      case Domain::TILES: return in_range(row, ceil_div(op.num_rows, image_.header->tile_rows));
      case Domain::SLOTS: return in_range(row, image_.routes[op.route].num_slots);
      default: return in_range(row - first_expert(op) * op.blocks, int64_t{op.num_rows} * op.blocks);
    }
  }

  const char* check_columns(const Op& op) const {
    for (int i = 0; i < op.num_operands; ++i) {
      const Operand& operand = op.operands[i];
      if (operand.buffer < 0 || static_cast<Cols>(operand.cols) != Cols::OWN) continue;
      const Buffer& b = buffer(op, i);
      const int64_t limit = !is_turned_weight(op, i) ? b.cols : b.rows_per_expert > 0 ? b.rows_per_expert : b.rows;
      if (limit > 0 && (operand.offset < 0 || int64_t{operand.offset} + op.cols > limit)) {
        return "a task's columns are outside an operand";
      }
    }
    return nullptr;
  }

  const Image& image_;
};

}  // namespace

const char* check_op(const Image& image, const Op& op) { return OpChecker(image).check(op); }

}  // namespace hpmoe
