"""Faults in what a 950 has bodies for and an A2 or A3 has not: rows and weights of float8_e4m3fn, and of mxfp8."""

from ascend_mutants import mutant, shown_in, without

ROWS = shown_in(
    "fp8 rows",
    mutant("fp8 divided to the largest int8", "elements.h", ("element == Element::INT8 ? 127.0f : 448.0f", "127.0f")),
    without("fp8 read as int8", "elements.h", "if (element == Element::E4M3) return widen_fp8(to, from, count);"),
    without("fp8 written as int8", "elements.h", "if (element == Element::E4M3) return narrow_fp8(to, x, count);"),
    mutant("no zeros where a scale is none", "quantized_bodies.h", ("scale > 0.0f", "true")),
    mutant("a row that is not finite scaled as if it were", "quantized_bodies.h", (
        "in_order::Add(scale, scale, sound, 1);", "in_order::Muls(scale, scale, 1.0f, 1);")),
)

BLOCKS = shown_in(
    "mxfp8 rows",
    mutant("scales where elements begin", "block_scales.h", ("rows.address + place", "rows.address")),
    mutant("a scale for each 16 elements", "block_scales.h", (
        "in_order::ShiftRight(places, places, 5, piece.count());",
        "in_order::ShiftRight(places, places, 4, piece.count());")),
    mutant("the scales of a piece's first row", "block_scales.h", ("r * pitch * kBytes", "0 * r")),
    mutant("blocks counted from where a piece begins", "block_scales.h", (
        "AscendC::CreateVecIndex(places[r * piece.pitch], piece.col % kScaledBlock, piece.pitch);",
        "AscendC::CreateVecIndex(places[r * piece.pitch], 0, piece.pitch);")),
    mutant("scales counted without the block that a piece begins in", "block_scales.h", (
        "(piece.col + piece.num_cols - 1) / kScaledBlock", "first + (piece.num_cols - 1) / kScaledBlock")),
    without("no least scale", "block_scales.h", "in_order::Maxs(bits, bits, 1 << (kExponentBits - 1), of.count());"),
    without("the last block filled up with what was there", "block_scales.h",
            "in_order::Duplicate(unit.floats(0), 0.0f, kMostScaled);"),
    mutant("scales of half the size", "block_scales.h", ("in_order::Adds(bits, bits, -kElementExponent, blocks);",
                                                         "in_order::Adds(bits, bits, -kElementExponent - 1, blocks);")),
    without("exponents below the least", "block_scales.h", "in_order::Maxs(bits, bits, kElementExponent, blocks);"),
    without("numbers past the largest", "block_scales.h", "in_order::Mins(x, x, largest_of(Element::E4M3), count);"),
    without("numbers past the least", "block_scales.h", "in_order::Maxs(x, x, -largest_of(Element::E4M3), count);"),
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
        "in_order::Select(x, unit.mask(), x, transposed, AscendC::SELMODE::VSEL_TENSOR_TENSOR_MODE, count);")),
    *shown_in(
        "mxfp8 weights",
        without("blocks of columns filled up with what was there", "weight_bodies.h",
                "in_order::Duplicate(unit.floats(1), 0.0f, kMostScaled);"),
        mutant("the scales of a tile's first blocks", "weight_bodies.h", ("piece.row / kScaledBlock", "0")),
        mutant("the scales of a tile's first column", "weight_bodies.h", (
            "AscendC::CreateVecIndex(places[col * kBlockBytes], col * per_column, kBlockBytes);",
            "AscendC::CreateVecIndex(places[col * kBlockBytes], 0, kBlockBytes);")),
        without("a weight dequantized without the scales of its blocks", "quantized_bodies.h",
                "if (has_scales) AscendC::Mul(unit.floats(0), unit.floats(0), unit.floats(4)[kMostScaled], piece.count());"),
    ),
)

PRODUCTS = (
    *shown_in(
        "fp8 by fp8",
        mutant("fp8 multiplied as int8", "cube_unit.h", ("p.element == Element::E4M3", "p.k < 0")),
        without("the scale of a row multiplied, too", "matmul_bodies.h",
                "product.k = static_cast<int32_t>(unpacked_cols(format, product.k));"),
        mutant("sums of fp8 read as integers", "quantized_bodies.h", (
            "frame.rows(1).dtype == static_cast<int32_t>(Dtype::INT32)", "true"))),
    *shown_in(
        "mxfp8 by mxfp8",
        mutant("a product without scales", "cube_unit.h", (
            "multiply_fp8(out, a, b, params, p.scales.a != 0);", "multiply_fp8(out, a, b, params, false);")),
        mutant("scales of the first step", "cube_unit.h", ("step.k0 / kMxBlock", "0")),
        mutant("scales of the first rows", "cube_unit.h", (
            "element<int8_t>(p.scales.a, step.m0, block, p.scales.ld_a)",
            "element<int8_t>(p.scales.a, 0, block, p.scales.ld_a)")),
        mutant("scales of the first columns", "cube_unit.h", (
            "element<int8_t>(p.scales.b, step.n0, block, p.scales.ld_b)",
            "element<int8_t>(p.scales.b, 0, block, p.scales.ld_b)")),
        mutant("scales of the first part of a step", "cube_3510.h", ("part.k1 / kMxPair", "0")),
        mutant("scales of the first half of columns", "cube_3510.h", (
            "params.xStartPosition = static_cast<uint16_t>(part.first_line);", "params.xStartPosition = 0;")),
        mutant("scales as deep as a part", "cube_3510.h", (
            "params.srcStride = static_cast<uint16_t>(deep / kMxPair);",
            "params.srcStride = static_cast<uint16_t>(part.k / kMxPair);")),
        mutant("scales apart in L0A_MX", "cube_3510.h", (
            "params.dstStride = static_cast<uint16_t>(part.k / kMxPair);",
            "params.dstStride = static_cast<uint16_t>(deep / kMxPair);")),
        mutant("half the scales of a part", "cube_3510.h", (
            "params.yStep = static_cast<uint8_t>(part.k / kMxPair);",
            "params.yStep = static_cast<uint8_t>((part.k / kMxPair + 1) / 2);")),
        mutant("the scales of a row's elements", "matmul_bodies.h", ("product.a + product.k", "product.a")),
        mutant("the scales of both steps in one place", "cube_unit.h", ("i * kBytesOfScales / 2", "0 * i")),
        mutant("the scales of a weight's first columns", "matmul_bodies.h", (
            "frame.first_row(matrix, frame.buffer(matrix)) + frame.first_col(matrix)",
            "frame.first_row(matrix, frame.buffer(matrix))"))),
    *shown_in(
        "gradients of fp8",
        mutant("half a square of bytes transposed", "cube_3510.h", ("fractals_down<T>(part.k, true)", "fractals(part.k)")),
        mutant("transposed bytes of the first columns", "cube_3510.h", ("part.first_line * kFractal", "0 * kFractal")),
        mutant("transposed bytes of half the columns", "cube_3510.h", (
            "part.lines * kFractal / kFractalCols<T>", "part.lines * kFractal / kFractalCols<T> / 2"))),
    *shown_in("copies of mxfp8", mutant("a copy with the scales of an expert of its own", "matmul_bodies.h", (
        "matrix + 1", "3"))),
)

MUTANTS_OF_FP8 = (*ROWS, *BLOCKS, *WEIGHTS, *PRODUCTS)
