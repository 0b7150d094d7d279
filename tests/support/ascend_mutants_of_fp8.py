"""Faults in what a 950 has bodies for and an A2 or A3 has not: rows and weights of float8_e4m3fn, and of mxfp8."""

from ascend_mutants import mutant, shown_in, without

ROWS = shown_in(
    "fp8 rows",
    mutant("fp8 divided to the largest int8", "elements.h", ("element == Element::INT8 ? 127.0f : 448.0f", "127.0f")),
    without("fp8 read as int8", "elements.h", "if (element == Element::E4M3) return widen_fp8(to, from, count);"),
    without("fp8 written as int8", "elements.h", "if (element == Element::E4M3) return narrow_fp8(to, x, count);"),
    mutant("no zeros where a scale is none", "quantized_bodies.h", ("scale > 0.0f", "true")),
    mutant("a row that is not finite scaled as if it were", "quantized_bodies.h", (
        "AscendC::Add(scale, scale, sound, 1);", "AscendC::Muls(scale, scale, 1.0f, 1);")),
)

BLOCKS = shown_in(
    "mxfp8 rows",
    mutant("scales where elements begin", "block_scales.h", ("rows.address + place", "rows.address")),
    mutant("a scale for each 16 elements", "block_scales.h", (
        "AscendC::ShiftRight(places, places, 5, piece.count());", "AscendC::ShiftRight(places, places, 4, piece.count());")),
    mutant("the scales of a piece's first row", "block_scales.h", ("r * pitch * kBytes", "0 * r")),
    mutant("blocks counted from where a piece begins", "block_scales.h", (
        "AscendC::CreateVecIndex(places[r * piece.pitch], piece.col % kScaledBlock, piece.pitch);",
        "AscendC::CreateVecIndex(places[r * piece.pitch], 0, piece.pitch);")),
    mutant("scales counted without the block that a piece begins in", "block_scales.h", (
        "(piece.col + piece.num_cols - 1) / kScaledBlock", "first + (piece.num_cols - 1) / kScaledBlock")),
    without("no least scale", "block_scales.h", "AscendC::Maxs(bits, bits, 1 << (kExponentBits - 1), of.count());"),
    without("the last block filled up with what was there", "block_scales.h",
            "AscendC::Duplicate(unit.floats(0), 0.0f, kMostScaled);"),
    mutant("scales of half the size", "block_scales.h", ("AscendC::Adds(bits, bits, -kElementExponent, blocks);",
                                                         "AscendC::Adds(bits, bits, -kElementExponent - 1, blocks);")),
    without("exponents below the least", "block_scales.h", "AscendC::Maxs(bits, bits, kElementExponent, blocks);"),
    without("numbers past the largest", "block_scales.h", "AscendC::Mins(x, x, largest_of(Element::E4M3), count);"),
    without("numbers past the least", "block_scales.h", "AscendC::Maxs(x, x, -largest_of(Element::E4M3), count);"),
    mutant("the magnitudes of half a block", "block_scales.h", (
        "AscendC::WholeReduceMax(largest, magnitudes, kScaledBlock, blocks, 1, 1, kScaledBlock / 8,\n"
        "                            AscendC::ReduceOrder::ORDER_ONLY_VALUE);",
        "AscendC::WholeReduceMax(largest, magnitudes, kScaledBlock / 2, blocks, 1, 1, 4, "
        "AscendC::ReduceOrder::ORDER_ONLY_VALUE);")),
    without("a block that is not finite scaled as if it were", "block_scales.h",
            "AscendC::Add(factors, factors, unsound, blocks);"),
)

WEIGHTS = (
    *shown_in("fp8 weights", without(
        "no zeros in columns of zeros", "weight_bodies.h",
        "AscendC::Select(x, unit.mask(), x, turned, AscendC::SELMODE::VSEL_TENSOR_TENSOR_MODE, count);")),
    *shown_in(
        "mxfp8 weights",
        without("blocks of columns filled up with what was there", "weight_bodies.h",
                "AscendC::Duplicate(unit.floats(1), 0.0f, kMostScaled);"),
        mutant("the scales of a tile's first blocks", "weight_bodies.h", ("piece.row / kScaledBlock", "0")),
        mutant("the scales of a tile's first column", "weight_bodies.h", (
            "AscendC::CreateVecIndex(places[col * kBlockBytes], col * per_column, kBlockBytes);",
            "AscendC::CreateVecIndex(places[col * kBlockBytes], 0, kBlockBytes);")),
        without("a weight widened without the scales of its blocks", "quantized_bodies.h",
                "if (has_scales) AscendC::Mul(unit.floats(0), unit.floats(0), unit.floats(4)[kMostScaled], piece.count());"),
    ),
)

MUTANTS_OF_FP8 = (*ROWS, *BLOCKS, *WEIGHTS)
