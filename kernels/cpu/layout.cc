// The layout of protocol.h and of what a simulation is told, as text, for a test that compares it with Python's.
#include <cstddef>
#include <new>
#include <string>

#include "core/abi.h"
#include "simulator/simulate.h"

namespace hpmoe {
namespace {

void add_line(std::string& text, const char* owner, const char* name, int64_t first, int64_t second) {
  text += std::string(owner) + " " + name + " " + std::to_string(first) + " " + std::to_string(second) + "\n";
}

// A struct's size as the field ".", its fields as offset and size, an enum's members as value and 0.
#define TYPE(type) add_line(text, #type, ".", 0, sizeof(type));
#define FIELD(type, name) add_line(text, #type, #name, offsetof(type, name), sizeof(type::name));

// clang-format off: a list, several members a line
void add_tables(std::string& text) {
  TYPE(Header) FIELD(Header, magic) FIELD(Header, version) FIELD(Header, image_bytes) FIELD(Header, num_tasks)
    FIELD(Header, num_queues) FIELD(Header, num_templates) FIELD(Header, num_ops) FIELD(Header, num_buffers)
    FIELD(Header, num_events) FIELD(Header, num_event_runs) FIELD(Header, num_waits) FIELD(Header, num_signals)
    FIELD(Header, num_routes) FIELD(Header, num_shares) FIELD(Header, num_stops) FIELD(Header, ep_size)
    FIELD(Header, tile_rows) FIELD(Header, index_bits) FIELD(Header, tasks_offset) FIELD(Header, queues_offset) FIELD(Header, templates_offset)
    FIELD(Header, ops_offset) FIELD(Header, buffers_offset) FIELD(Header, event_runs_offset) FIELD(Header, waits_offset)
    FIELD(Header, signals_offset) FIELD(Header, routes_offset) FIELD(Header, shares_offset) FIELD(Header, stops_offset)
    FIELD(Header, peer_order_offset) FIELD(Header, num_behind) FIELD(Header, most_received)
  TYPE(TaskTemplate) FIELD(TaskTemplate, op) FIELD(TaskTemplate, first_wait) FIELD(TaskTemplate, num_waits)
    FIELD(TaskTemplate, first_signal)
    FIELD(TaskTemplate, num_signals)
  TYPE(Wait) FIELD(Wait, event) FIELD(Wait, kind)
  TYPE(Signal) FIELD(Signal, event) FIELD(Signal, kind) FIELD(Signal, amount) FIELD(Signal, remote)
  TYPE(EventRun) FIELD(EventRun, first) FIELD(EventRun, extent) FIELD(EventRun, index) FIELD(EventRun, mult)
    FIELD(EventRun, route)
  TYPE(Buffer) FIELD(Buffer, cols) FIELD(Buffer, rows_per_expert) FIELD(Buffer, dtype) FIELD(Buffer, rows)
}

void add_op_tables(std::string& text) {
  TYPE(Route) FIELD(Route, ids_buffer) FIELD(Route, num_experts) FIELD(Route, num_local_experts) FIELD(Route, top_k)
    FIELD(Route, num_slots) FIELD(Route, num_tokens) FIELD(Route, max_rows) FIELD(Route, drop_policy)
    FIELD(Route, weights_buffer) FIELD(Route, first_share) FIELD(Route, of) FIELD(Route, over)
    FIELD(Route, first_stop) FIELD(Route, return_tokens) FIELD(Route, alignment) FIELD(Route, tp_size)
    FIELD(Route, capacity_factor)
  TYPE(Share) FIELD(Share, expert) FIELD(Share, low) FIELD(Share, high)
  TYPE(Operand) FIELD(Operand, buffer) FIELD(Operand, rows) FIELD(Operand, cols) FIELD(Operand, offset)
    FIELD(Operand, value) FIELD(Operand, reserved)
  TYPE(Op) FIELD(Op, opcode) FIELD(Op, domain) FIELD(Op, route) FIELD(Op, num_rows) FIELD(Op, clipped)
    FIELD(Op, blocks) FIELD(Op, num_operands) FIELD(Op, num_outputs) FIELD(Op, first_row) FIELD(Op, num_units)
    FIELD(Op, num_peers) FIELD(Op, cols) FIELD(Op, tile_cols) FIELD(Op, param) FIELD(Op, operands)
  TYPE(Status) FIELD(Status, code) FIELD(Status, rank) FIELD(Status, queue) FIELD(Status, task) FIELD(Status, event)
    FIELD(Status, wait) FIELD(Status, value) FIELD(Status, threshold)
}

void add_work(std::string& text) {
  TYPE(HpmoeFootprint) FIELD(HpmoeFootprint, first) FIELD(HpmoeFootprint, part) FIELD(HpmoeFootprint, fixed)
    FIELD(HpmoeFootprint, row) FIELD(HpmoeFootprint, whole)
  TYPE(HpmoeWork) FIELD(HpmoeWork, core_fixed) FIELD(HpmoeWork, core_row) FIELD(HpmoeWork, few_fixed)
    FIELD(HpmoeWork, few_row) FIELD(HpmoeWork, core_fan) FIELD(HpmoeWork, link_row) FIELD(HpmoeWork, skinny_rows)
    FIELD(HpmoeWork, granule) FIELD(HpmoeWork, num_footprints) FIELD(HpmoeWork, landing)
    FIELD(HpmoeWork, footprints)
}

void add_enums(std::string& text) {
#define ADD(name, value) add_line(text, owner, #name, value, 0);
  { const char* owner = "Opcode"; HPMOE_OPCODE(ADD) }
  { const char* owner = "MapCode"; HPMOE_MAP_CODE(ADD) }
  { const char* owner = "Domain"; HPMOE_DOMAIN(ADD) }
  { const char* owner = "Rows"; HPMOE_ROWS(ADD) }
  { const char* owner = "Cols"; HPMOE_COLS(ADD) }
  { const char* owner = "Index"; HPMOE_INDEX(ADD) }
  { const char* owner = "Amount"; HPMOE_AMOUNT(ADD) }
  { const char* owner = "Remote"; HPMOE_REMOTE(ADD) }
  { const char* owner = "Extent"; HPMOE_EXTENT(ADD) }
  { const char* owner = "Dtype"; HPMOE_DTYPE(ADD) }
  { const char* owner = "Reduction"; HPMOE_REDUCTION(ADD) }
  { const char* owner = "DropPolicy"; HPMOE_DROP_POLICY(ADD) }
  { const char* owner = "Code"; HPMOE_CODE(ADD) }
#undef ADD
}
// clang-format on

std::string layout_text() {
  std::string text;
  add_tables(text);
  add_op_tables(text);
  add_work(text);
  add_enums(text);
  return text;
}

}  // namespace
}  // namespace hpmoe

extern "C" const char* hpmoe_layout(void) {
  try {
    static const std::string text = hpmoe::layout_text();
    return text.c_str();
  } catch (const std::exception&) {
    return "";
  }
}
