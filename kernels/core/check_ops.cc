#include "core/check_ops.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "core/generated/shapes.h"

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
    const int least = std::max(rule->min_operands, rule->num_outputs + num_inputs);
    if (op.num_operands < least || op.num_operands > kMaxOperands) return "an op has too few or too many operands";
    if (op.num_outputs != rule->num_outputs) return "an op writes another number of operands than its opcode does";
    for (int i = 0; i < op.num_operands; ++i)
      if (const char* fault = check_operand(op, *rule, i)) return fault;
    if (const char* fault = check_grid(op, rule->opcode)) return fault;
    return check_shapes(op, *rule);
  }

 private:
  const Route* route_of(int32_t index) const { return find_route(image_, index); }

  // Returns the most rows of a task's unit, which an operand must have; 0 if they are known only at launch.
  int64_t domain_rows(const Op& op) const {
    switch (static_cast<Domain>(op.domain)) {
      case Domain::ONCE: return 1;
      case Domain::TILES: return op.num_rows;
      case Domain::SLOTS: return max_rows_of(image_.routes[op.route], image_.header->tile_rows);
      default: return 0;
    }
  }

  // Number of experts whose matrices an operand has: all local experts, or a rank's own ones if another operand has those
  // of replicas.
  int64_t num_weights(const Op& op, const Route& route) const {
    bool has_replicas = false;
    for (int i = 3; i < op.num_operands; ++i)
      has_replicas = has_replicas || static_cast<Rows>(op.operands[i].rows) == Rows::REPLICA;
    return has_replicas ? num_own(image_, route) : route.num_local_experts;
  }

  // Most rows that a relay receives, for an op on rows that relays forward.
  int64_t relayed_rows(const Op& op) const {
    const Route* relays = route_of(op.route);
    if (relays && !sums_relayed(opcode_of(op))) relays = route_of(relays->over);
    return relays ? max_rows_of(*relays, image_.header->tile_rows) : 0;
  }

  // Most rows of a token that come back to its relay.
  int64_t relayed_choices(const Op& op, const Route& route) const {
    const Route* came_back = sums_relayed(opcode_of(op)) ? route_of(params::Relayed::of(op).route) : nullptr;
    return came_back ? came_back->top_k : route.top_k;
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
    if (!is_transposed_weight(op, i) && !in_range(operand.offset, buffer.cols))
      return "an operand's offset is outside its columns";
    if (!is_transfer(rule.opcode) && !takes_dtype(rule.operands[i].traits, static_cast<Dtype>(buffer.dtype)))
      return "an operand has a dtype its op cannot take";
    if (buffer.rows > 0 && needed_rows(op, operand) > buffer.rows) return "an operand's buffer has too few rows for its op";
    return nullptr;
  }

  // Returns true for the weight of a transposed GMM, whose rows are the output's columns.
  static bool is_transposed_weight(const Op& op, int i) {
    return find_rule(op.opcode)->operands[i].traits & kIsCutByBody && op.param[0] == 1;
  }

  const Buffer& buffer(const Op& op, int i) const { return image_.buffers[op.operands[i].buffer]; }

  // Returns true if a task writes the buffer; a buffer that is read before a task's waits are met must not be written.
  bool is_made(int32_t buffer) const {
    for (int32_t i = 0; i < image_.header->num_ops; ++i)
      for (int k = 0; k < image_.ops[i].num_outputs && k < kMaxOperands; ++k)
        if (image_.ops[i].operands[k].buffer == buffer) return true;
    return false;
  }

  const char* check_shapes(const Op& op, const OpRule& rule) const {
    if (may_be_early(rule.opcode) && (!in_range(op.param[1], 2) || (op.param[1] == 1 && is_made(op.operands[2].buffer))))
      return "a weight that is read early is none that is given";
    const char* const fault = shapes_fault(rule.opcode, Shapes(image_, op));
    if (!fault) return nullptr;
    thread_local std::string text;  // until the thread checks another image
    const bool has_vowel = std::strchr("AEIOU", rule.name[0]);
    text = std::string(has_vowel ? "an " : "a ") + rule.name + " " + fault;
    return text.c_str();
  }

  // First expert of a WGRAD, whose output may have only some of the experts.
  static int64_t first_expert(const Op& op) { return makes_blocks(opcode_of(op)) ? params::Summed::of(op).first_expert : 0; }

  // Checks the grid of an op's tasks. All tasks are checked here, so that a word only needs a place in the grid.
  const char* check_grid(const Op& op, Opcode opcode) const {
    if (op.num_units < 0 || op.num_peers < 0 || op.cols < 0 || (op.cols > 0 && op.tile_cols < 1))
      return "an op's tasks have a negative number or no columns";
    if (grid_size(op) > INT32_MAX) return "an op has more tasks than a word can name";
    if (op.num_units > 0 && (!row_ok(op, op.first_row) || !row_ok(op, int64_t{op.first_row} + op.num_units - 1)))
      return "a task's row is outside its op's domain";
    if (op.num_peers > image_.header->ep_size) return "a task's peer is outside the peer order";
    if (op.num_peers == 0 && (is_put(opcode) || is_completion_flag(opcode))) return "a transfer has no peer";
    if (has_several_parts(op) && !may_have_parts(op)) return "the rows of a unit are divided where a task needs all of them";
    return check_columns(op);
  }

  static bool has_several_parts(const Op& op) {
    const auto domain = static_cast<Domain>(op.domain);
    return op.blocks != 1 && (domain == Domain::SLOTS || domain == Domain::TILES);
  }

  // A task of a part takes whole rows, and no others than its own.
  static bool may_have_parts(const Op& op) {
    for (int i = 0; i < op.num_operands; ++i)
      if (op.operands[i].buffer >= 0 && static_cast<Rows>(op.operands[i].rows) != Rows::OWN) return false;
    return op.cols == 0 && op.num_peers == 0;
  }

  bool row_ok(const Op& op, int64_t row) const {
    if (is_completion_flag(opcode_of(op))) {
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
      const int64_t limit = !is_transposed_weight(op, i) ? b.cols : b.rows_per_expert > 0 ? b.rows_per_expert : b.rows;
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
