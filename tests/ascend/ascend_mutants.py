"""Faults planted in the Ascend kernel: each is a few edits of its source, and what it is in words."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Mutant:
    """`edits`: (what stands in the file exactly once, what a faulty kernel has there: a statement, or an expression).

    `shows_in` names the run that is likely to show it, which comes first.
    """

    what: str
    file: str
    edits: tuple[tuple[str, str], ...]
    shows_in: str = ""


def mutant(what, file, *edits):
    return Mutant(what, file, edits)


def without(what, file, *statements):
    return Mutant(what, file, tuple((s, "") for s in statements))


def shown_in(run, *mutants):
    return tuple(dataclasses.replace(m, shows_in=run) for m in mutants)


SENT = "AscendC::SetAtomicNone();\n    signals_.set_free(i);"

MUTANTS = (
    # What is passed by.
    mutant("a task passed by whose slot has rows", "empty_tasks.h", ("most(num_used(op) - op.first_row, 0) * of_slot",
                                                                      "most(num_used(op) - op.first_row - 1, 0) * of_slot")),
    mutant("puts passed by whose slots have rows on another rank", "empty_tasks.h",
           ("!is_put(opcode_of(op)) || goes_back(op)", "true")),
    # Counters and signals.
    mutant("a dropped signal", "worker.h", ("num_targets(frame, signal)", "num_targets(frame, signal) - 1")),
    mutant("a signal to the wrong rank", "signals.h", (
        "is_local ? frame.place().me() : target_of(frame.op, segment)", "frame.place().me()")),
    mutant("a signal of the wrong amount", "worker.h", ("is_count ? 1 : frame.unit.rows", "1")),
    mutant("counters that share lines", "counters.h",
           ("static_cast<uint64_t>(first_event_ + index) * kCounterWords", "static_cast<uint64_t>(first_event_ + index)")),
    mutant("the counter of another event", "signals.h",
           ("row.event + event_offset(row.kind, frame.op, frame.task)", "row.event")),
    mutant("no barrier between payload and signal", "worker.h", (
        "moves ? settle() : unit_.settle_stores();", "if (moves) settle();")),
    mutant("no barrier between a transfer and its signal", "worker.h", (
        "moves ? settle() : unit_.settle_stores();", "if (!moves) unit_.settle_stores();")),
    without("results of an AIC signalled before they are written", "cube_2201.h",
            "AscendC::SetFlag<AscendC::HardEvent::FIX_MTE3>(written_[i]);",
            "AscendC::WaitFlag<AscendC::HardEvent::FIX_MTE3>(written_[i]);"),
    without("an AIC's signal sent before its block is filled", "cube_2201.h", "signals_.set_full(i);",
            "signals_.wait_full(i);"),
    mutant("an AIC's signal filled again before it was sent", "cube_2201.h", ("signals_.wait_free(i);", ""),
           (SENT, "AscendC::SetAtomicNone();")),
    mutant("an atomic mode left on by an AIC", "cube_2201.h", (SENT, "signals_.set_free(i);")),
    without("a poll of the cached line", "counters.h", "forget_line(counter);"),
    without("lines of an earlier kernel in the cache", "kernel.cpp", "hpmoe::forget_all_lines(address);"),
    mutant("an atomic mode left on", "vector_unit.h", (SENT, "signals_.set_free(i);")),
    without("a signal that overwrites its counter", "vector_unit.h", "AscendC::SetAtomicAdd<int32_t>();"),
    *shown_in("many", mutant("a signal's block written again before it was sent", "vector_unit.h", (
        "signals_.wait_free(i);", ""), (SENT, "AscendC::SetAtomicNone();"))),
    without("a signal sent before its block is written", "vector_unit.h", "signals_.set_full(i);", "signals_.wait_full(i);"),
    mutant("a wait that is over too early", "counters.h", (
        "is_at_least(look(index), target)", "is_at_least(look(index), target - 1)")),
    # Loads behind polls.
    without("rows loaded before an AIV has seen that they are there", "vector_unit.h", "polls_.pass();"),
    without("rows loaded before an AIC has seen that they are there", "cube_unit.h", "polls_.pass();"),
    # What has no body.
    mutant("a function that is none", "map_body.h", (
        "params::Elementwise::of(frame.op).function", "static_cast<MapCode>(99)")),
    # The order of a queue's own tasks.
    *shown_in("drops", mutant("a task that reads what the one before still writes", "worker.h", (
        "unsettled_.touches(turn.frame) || !unsettled_.has_capacity_for(turn.frame)",
        "!unsettled_.has_capacity_for(turn.frame)"))),
    mutant("a task that begins before its events have come", "worker.h", (
        "has_all_events(next) && !unsettled_.touches(next.frame)", "!unsettled_.touches(next.frame)")),
    *shown_in("adjacent", mutant("a task that begins on what the one before has yet to write", "worker.h", (
        "has_all_events(next) && !unsettled_.touches(next.frame)", "has_all_events(next)"))),
    *shown_in("drops", without("written memory that is forgotten", "unsettled.h", "written_[count_++] = {base, op};")),
    without("a task begun twice", "worker.h", "turn.has_begun = code == Code::OK;"),
    # Queues and flags of the vector core.
    mutant("a buffer that is never taken from its queue", "vector_unit.h", (
        "unit.inputs.DeQue<uint8_t>()", "unit.inputs.AllocTensor<uint8_t>()")),
    mutant("a buffer that is never freed", "vector_unit.h", (
        "unit.inputs.FreeTensor(in);\n    AscendC::PipeBarrier<PIPE_V>();", "AscendC::PipeBarrier<PIPE_V>();")),
    without("a piece that is never queued", "vector_unit.h", "unit.inputs.EnQue(in);"),
    without("a result that is never queued", "vector_unit.h", "outputs.EnQue(result);"),
    mutant("vector work on numbers not yet dequantized", "vector_unit.h", (
        "unit.inputs.FreeTensor(in);\n    AscendC::PipeBarrier<PIPE_V>();", "unit.inputs.FreeTensor(in);")),
    mutant("numbers overwritten while they are rounded", "vector_unit.h", (
        "outputs.FreeTensor(result);\n    AscendC::PipeBarrier<PIPE_V>();", "outputs.FreeTensor(result);")),
    without("weights read before they are computed", "vector_unit.h",
            "AscendC::SetFlag<AscendC::HardEvent::V_S>(computed_);",
            "AscendC::WaitFlag<AscendC::HardEvent::V_S>(computed_);"),
    without("entries read before they have arrived", "vector_unit.h",
            "AscendC::SetFlag<AscendC::HardEvent::MTE2_S>(loaded_);",
            "AscendC::WaitFlag<AscendC::HardEvent::MTE2_S>(loaded_);"),
    mutant("more than UB holds", "vector_unit.h", ("pipe->InitBuffer(passing, 2, kPassBytes);",
                                                   "pipe->InitBuffer(passing, 2, 2 * kPassBytes);")),
    mutant("what UB has and the runtime keeps", "vector_unit.h", (
        "pipe->InitBuffer(outputs, kNumOutputs, kPieceBytes);", "pipe->InitBuffer(outputs, kNumOutputs + 1, kPieceBytes);")),
    mutant("a piece longer than its buffer", "vector_unit.h", (
        "pipe->InitBuffer(floats_, kNumFloats * kPieceFloats * sizeof(float));",
        "pipe->InitBuffer(floats_, (kNumFloats - 1) * kPieceFloats * sizeof(float));")),
    mutant("sums of columns that depend on each other", "reduce_bodies.h", (
        "in_order::Add(sum, sum, x[r * piece.pitch], piece.pitch);",
        "AscendC::Add(sum, sum, x[r * piece.pitch], piece.pitch);")),
    mutant("sums of rows over what fills them up", "reduce_bodies.h", (
        "AscendC::Add(part, part, x[r * piece.pitch], piece.num_cols);",
        "AscendC::Add(part, part, x[r * piece.pitch], piece.pitch);")),
    *shown_in("sums", mutant("flags of which none is left for what adds up a row", "vector_unit.h", (
        "written_.init(pipe);", "written_.init(pipe); pipe->AllocEventID<AscendC::HardEvent::S_MTE3>(); "
        "pipe->AllocEventID<AscendC::HardEvent::S_MTE3>();"))),
    *shown_in("many choices", mutant("a sum begun anew with each part of its entries", "reduce_bodies.h", (
        "if (piece.first == 0) AscendC::Duplicate(unit.floats(0), is_max ? -__builtin_inff() : 0.0f, piece.tokens.count());",
        "AscendC::Duplicate(unit.floats(0), 0.0f, piece.tokens.count());"))),
    # Fractals and flags of the matrix core.
    mutant("a step of L0 from where that of L1 begins", "cube_2201.h", ("part.k1 / deep * part.pitch", "0")),
    mutant("the first half of B twice", "cube_unit.h", ("h * kHalfN / kFractal", "0")),
    mutant("fractals transposed where they must not be", "cube_2201.h", (
        "params.ifTranspose = cells.is_transposed;", "params.ifTranspose = !cells.is_transposed;")),
    mutant("rows of L0C that are not whole fractals apart", "cube_unit.h", (
        "params.srcStride = static_cast<uint16_t>(fractals(step.m) * kFractal);",
        "params.srcStride = static_cast<uint16_t>(step.m);")),
    mutant("products over what fills up the depth", "cube_unit.h", ("static_cast<uint16_t>(k)",
                                                                   "static_cast<uint16_t>(fractals(k) * kFractal)")),
    mutant("a single row taken for a vector", "cube_unit.h", ("most(step.m, 2)", "step.m")),
    mutant("zeros over the single row", "cube_unit.h", (
        "clear_l1(a, kFractal, step.k);\n      AscendC::PipeBarrier<PIPE_MTE2>();", "clear_l1(a, kFractal, step.k);")),
    mutant("L1 filled before it is free", "cube_unit.h", (
        "next_load_ = 1 - next_load_;\n    in_l1_.wait_free(i);", "next_load_ = 1 - next_load_;"), (
        "if (h + 1 == num_halves) in_l1_.set_free(from);", "")),
    *shown_in("deep float32", mutant("L1 given back with its second half unread", "cube_unit.h", (
        "if (h + 1 == num_halves) in_l1_.set_free(from);", "if (h == 0) in_l1_.set_free(from);"))),
    mutant("L1 read before it is filled", "cube_unit.h", (
        "in_l1_.set_full(i);\n    work.loaded = step;", "work.loaded = step;"), ("in_l1_.wait_full(from);", "")),
    without("products before L0 is filled", "cube_unit.h", "in_l0_.set_full(l0);", "in_l0_.wait_full(l0);"),
    without("L0 filled before it is free", "cube_unit.h", "in_l0_.wait_free(l0);", "in_l0_.set_free(l0);"),
    without("sums written before they are done", "cube_unit.h", "sums_.set_full(sums);", "sums_.wait_full(sums);"),
    without("sums begun before the last ones are written", "cube_unit.h", "if (step.is_first) sums_.wait_free(sums);",
            "sums_.set_free(sums);"),
    *shown_in("deep float32", without(
        "small products that overtake each other", "cube_unit.h",
        "if ((m / kFractal) * (n / kFractal) < 10) AscendC::PipeBarrier<PIPE_M>();")),
    mutant("both buffers of L0A in one place", "cube_unit.h", ("l0a_.Get<T>()[l0 * kBytesL0 / sizeof(T)]",
                                                               "l0a_.Get<T>()[0]")),
    mutant("both buffers of L1 in one place", "cube_unit.h", ("i * kBytesL1A / sizeof(T)", "0")),
    mutant("the other half-precision type", "cube_unit.h", ("QuantMode_t::F322BF16", "QuantMode_t::F322F16")),
    # Fractals and squares of float32.
    *shown_in(
        "float32",
        without("float32 that is rounded before it is multiplied", "cube_unit.h",
                "AscendC::SetHF32Mode(AscendC::HF32Mode::DISABLE);"),
        mutant("squares in columns of fractals", "cube_2201.h", ("!kIsSquared<T> || !k_is_down", "true")),
        mutant("rows of squares that overlap", "cube_2201.h", ("row * fractals(cols) * kFractal", "row * cols")),
        mutant("rows read past the last one", "cube_2201.h", ("least(kFractal, rows - row)", "kFractal")),
        mutant("halves of squares of A torn apart", "cube_2201.h", ("cells.keeps_squares ? 1 : 0", "0")),
        mutant("halves of squares of B beside each other", "cube_2201.h", ("cells.keeps_squares ? 0 : cells.cols - 1", "0")),
        mutant("squares as deep as fractals", "cube_2201.h",
               ("part.k_is_down ? kFractal : kFractalCols<T>", "kFractalCols<T>")),
        mutant("rows of L0A of an odd number of fractals", "cube_2201.h", (
            "fractals(part.k) * kFractal / kFractalCols<T>", "(part.k + kFractalCols<T> - 1) / kFractalCols<T>")),
        mutant("rows of L0A that Mmad takes for shorter ones", "cube_unit.h", (
            "params.kDirectionAlign = kAlignsDepth<T>;", "params.kDirectionAlign = false;")),
        mutant("a row of L0B for both halves of squares", "cube_2201.h",
               ("part.lines * (w.deep / kFractalCols<T>)", "part.lines")),
        mutant("columns of fractals as long as a row of squares", "cube_2201.h",
               ("k_is_down && !kIsSquared<T> ? depth : lines", "lines")),
        mutant("numbers half as long", "cube_unit.h", ("(static_cast<uint64_t>(row) * ld + col) * sizeof(T)",
                                                       "(static_cast<uint64_t>(row) * ld + col) * sizeof(half)")),
    ),
    *shown_in("deep float32", mutant("steps of as many numbers as in half precision", "product.h", (
        "kDeepBytesL1 / element_bytes(static_cast<int32_t>(p.dtype))", "kDeepBytesL1 / 2"))),
    *shown_in(
        "shared float32",
        mutant("a unit matrix of another type", "cube_unit.h",
               ("p.dtype == Dtype::FLOAT16 ? kUnitFloat16\n" + " " * 55 + ": kUnitFloat32", "kUnitFloat16")),
        mutant("a unit matrix of left halves", "fractals.h", ("unit + i % num_beside * kFractalBytes", "unit")),
        mutant("ones in the left half only", "prologue.h",
               ("kUnitFloat32 + i / 8 * 128 + i * 8 + i % 8", "kUnitFloat32 + i * 8 + i % 8")),
    ),
    # Rows and weights of int8.
    *shown_in(
        "int8",
        mutant("the scale of another row", "quantized_bodies.h", ("packed.address + num_cols", "packed.address")),
        without("a row rounded by what comes last in it", "quantized_bodies.h",
                "AscendC::Max(largest(), largest(), magnitudes, piece.num_cols);"),
        mutant("scales of columns for the first row alone", "quantized_bodies.h",
               ("AscendC::Mul(x[r * piece.pitch], x[r * piece.pitch], unit.floats(2), piece.num_cols);",
                "if (r == 0) AscendC::Mul(x, x, unit.floats(2), piece.num_cols);")),
        mutant("the scale multiplied as an element", "matmul_bodies.h", ("product.k -= kInt8RowScaleBytes;", "")),
        mutant("int8 brought to L1 as numbers of two bytes", "cube_unit.h",
               ("load_step<int8_t>(work.product, step, i);", "load_step<half>(work.product, step, i);")),
        mutant("magnitudes of the row before", "quantized_bodies.h",
               ("if (piece.col == 0) AscendC::Duplicate(largest(), 0.0f, 2 * kQuantizedPart);", "")),
    ),
    *shown_in(
        "int8 both ways",
        mutant("the scale of another row that comes back", "quantized_sums.h",
               ("of_rows.GetValue(r * kLane)", "of_rows.GetValue(0)")),
        mutant("bytes of rows that come back where floats would begin", "quantized_sums.h",
               ("round_up(p.pitch, kBlockBytes)", "p.pitch")),
        mutant("rows that come back dequantized as if side by side", "quantized_sums.h",
               ("bytes.pitch == all.pitch", "true")),
    ),
    # Routing and rows.
    mutant("a wrong gather index", "transfer_body.h", ("(number < 0 ? number + num_rows : number) / per_row",
                                                       "(number < 0 ? number + num_rows : number) % per_row")),
    mutant("rows put on the wrong rank", "transfer_body.h",
           ("target_of(frame.op, segment)", "(back ? segment.dest : segment.source)")),
    without("entries of the slot before", "route_counts.h", "part.first_entry += first - part.first_row;"),
    mutant("a core that sorts over another's entries", "prologue_unit.h", ("first + u < core", "first + u + 1 < core")),
    mutant("rows placed before all ranks have told where theirs begin", "prologue.h", (
        "code = wait_for_ranks(wrapping_sum(wrapping_product(2, epoch), -1));", "code = Code::OK;")),
    *shown_in(
        "ahead",
        mutant("ranks that have told counted together", "prologue.h", ("kExchanged + rank_.args.rank", "kExchanged + 0"),
               ("code = on_.wait(kExchanged + source, target);",
                "code = on_.wait(kExchanged, target * rank_.ep_size());")),
    ),
    # Entries that are dropped.
    *shown_in(
        "drops",
        mutant("dropped entries in the sum", "reduce_bodies.h",
               ("chosen != 0 && kept.GetValue(r * piece.entries + k) < 0", "false")),
        mutant("values of dropped entries kept", "drop_bodies.h", ("kept.GetValue(i) >= 0", "true")),
        mutant("one entry more than an expert takes", "entry_sort.h", ("least(all_.GetValue(e), capacity)",
                                                                      "least(all_.GetValue(e), capacity + 1)")),
        mutant("the last of the lightest entries left out", "entry_sort.h", ("begin + i <= last_.GetValue(id)",
                                                                             "begin + i < last_.GetValue(id)")),
        mutant("weights below zero taken for the heaviest", "deciding_weights.h",
               ("(bits & kSign) != 0 ? ~bits : bits | kSign", "bits | kSign")),
        mutant("zeros of two signs", "deciding_weights.h", ("if ((bits & ~kSign) == 0) return kSign;", "")),
        mutant("the lightest entries chosen from a list that is not sorted", "prologue.h", (
            "if (weighs && code == Code::OK) code = take_and_meet(Step::SORT_ALL);",
            "if (weighs && code == Code::OK) code = take(Step::SORT_ALL);")),
        mutant("entries counted before the lightest are chosen", "prologue.h", (
            "if (weighs && code == Code::OK) code = take_and_meet(Step::CHOOSE);",
            "if (weighs && code == Code::OK) code = take(Step::CHOOSE);")),
        mutant("targets that count dropped entries", "kept_entries.h", (
            "find_dropped(chosen_[part_ % kAhead], count)", "0")),
    ),
    # Tokens sent once, and copies of experts.
    *shown_in(
        "shared",
        mutant("a token sent once for each of its experts", "stop_sort.h", (
            "newest_.GetValue(stop) != token", "true")),
        mutant("entries taken for where the rows of their experts begin", "stop_sort.h", (
            "on_.append(firsts_, fan_starts_, 1, count, num_ranks(), next_start_, tables_.fan_start, work_, staged_);",
            "on_.append(firsts_, entries_, 1, count, num_ranks(), next_start_, tables_.fan_start, work_, staged_);")),
        mutant("ranks sorted before all cores have counted", "prologue.h", (
            "if (fans && code == Code::OK) code = take_and_meet(Step::COUNT_BY_RANK);",
            "if (fans && code == Code::OK) code = take(Step::COUNT_BY_RANK);")),
        mutant("a row of the wrong expert", "routing_tables.h", (
            "source_start(source, rank_, fan.expert) + fan.place", "expert_start(rank_, fan.expert) + fan.place")),
        mutant("the slot of another row", "expert_slots.h", ("slot_at((row - start) / tile_rows)",
                                                             "first + (row - start) / tile_rows")),
        without("a fan's sum that goes on with the last token's", "fan_bodies.h",
                "if (piece.is_first) AscendC::Duplicate(unit.floats(0), 0.0f, piece.pitch);"),
        mutant("rows of a fan added before each other", "fan_bodies.h", (
            "in_order::Axpy(sum, x[i * piece.pitch], is_weighted ? w.GetValue(i * kLane) : 1.0f, piece.pitch);",
            "AscendC::Axpy(sum, x[i * piece.pitch], is_weighted ? w.GetValue(i * kLane) : 1.0f, piece.pitch);")),
        mutant("fans tallied where numbers are still worked on", "fan_bodies.h", (
            "AscendC::Duplicate(unit.words(), 0, least(kAtOnce, num_slots - first));\n    unit.wait_for_results();",
            "AscendC::Duplicate(unit.words(), 0, least(kAtOnce, num_slots - first));")),
        mutant("a copy's matrix in the wrong slot", "segments.h", (
            "copy.slot * height + k0", "(1 - copy.slot) * height + k0")),
        mutant("gradients returned to the wrong place", "segments.h", (
            "routing.place_of_copy(me, number) * height", "(1 - routing.place_of_copy(me, number)) * height")),
        mutant("an owner's weights for its copy", "matmul_bodies.h", (
            "copies > 0 && frame.unit.expert >= frame.routing.num_own_experts() ? copies : 2", "2")),
        mutant("what comes back added to every expert", "matmul_bodies.h", ("copy.expert == frame.unit.expert", "true")),
        mutant("a unit matrix over zeros that are still written", "fractals.h", (
            "clear_l1(to, m, m);\n  AscendC::PipeBarrier<PIPE_MTE2>();", "clear_l1(to, m, m);")),
        mutant("a unit matrix off the diagonal", "fractals.h", ("i * num_m + i / num_beside", "i * num_m")),
        mutant("a run of copies that begins with its expert's", "entry_sort.h", ("place - low_.GetValue(local)", "place")),
    ),
    # Functions of elements.
    *shown_in(
        "functions",
        mutant("a choice before what is compared is known", "map_functions.h", (
            "AscendC::PipeBarrier<PIPE_V>();\n"
            "    AscendC::Select(out[i], mask, yes[i], no[i], AscendC::SELMODE::VSEL_TENSOR_TENSOR_MODE, part);",
            "AscendC::Select(out[i], mask, yes[i], no[i], AscendC::SELMODE::VSEL_TENSOR_TENSOR_MODE, part);")),
        mutant("a comparison before the choice by the last one", "map_functions.h", (
            "AscendC::PipeBarrier<PIPE_V>();\n"
            "    AscendC::Compare(mask, a[i], b[i], mode, part);",
            "AscendC::Compare(mask, a[i], b[i], mode, part);")),
        mutant("a choice for the first elements of a piece alone", "map_functions.h", (
            "round_up(least(kPieceFloats, count - i), kFloatsAtOnce)", "kFloatsAtOnce")),
        mutant("the other choice", "map_functions.h", ("choose(mask, AscendC::CMPMODE::NE, a, x, a, b, c, count);",
                                                       "choose(mask, AscendC::CMPMODE::NE, a, x, a, c, b, count);")),
        mutant("pi in two parts", "map_functions.h", ("i < 3", "i < 2")),
    ),
    *shown_in("weights", mutant("a row spread before it is dequantized", "map_body.h", (
        "AscendC::PipeBarrier<PIPE_V>();\n      for (int32_t r = 0; r < piece.num_rows; ++r) "
        "AscendC::Muls(to[r * piece.pitch], narrow, 1.0f, piece.pitch);",
        "for (int32_t r = 0; r < piece.num_rows; ++r) AscendC::Muls(to[r * piece.pitch], narrow, 1.0f, piece.pitch);"))),
    *shown_in(
        "overflow",
        mutant("the largest number for what overflows", "kernel.cpp", (
            "AscendC::SetSaturationFlag<AscendC::SaturationMode::FLOAT>(false);", "")),
        mutant("a row for all as many as there are", "map_body.h", ("is_row(i) ? first_row_of(piece) : piece", "piece")),
    ),
    mutant("a wrong sign in SwiGLU's gradient", "swiglu_bodies.h",
           ("in_order::Sub(x, g, x, count);", "in_order::Add(x, g, x, count);")),
    *shown_in("norms",
              without("the mean square of a norm without its epsilon", "norm_bodies.h", "in_order::Adds(sum, sum, eps, 1);"),
              without("a norm of the last part of a row", "norm_bodies.h", "if (piece.col > 0) return;"),
              mutant("a wrong sign in the gradient of a norm", "norm_bodies.h",
                     ("in_order::Sub(a, unit.floats(1), a, piece.count());",
                      "in_order::Add(a, unit.floats(1), a, piece.count());"))),
)
