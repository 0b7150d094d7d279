"""More of ascend_mutants.py: faults in how relays find what they pass on, and what comes back to them."""

from ascend_mutants import mutant, shown_in

LISTS = shown_in(
    "relays",
    mutant("the relay of another rank", "stop_sort.h", (
        "on_.rank.image.stop(route_, me, dest)", "on_.rank.image.stop(route_, 0, dest)")),
    mutant("a token that crosses for each of its entries", "stop_sort.h", (
        "newest_.GetValue(stop) != token", "true")),
    mutant("rows of a relay counted from those of the ones before", "stop_sort.h", (
        "at_row_.GetValue(hop.stop) - 1 - rows_.GetValue(hop.stop)", "at_row_.GetValue(hop.stop) - 1")),
    mutant("the row of the next token", "stop_sort.h", (
        "at_row_.GetValue(hop.stop) - 1 - rows_.GetValue(hop.stop)",
        "at_row_.GetValue(hop.stop) - rows_.GetValue(hop.stop)")),
    mutant("lists of experts that begin at this core's last entry", "stop_sort.h", (
        "if (list >= 0) next_.SetValue(list, starts_.GetValue(list) + places_.GetValue(i));",
        "if (list >= 0 && i == count - 1) next_.SetValue(list, starts_.GetValue(list) + places_.GetValue(i));")),
    mutant("the first choice of each token", "stop_sort.h", ("forwards_ ? choice : places_.GetValue(i)",
                                                           "forwards_ ? 0 : places_.GetValue(i)")),
    mutant("choices of rows that begin where the last one's do", "stop_sort.h", (
        "next_start_.SetValue(rank, next_row_.GetValue(rank));", "next_start_.SetValue(rank, rows_.GetValue(rank));")),
    mutant("lists of experts read before they are there", "stop_sort.h", (
        "drain_pipes();\n"
        "      on_.read(starts_, on_.word(experts_.sent + on_.rank.args.rank * experts_.width), experts_.width);",
        "on_.read(starts_, on_.word(experts_.sent + on_.rank.args.rank * experts_.width), experts_.width);")),
    mutant("choices of all rows that begin where the first one's do", "stop_sort.h", (
        "fans_.GetValue(stop)", "next_fan_.GetValue(stop)")),
)

SEGMENTS = shown_in(
    "relays",
    mutant("rows of the ranks after the first one", "task_segments.h", ("source_ = 0;", "source_ = 1;")),
    mutant("rows that another relay passes on", "task_segments.h", (
        "came_ == 0 || relays_.stop(source_, dest_) != relay_", "came_ == 0")),
    mutant("rows where those of the first rank lie", "task_segments.h", (
        "before_ += frame_.routing.entries_for(counted_, dest_, slot_.expert, slot_.expert + 1);", "")),
    mutant("ranks' rows counted twice", "task_segments.h", ("before_ = 0;\n    counted_ = 0;", "before_ = 0;")),
    mutant("entries instead of a relay's rows", "task_segments.h", (
        "relays_.tables().relayed", "frame_.routing.tables().entries")),
    mutant("a relay's lists instead of its tokens' rank's", "task_segments.h", (
        "is_relayed_ ? source_ : segment_.source", "segment_.source")),
    mutant("rows of the first rank that a relay hears", "task_segments.h", (
        "is_relayed_ ? first_row_ : 0", "0")),
    mutant("a signal for the rows of the first rank alone", "worker.h", (
        "for (TaskSegments segments(frame); segments.next();) signal_segment(signal, frame, segments.segment());",
        "TaskSegments segments(frame);\n        if (segments.next()) signal_segment(signal, frame, segments.segment());")),
    mutant("rows of relays taken for those of entries", "transfer_body.h", (
        "token_side == Rows::TOKENS || token_side == Rows::RELAY_ROWS", "token_side == Rows::TOKENS")),
    mutant("entries of relays that begin at a row", "transfer_body.h", (
        "list.first_row * (by_token ? 1 : top_k) * row_bytes", "list.first_row * row_bytes")),
    mutant("a row that another slot's rows are cut of", "route_counts.h", (
        "part.first_entry += first - part.first_row;", "")),
)

SUMS = shown_in(
    "relays",
    mutant("sums that begin before all has come back", "route_counts.h", (
        "relays.stop(source, dest) == relay", "relays.stop(dest, dest) == relay")),
    mutant("sums of the first rows", "fan_bodies.h", (
        "(first_row() + token) * experts_.route().top_k", "token * experts_.route().top_k")),
    mutant("the weight of another choice", "relay_body.h", (
        "frame.base(2)", "frame.base(2) + element_bytes(of.dtype)")),
    mutant("rows that relays have before those of the ranks before", "task_segments.h", (
        "first_row_ += came_;", "first_row_ = came_;")),
)

ONCE = shown_in(
    "relays, once",
    mutant("a row passed on to each expert", "stop_sort.h", (
        "on.rank.image.route(forwards_ ? on.rank.image.passed_on(number) : number)", "on.rank.image.route(route_.of)")),
    mutant("a sum that comes back from each expert", "stop_sort.h", (
        "!is_once_ || newest_of_rank_.GetValue(rank) != token", "true")),
    mutant("ranks' lists that begin at the first core's", "stop_sort.h", (
        "add_starts(starts_, next_);", "for (int32_t r = 0; r < tables_.width; ++r) next_.SetValue(r, 0);")),
)

MUTANTS_OF_RELAYS = (*LISTS, *SEGMENTS, *SUMS, *ONCE)
