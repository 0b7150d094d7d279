"""Faults planted in the Ascend kernel: each is a few edits of its source, and what it is in words."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Mutant:
    """`edits`: (what stands in the file exactly once, what a faulty kernel has there: a statement, or an expression)."""

    what: str
    file: str
    edits: tuple[tuple[str, str], ...]


def mutant(what, file, *edits):
    return Mutant(what, file, edits)


def without(what, file, *statements):
    return Mutant(what, file, tuple((s, "") for s in statements))


def flag(event, name):
    """The statements that set a flag and wait for it."""
    hard = f"<AscendC::HardEvent::{event}>({name});"
    return f"AscendC::SetFlag{hard}", f"AscendC::WaitFlag{hard}"


SENT = "AscendC::SetAtomicNone();\n    AscendC::SetFlag<AscendC::HardEvent::MTE3_S>(sent_);"

MUTANTS = (
    # Counters and signals.
    without("a dropped signal", "worker.h", "case Remote::LOCAL: return add(me, event, amount);"),
    mutant("a signal to the wrong rank", "worker.h", (
        "is_local ? rank_.args.rank : goes_back(frame.op) ? segment.source : segment.dest", "rank_.args.rank")),
    mutant("a signal of the wrong amount", "worker.h", ("is_count ? 1 : frame.unit.rows", "1")),
    mutant("counters that share lines", "counters.h", ("static_cast<uint64_t>(index) * kCounterWords", "static_cast<uint64_t>(index)")),
    mutant("the counter of another event", "worker.h", ("event + static_cast<int32_t>(event_offset(kind, frame.op, frame.task))",
                                                        "event")),
    mutant("no barrier between payload and signal", "worker.h", (
        "AscendC::PipeBarrier<PIPE_ALL>();\n    signal(form, frame);", "signal(form, frame);")),
    without("a poll of the cached line", "counters.h", (
        "AscendC::DataCacheCleanAndInvalid<int32_t, AscendC::CacheLine::SINGLE_CACHE_LINE, AscendC::DcciDst::CACHELINE_OUT>(\n"
        "        counter);")),
    without("lines of an earlier kernel in the cache", "kernel.cpp", "hpmoe::forget_cached_lines(address);"),
    mutant("an atomic mode left on", "vector_unit.h", (SENT, SENT.split("\n    ")[1])),
    without("a signal that overwrites its counter", "vector_unit.h", "AscendC::SetAtomicAdd<int32_t>();"),
    mutant("a signal's block written again before it was sent", "vector_unit.h",
           ("AscendC::WaitFlag<AscendC::HardEvent::MTE3_S>(sent_);\n    block.SetValue(0, amount);", "block.SetValue(0, amount);"),
           (SENT, "AscendC::SetAtomicNone();")),
    mutant("a wait that is over too early", "counters.h", ("look(index) - target < 0", "look(index) - target < -1")),
    # Queues and flags of the vector core.
    without("a buffer that is never taken from its queue", "map_body.h", "in = unit.inputs.DeQue<uint8_t>();"),
    without("a buffer that is never freed", "map_body.h", "unit.inputs.FreeTensor(in);"),
    without("a result that is never queued", "vector_unit.h", "outputs.EnQue(result);"),
    mutant("vector work on numbers not yet widened", "reduce_bodies.h", (
        "unit.inputs.FreeTensor(loaded);\n    AscendC::PipeBarrier<PIPE_V>();", "unit.inputs.FreeTensor(loaded);")),
    without("weights read before they are computed", "vector_unit.h", *flag("V_S", "computed_")),
    without("entries read before they have arrived", "vector_unit.h", *flag("MTE2_S", "loaded_")),
    mutant("more than UB holds", "vector_unit.h", ("pipe->InitBuffer(passing, 2, kPassBytes);",
                                                   "pipe->InitBuffer(passing, 2, 2 * kPassBytes);")),
    mutant("a piece longer than its buffer", "vector_unit.h", (
        "pipe->InitBuffer(floats_, kNumFloats * kPieceFloats * sizeof(float));",
        "pipe->InitBuffer(floats_, (kNumFloats - 1) * kPieceFloats * sizeof(float));")),
    # Fractals and flags of the matrix core.
    mutant("a wrong fractal of A", "cube_unit.h", ("is_turned ? i * step + k1 : k1 * step + i", "i * step + k1")),
    mutant("a wrong fractal of B", "cube_unit.h", ("is_turned ? (k1 + i) * step : k1 + i", "k1 + i")),
    mutant("B turned where it must not be", "cube_unit.h", ("params.ifTranspose = !is_turned;", "params.ifTranspose = is_turned;")),
    mutant("rows of L0C that are not whole fractals apart", "cube_unit.h", (
        "params.srcStride = static_cast<uint16_t>(round_up(tile.m, kFractal));", "params.srcStride = static_cast<uint16_t>(tile.m);")),
    mutant("products over what fills up the depth", "cube_unit.h", ("static_cast<uint16_t>(k)",
                                                                   "static_cast<uint16_t>(num_k * kFractal)")),
    mutant("a single row taken for a vector", "cube_unit.h", ("most(tile.m, 2)", "tile.m")),
    without("zeros over the single row", "cube_unit.h", "AscendC::PipeBarrier<PIPE_MTE2>();"),
    without("L1 filled before it is free", "cube_unit.h", "AscendC::WaitFlag<AscendC::HardEvent::MTE1_MTE2>(l1_free_[half]);"),
    without("L1 read before it is filled", "cube_unit.h", *flag("MTE2_MTE1", "l1_full_[half]")),
    without("products before L0 is filled", "cube_unit.h", *flag("MTE1_M", "l0_full_[l0_half_]")),
    without("sums written before they are done", "cube_unit.h", *flag("M_FIX", "sums_full_")),
    without("small products that overtake each other", "cube_unit.h",
            "if ((m / kFractal) * (tile.n / kFractal) < 10) AscendC::PipeBarrier<PIPE_M>();"),
    mutant("both halves of L0A in one place", "cube_unit.h", ("l0_half_ * kBytesL0A / sizeof(T)", "0")),
    mutant("both halves of L1 in one place", "cube_unit.h", ("half * kBytesL1A / sizeof(T)", "0")),
    mutant("the other half-precision type", "cube_unit.h", ("return QuantMode_t::F322BF16;", "return QuantMode_t::F322F16;")),
    # Routing and rows.
    mutant("a wrong gather index", "transfer_body.h", ("entry / top_k", "entry % top_k")),
    mutant("rows put on the wrong rank", "transfer_body.h", ("back ? segment.source : segment.dest", "back ? segment.dest : segment.source")),
    without("entries of the slot before", "routing_tables.h", "part.first_entry += first - part.first_row;"),
    mutant("a core that sorts over another's entries", "prologue.h", ("u < core_", "u + 1 < core_")),
    mutant("rows placed before all ranks have told where theirs begin", "prologue.h", (
        "code = wait(kExchanged, epoch * rank_.image.header().ep_size);", "code = Code::OK;")),
    mutant("a wrong sign in SwiGLU's gradient", "swiglu_bodies.h", ("AscendC::Sub(x, g, x, count);", "AscendC::Add(x, g, x, count);")),
)


def splice(source, edits):
    """Source with every edit in it, chosen at run time: edits are (number of the mutant, old, new)."""
    spots = {}
    for number, old, new in edits:
        assert source.count(old) == 1, f"{old!r} stands {source.count(old)} times"
        spots.setdefault((source.index(old), old), []).append((number, new))
    for (start, old), choices in sorted(spots.items(), reverse=True):
        label, statement = old.split(": ", 1) if old.startswith("case ") else ("", old)
        text = statement
        for number, new in choices:
            if statement.endswith(";"):
                text = f"if (hpmoe_mutant == {number}) {{ {new or ';'} }} else {{ {text} }}"
            else:
                text = f"(hpmoe_mutant == {number} ? {new} : {text})"
        source = source[:start] + (f"{label}: {text} return;" if label else text) + source[start + len(old):]
    return source
