"""More faults of the Ascend kernel: memory of wrong sizes, meetings left out, cores miscounted, polls misread, and what an
earlier launch or task has left taken for this one's."""

from ascend_mutants import mutant, shown_in

SIZES = (
    mutant("room for two of three inputs", "vector_unit.h", (
        "pipe->InitBuffer(inputs, 2, kMaxInputs * kPieceBytes);", "pipe->InitBuffer(inputs, 2, kPieceBytes);")),
    mutant("results in half the room", "vector_unit.h", (
        "pipe->InitBuffer(outputs, kNumOutputs, kPieceBytes);",
        "pipe->InitBuffer(outputs, kNumOutputs, kPieceBytes / 16);")),
    mutant("rows that pass through less than a row", "vector_unit.h", (
        "pipe->InitBuffer(passing, 2, kPassBytes);", "pipe->InitBuffer(passing, 2, kBlockBytes);")),
    *shown_in("many choices", mutant("entries that do not fit their list", "vector_unit.h", (
        "pipe->InitBuffer(entries_, kEntryWords * sizeof(int32_t));", "pipe->InitBuffer(entries_, kBlockBytes);"))),
    mutant("one block for four signals", "vector_unit.h", (
        "pipe->InitBuffer(signal_, kNumSignals * kBlockBytes);", "pipe->InitBuffer(signal_, kBlockBytes);")),
    mutant("no room in L1 for an AIC's signals", "cube_unit.h", (
        "pipe->InitBuffer(l1_, kBytesOperands + CounterAdder::kBytesOfL1 + kBytesOfScales);",
        "pipe->InitBuffer(l1_, kBytesOperands + kBytesOfScales);")),
    mutant("one buffer of L0A", "cube_unit.h", (
        "pipe->InitBuffer(l0a_, 2 * kBytesL0);", "pipe->InitBuffer(l0a_, kBytesL0);")),
    mutant("one buffer of L0B", "cube_unit.h", (
        "pipe->InitBuffer(l0b_, 2 * kBytesL0);", "pipe->InitBuffer(l0b_, kBytesL0);")),
    mutant("one half of L0C", "cube_unit.h", (
        "pipe->InitBuffer(l0c_, 2 * kBytesHalf);", "pipe->InitBuffer(l0c_, kBytesHalf);")),
    *shown_in("many choices", mutant("pieces larger than their buffers", "vector_unit.h", (
        "return kPieceBytes / widest;", "return kPieceBytes;"))),
)

MEETINGS = (
    mutant("entries sorted before all cores have counted", "prologue.h", (
        "return on_.meet(kCounted, wrapping_product(num_met_, rank_.num_aiv));", "on_.signal(kCounted); return code;")),
    *shown_in("sharded", mutant("others told before all cores have sorted", "prologue.h", (
        "if (waits_for_lists_ && code == Code::OK) code = on_.meet(kSorted, all);",
        "if (waits_for_lists_ && code == Code::OK) on_.signal(kSorted);"))),
    *shown_in(
        "returned",
        mutant("all said to be listed before all cores have sorted", "prologue.h", (
            "if (core_ < rank_.ep_size()) code = on_.wait(kSorted, all);", "")),
        mutant("lists of ranks read that have yet to be written", "prologue.h", (
            "if (core_ + 1 == rank_.num_aiv && code == Code::OK) code = wait_for_ranks(wrapping_product(2, epoch));", "")),
    ),
    *shown_in("main gradients", mutant("Fixpipe that goes on adding", "cube_unit.h", (
        "if (p.adds) AscendC::SetAtomicNone();", ""))),
    mutant("more code asked for than a cache takes", "kernel.cpp", (
        "AscendC::ICachePreLoad(7);", "AscendC::ICachePreLoad(8);")),
    mutant("lines fetched from behind the image", "image_reader.h", (
        "preload(image_ + header_.ops_offset + i * sizeof(Op) + line * kLineBytes);",
        "preload(image_ + header_.image_bytes + i * sizeof(Op) + line * kLineBytes);")),
    mutant("AIV that begin before all targets are set", "kernel.cpp", (
        "if (code == Code::OK) code = worker.wait_until_ready();", "")),
    mutant("AIC that begin before targets are set", "worker.h", (
        "wrapping_product(rank_.args.epoch, rank_.num_aiv)", "0")),
    mutant("AIV that do not say that they are ready", "prologue.h", (
        "if (code == Code::OK) on_.signal(kReady);", "")),
)

GATHERED = (
    mutant("entries of experts that no core gathers", "gather_sort.h", (
        "((num_experts_ - 1) >> shift_) + 2", "((num_experts_ - 1) >> shift_) + 1")),
    mutant("numbers gathered before the mask is made", "gather_sort.h", (
        "in_order::Compares(mask_.ReinterpretCast<uint8_t>(), words, value, AscendC::CMPMODE::EQ,\n"
        "                       static_cast<uint32_t>(round_up(count, kRepeat)));",
        "AscendC::Compares(mask_.ReinterpretCast<uint8_t>(), words, value, AscendC::CMPMODE::EQ, "
        "static_cast<uint32_t>(round_up(count, kRepeat)));")),
    mutant("what follows a chunk of ids gathered too", "gather_sort.h", (
        "find(ids_[chunk % kAhead], count);", "find(ids_[chunk % kAhead], round_up(count, kRepeat));")),
    mutant("what fills up a block of UB taken for entries", "gather_sort.h", (
        "found_ids_.SetValue(num_found_, kNothing)", "found_ids_.SetValue(num_found_, first_)")),
    mutant("one expert's entries over another's", "gather_sort.h", (
        "list(i, place, count);\n      place += round_up(count, kBlockBytes / 4);", "list(i, place, count);")),
    mutant("experts that begin where they end", "running_sums.h", ("bring(1, 0, 1);", "bring(1, 0, 0);")),
    mutant("sums of half the experts", "running_sums.h", ("terms < num_terms_", "2 * terms < num_terms_")),
    mutant("no zeros before the first expert", "running_sums.h", ("AscendC::Duplicate(sums, 0, kPad);", "")),
    mutant("sums of sums that are not there yet", "running_sums.h", (
        "in_order::Add(sums(1 - at), sums(at), before, num_sums_);",
        "AscendC::Add(sums(1 - at), sums(at), before, num_sums_);")),
    *shown_in(
        "grouped",
        mutant("entries of the first group in the places of another", "gather_sort.h", (
            "group == on_.core % num_groups_", "group == 0")),
        mutant("a group's entries from where all begin", "gather_sort.h", (
            "begin_ = least(group_ * of_group, num_entries_);", "begin_ = 0;")),
        mutant("experts eight and more before left out", "running_sums.h", (
            "terms < kBlockBytes / 4 ? sums(1 - at) : sums_[at][kPad - terms]", "sums(1 - at)")),
    ),
    *shown_in(
        "in order",
        mutant("room for one entry more than an expert takes", "gather_sort.h", (
            "AscendC::Mins(sums.list(), totals_, capacity_, tables_.width);",
            "AscendC::Mins(sums.list(), totals_, capacity_ + 1, tables_.width);")),
        mutant("entries over capacity in the next expert's list", "gather_sort.h", (
            "drops() ? least(count, starts_.GetValue(first_ + i + 1) - next) : count", "count")),
        mutant("the last entry that an expert keeps dropped", "gather_sort.h", (
            "place + capacity_ - before - 1", "place + most(capacity_ - before - 2, 0)")),
        mutant("dropped entries that nobody notes", "gather_sort.h", ("if (drops()) drop(lasts, begin, count);", "")),
    ),
    *shown_in(
        "many",
        mutant("the ids of the first tokens again", "gather_sort.h", (
            "ids_address_ + static_cast<uint64_t>(begin) * sizeof(int32_t)", "ids_address_")),
        mutant("more entries found than there is room for", "gather_sort.h", (
            "num_found_ + count > kMostFound", "num_found_ > kMostFound")),
        mutant("entries kept that others lie over", "gather_sort.h", ("++num_splits_ == 1", "++num_splits_ >= 1")),
    ),
)

PLACED = (
    mutant("ranks added up in any order", "placement.h", (
        "in_order::Add(sums_[(s + 1) * pitch_], sums_[s * pitch_], high_[s * pitch_], pitch_);",
        "AscendC::Add(sums_[(s + 1) * pitch_], sums_[s * pitch_], high_[s * pitch_], pitch_);")),
    mutant("sums read before they are computed", "placement.h", ("on_.unit.wait_for_results();", "")),
    mutant("rows that come behind those of all ranks", "placement.h", (
        "first + s == on_.rank.me()", "first + s >= on_.rank.me()")),
    mutant("where a rank's own rows begin, of another rank", "placement.h", (
        "first + s == dest_", "first + s == on_.rank.me()")),
    mutant("rows from ranks before each, of the first launch that asks", "placement.h", (
        "if (writes && dest == on_.rank.me()) write_before(first, ranks);", "")),
    mutant("a slot of some rows that is none", "placement.h", ("0.5f * static_cast<float>(by - 1)", "0.0f")),
    mutant("slots that are all full", "targets.h", ("run.mult * (rows - tile_rows)", "0")),
    mutant("the last rows in an expert's last slot", "expert_slots.h", ("slot_at(count - 1)", "first + count - 1")),
    mutant("targets before the first block of a run left out", "targets.h", (
        "i < whole && !by_vector", "i < whole && by_vector && false")),
    mutant("rows in slots behind the last", "targets.h", ("least(last, to_event + route_.num_used_slots(0))", "last")),
)

CORES = (
    mutant("half of the AIV", "kernel.cpp", (
        "rank.num_aiv = 2 * rank.args.num_blocks;", "rank.num_aiv = rank.args.num_blocks;")),
    mutant("AIV that take the queues of AIC", "kernel.cpp", ("rank.args.num_blocks + core", "core")),
    *shown_in(
        "drops",
        mutant("tokens that no core sorts", "prologue_unit.h", (
            "(all + rank.num_aiv - 1) / rank.num_aiv", "all / rank.num_aiv")),
        mutant("tokens that two cores sort", "prologue_unit.h", (
            "least((core + 1) * part, all)", "least((core + 2) * part, all)")),
        mutant("counts of the first core instead of the others", "prologue_unit.h", (
            "AscendC::Add(all, all, work[u * width], width);", "AscendC::Add(all, all, work, width);")),
    ),
    *shown_in("ahead", mutant("ranks told by every core", "prologue.h", ("rank += rank_.num_aiv", "rank += 1"))),
    mutant("events whose target no core sets", "targets.h", ("least((core_ + 1) * part, num_events)",
                                                             "least((core_ + 1) * part, num_events - 1)")),
    mutant("rows of a rank that no core places", "prologue.h", ("placement.write();", "if (core_ == 0) placement.write();")),
    *shown_in("drops", mutant("experts whose heaviest entries no core finds", "heaviest.h", (
        "e % on_.rank.num_aiv == on_.core", "e % (on_.rank.num_aiv + 1) == on_.core"))),
)

POLLS = (
    mutant("a task that waits for its first event alone", "worker.h", (
        "if (end == WaitEnd::MET) continue;", "if (end == WaitEnd::MET) break;")),
    *shown_in("late", mutant("a look ahead at the first event alone", "worker.h", (
        "if (!counters_.has_reached(event, threshold_of(event))) return false;",
        "return counters_.has_reached(event, threshold_of(event));"))),
    mutant("the target of another event", "worker.h", (
        "rank_.args.targets + static_cast<uint64_t>(event) * sizeof(int32_t)", "rank_.args.targets")),
    mutant("no load held back by the only event of a task", "worker.h", (
        "if (turn.frame.run->task_template.num_waits > 0) unit_.load_after_poll();",
        "if (turn.frame.run->task_template.num_waits > 1) unit_.load_after_poll();")),
    mutant("a counter that is over where it is not equal", "counters.h", (
        "is_at_least(look(index), target)", "(look(index) != target)")),
    mutant("a failure taken for an event", "counters.h", ("counter - first_event_", "counter")),
)

STALE = (
    mutant("the task before instead of this one", "worker.h", (
        "if (turn.place != place_) read_task(turn, place_);", "if (turn.place < 0) read_task(turn, place_);")),
    mutant("the template of the task before", "worker.h", (
        "turn.place < 0 || frame.run->number != number", "turn.place < 0")),
    *shown_in("shared", mutant("the route of the task before", "worker.h", (
        "route < 0 || route == turn.route", "route < 0 || turn.route >= 0"))),
    *shown_in("shared", mutant("the route of the events before", "targets.h", (
        "if (route != last_route_) route_.init(route);", "if (last_route_ < 0) route_.init(route);"))),
    *shown_in(
        "ahead",
        mutant("targets of this launch alone", "targets.h", ("wrapping_sum(targets_.GetValue(place), amount)", "amount")),
        mutant("ready since an earlier launch", "worker.h", (
            "wrapping_product(rank_.args.epoch, rank_.num_aiv)", "rank_.num_aiv")),
        mutant("told in an earlier launch", "prologue.h", (
            "code = on_.wait(kExchanged + source, target);", "code = on_.wait(kExchanged + source, target - 2);"), (
            "is_at_least(on_.words(source * kBlockBytes / 4).GetValue(0), target)",
            "is_at_least(on_.words(source * kBlockBytes / 4).GetValue(0), target - 2)")),
        mutant("counted in an earlier launch", "prologue.h", (
            "wrapping_product(wrapping_sum(rank_.args.epoch, -1), 1 + (weighs ? 3 : 0) + (fans ? 1 : 0))", "0")),
    ),
)

DECODED = (
    mutant("the first rows of a part's image", "cube_2201.h", (
        "params.mStartPt = static_cast<uint16_t>(sides.first_down);", "")),
    mutant("the first columns of a part's image", "cube_2201.h", (
        "params.kStartPt = static_cast<uint16_t>(sides.first_across * kFractalCols<T>);", "")),
    mutant("an image as high as its part", "cube_2201.h", ("sides.pitch * kFractal", "sides.first_down + sides.down")),
    mutant("an image that is not transposed", "cube_2201.h", ("params.enTranspose = is_transposed;", "")),
    mutant("an operation without its last operand", "image_reader.h", (
        "both.op.num_operands * of_operand", "(both.op.num_operands - 1) * of_operand")),
    mutant("tasks of one tile of columns", "task_run.h", ("run.column_tiles = num_column_tiles(run.op);", "")),
    mutant("the run of any template", "task_run.h", ("if (run.number == number) return &run;",
                                                   "if (run.number >= 0) return &run;")),
    mutant("the slot before instead of this one", "routing_tables.h", (
        "if (index == own_index_) return own_slot_;", "if (own_index_ >= 0) return own_slot_;")),
    *shown_in("shared", mutant("slots of the rank before", "routing_tables.h", (
        "rank != slots_rank_ || index < slots_.first", "index < slots_.first"))),
    mutant("slots in the order of their rows", "targets.h", ("placement_.own_start(expert)", "0")),
    mutant("slots that are all full", "targets.h", ("rows.rows | e << kSlotBits",
                                                    "on_.rank.tile_rows() | e << kSlotBits")),
    mutant("a slot of each core's that nobody lists", "targets.h", (
        "least((core_ + 1) * part, used)", "least((core_ + 1) * part - 1, used)")),
    mutant("slots of the expert before", "targets.h", (
        "while (route_.first_slot(0, e + 1) <= first + i) ++e;",
        "if (i == 0) while (route_.first_slot(0, e + 1) <= first) ++e;")),
    mutant("targets that are looked at before they are set", "worker.h", (
        "(void)runs_.find(number, nullptr);", "(void)runs_.find(number, nullptr), (void)threshold_of(0);")),
    *shown_in("shared", mutant("the other turn's route", "worker.h", ("route == other.route", "other.route >= 0"))),
)

PADDING = shown_in(
    "aligned",
    mutant("rows of zeros that are left as they were", "transfer_body.h", ("!back && segment.padding > 0", "false")),
    mutant("rows of zeros that nobody hears of", "tile_bodies.h", ("segment.padding", "0")),
    mutant("experts' rows that are not filled up", "placement.h", (
        "divide(sums.list(), route_.alignment);", ""), (
        "AscendC::Muls(sums.list(), sums.list(), route_.alignment, pitch_);", "")),
    mutant("rows of zeros of a slot before", "route_counts.h", (
        "part.first_padding = most(part.first_padding, begin);", "")),
    mutant("entries in rows of zeros", "transfer_body.h", ("first < segment.num_entries()", "first < segment.rows"),
           ("segment.num_entries() - first", "segment.rows - first")),
)
ZEROS = shown_in("aligned, two ranks", mutant("zeros where other ranks' entries lie", "routing_tables.h", (
    "image_->header().ep_size - 1", "0")))

EARLY = shown_in(
    "early",
    mutant("a weight that is read early past its last row", "cube_unit.h", (
        "least(kDeep, early_.k - k0)", "kDeep")),
    mutant("a weight that is read early past its last column", "cube_unit.h", (
        "least(kTileN, early_.n - n0)", "kTileN")),
    mutant("a weight that is read early without end", "cube_unit.h", (
        "if (early_.k == 0 || early_n0_ >= early_.n) return;", "")),
    mutant("a buffer of L1 that the next product does not know of", "cube_unit.h", (
        "next_load_ = next_step_ = 1 - i;", "next_load_ = 1 - i;")),
    mutant("a piece of a weight over one that is multiplied", "cube_unit.h", (
        "in_l1_.wait_free(i);\n    load_b<T>(l1_b<T>(i), early_, k0, n0, k, n);",
        "load_b<T>(l1_b<T>(i), early_, k0, n0, k, n);")),
)

MUTANTS_OF_CORES = (*SIZES, *MEETINGS, *GATHERED, *PLACED, *CORES, *POLLS, *STALE, *DECODED, *PADDING, *ZEROS, *EARLY)
