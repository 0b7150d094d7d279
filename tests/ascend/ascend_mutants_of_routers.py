"""Faults of what routers are made of, choices, picks, sums at an index, axes inside rows, draws, integers, remainders, and
of guards."""

from ascend_mutants import mutant, shown_in, without

ROUTERS = shown_in(
    "router",
    # Choices.
    mutant("a row filled up with zeros", "row_sort.h", ("in_order::Duplicate(to, -__builtin_inff(), lanes);",
                                                      "in_order::Duplicate(to, 0.0f, lanes);")),
    mutant("the largest where the smallest are asked for", "row_sort.h", ("is_largest ? 1.0f : -1.0f", "1.0f")),
    mutant("NaN that nobody looks for", "row_sort.h", ("!is_integer(x.dtype) && find_nan(piece)", "false")),
    mutant("NaN among what is infinite", "row_sort.h", ("has_nan ? 2 : 1", "1")),
    mutant("integers by their low bits", "row_sort.h", ("element_bytes(x.dtype) / 2", "1")),
    mutant("integers without their sign", "row_sort.h", ("digit + 1 == num_digits()", "false")),
    mutant("digits that forget the order so far", "row_sort.h", ("digit == 0 ? columns() : order()", "columns()")),
    mutant("lists that are merged once", "row_sort.h", ("length < count", "length < least(count, 64)")),
    mutant("a rest that is left where it was", "row_sort.h", ("done < count", "false")),
    mutant("three lists taken for two", "row_sort.h", ("(1 << num_lists) - 1", "num_lists > 2 ? 3 : (1 << num_lists) - 1")),
    mutant("the numbers of pairs instead of their columns", "row_sort.h", (
        "in_order::Gather(order(), sorted, pair_offsets().ReinterpretCast<uint32_t>(), 4, lanes);",
        "in_order::Gather(order(), sorted, pair_offsets().ReinterpretCast<uint32_t>(), 0, lanes);")),
    # Picks.
    without("indices that are not counted from the end", "take_body.h",
            "in_order::Axpy(to, work, static_cast<float>(cols), count);"),
    mutant("elements of the first row", "take_body.h", ("unit.floats(0)[r * from.pitch]", "unit.floats(0)")),
    mutant("offsets counted in elements", "take_body.h", ("is_wide() ? 1.0f : 4.0f", "1.0f")),
    mutant("one row of indices for all", "take_body.h", ("places[is_one_row() ? 0 : r * to.pitch]", "places[0]")),
    # Sums.
    mutant("sums that begin anywhere", "column_bodies.h", (
        "AscendC::Duplicate(unit.floats(2), 0.0f, rows_of(piece, out.cols).count() * "
        "most(element_bytes(out.dtype), 4) / 4);",
        "AscendC::Duplicate(unit.floats(2), 1.0f, rows_of(piece, out.cols).count());")),
    mutant("an element that is set and not added", "column_bodies.h", (
        "sums().number(place) + (is_number ? number : added.number(i))", "is_number ? number : added.number(i)")),
    mutant("indices of sums that are not counted from the end", "column_bodies.h", ("if (col < 0) col += out.cols;", "")),
    mutant("running sums the other way", "column_bodies.h", ("is_reverse ? piece.num_cols - 1 - i : i", "i")),
    mutant("running sums that run on into the next row", "column_bodies.h", (
        "number = i == 0 ? x.number(place) : number + x.number(place);",
        "static float so_far = 0.0f; number = so_far += x.number(place);")),
    # Axes.
    without("zeros that come after what is placed", "axis_bodies.h", "AscendC::PipeBarrier<PIPE_MTE3>();"),
    mutant("an axis without its step", "axis_bodies.h", (
        "return o * far + first + j * near;", "return o * far + first + j;")),
    mutant("blocks cut where they go to alone", "axis_bodies.h", (
        "blocks.from.at(o, j) + first - to", "blocks.from.at(o, j)")),
    mutant("the sum of a group that asks for its greatest", "axis_bodies.h", (
        "p.reduction == Reduction::MAX", "false")),
    # Draws.
    mutant("rounds of one key", "draw_body.h", ("key += 0x9E3779B9u", "key += 0u")),
    mutant("a product without its carry", "draw_body.h", ("add(high(), high(), carried());", "")),
    mutant("or instead of exclusive or", "draw_body.h", ("in_order::Sub(to, to, both, count_);", "")),
    mutant("numbers of other columns", "draw_body.h", ("frame.first_col(0) + piece.col", "piece.col")),
    # The scalar unit.
    without("numbers of the scalar unit that vectors take too early", "scalars.h", "unit.release_to_vectors();"),
    without("integers read before they are there", "integer_bodies.h", "map.unit.wait_for_results();"),
    mutant("a column that is one element", "integer_bodies.h", ("map.inputs[i].is_column ? 0 : c", "c")),
    mutant("a sum of integers that forgets", "integer_bodies.h", ("is_first ? value : sums.GetValue(i)", "value")),
    mutant("the smallest integer", "integer_bodies.h", ("is_max && so_far > value", "is_max && so_far < value")),
    mutant("integers cut to 32 bits", "scalars.h", (
        "at.ReinterpretCast<int64_t>().GetValue(i)", "static_cast<int32_t>(at.ReinterpretCast<int64_t>().GetValue(i))")),
    mutant("a quotient cut towards zero", "integer_functions.h", ("(a % b < 0) != (b < 0) ? 1 : 0", "false ? 1 : 0")),
    mutant("a remainder of too many bits at once", "float_remainder.h", ("least(more, 38)", "least(more, 48)")),
    mutant("a remainder of the other sign", "float_remainder.h", (
        "is_negative(left) != is_negative(divisor) ? float_of(left) + b : float_of(left)", "float_of(left)")),
)

GUARDS = shown_in(
    "guarded",
    mutant("values above a bound that are below it", "guard_bodies.h", ("AscendC::CMPMODE::GE", "AscendC::CMPMODE::LT")),
    mutant("a bound that nobody looks at", "guard_bodies.h", ("value <= range.high", "true")),
    mutant("bits of what is found in another order", "guard_bodies.h", ("bits |= 1u << i;", "bits |= 0x80000000u >> i;")),
    mutant("what is found written before the row that has it", "guard_bodies.h", (
        "unit.copy_out(found.address + row * found.row_bytes, words().ReinterpretCast<uint8_t>(), 1, found.cols * 4, 0, 0);",
        "")),
    mutant("a mean of all", "guard_bodies.h", ("most(values.cols - words().GetValue(0), 1)", "values.cols")),
    mutant("rows of which what is found is forgotten", "guard_bodies.h", ("counts.GetValue(row * kStep) > 0", "false")),
    mutant("sums of entries that are not looked at", "guard_bodies.h", ("count_and_fill_operand(unit, frame, 0);", "")),
)

SHARDS = shown_in(
    "sharded",
    mutant("shards that are all the first", "shards.h", ("entry % top_k / num_choices()", "0")),
    mutant("groups of ranks that begin too early", "shards.h", ("expert / num_own * (tp_size - 1)", "0")),
    mutant("the choices of another token", "shards.h", ("entry / top_k * num_choices()", "0")),
    mutant("weights of entries instead of choices", "entry_sort.h", (
        "weights_.bits(loaded_, shards_.choice_of(i))", "weights_.bits(loaded_, i)")),
    mutant("the lightest of other choices", "heaviest.h", (
        "shards_.choice_of(entries_.GetValue(i % kAtOnce))", "entries_.GetValue(i % kAtOnce)")),
    mutant("drops counted of other shards", "drop_bodies.h", ("routing.route().tp_size * width", "width")),
)

MUTANTS_OF_ROUTERS = (*ROUTERS, *GUARDS, *SHARDS)
