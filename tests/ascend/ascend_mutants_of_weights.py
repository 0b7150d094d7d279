"""More of ascend_mutants.py: faults in how weights are rounded to elements of one byte, and dequantized again."""

from ascend_mutants import mutant, shown_in, without

ROUNDED = shown_in(
    "weights",
    without("columns rounded by what comes last in them", "weight_bodies.h",
            "AscendC::Max(largest(), largest(), magnitudes, piece.count());"),
    mutant("the last rows of a tile left out of the largest ones", "weight_bodies.h",
           ("rows / 2 * of.pitch", "(rows / 2 - 1) * of.pitch")),
    mutant("a scale for the first half of a tile's rows alone", "weight_bodies.h",
           ("least(rows, of.deep - rows) * of.pitch", "least(rows, of.deep / 2 - rows) * of.pitch")),
    mutant("no scale less than that of a column with 100", "weight_bodies.h",
           ("AscendC::Duplicate(largest(), 0.0f, tile());", "AscendC::Duplicate(largest(), 100.0f, tile());")),
    mutant("columns of the first matrix", "weight_bodies.h",
           ("static_cast<uint64_t>(row / cols) * codes.cols * cols + col", "static_cast<uint64_t>(col)")),
    mutant("a row of a matrix as if of the next column", "weight_bodies.h",
           ("static_cast<int64_t>(cols) * size", "static_cast<int64_t>(cols + 1) * size")),
    mutant("places of a whole tile for what is left of the depth", "weight_bodies.h",
           ("deep != laid_out", "laid_out == 0")),
    mutant("scales of the first columns of a task", "weight_bodies.h",
           ("scales.address + done * scales.row_bytes", "scales.address")),
    mutant("half of a row dequantized", "quantized_bodies.h",
           ("widen_elements(element, unit.floats(0), loaded, unit.floats(1), piece.count());",
            "widen_elements(element, unit.floats(0), loaded, unit.floats(1), piece.count() / 2);")),
)

TURNED = shown_in(
    "int8 gradients",
    mutant("transposed bytes of the first columns", "cube_2201.h",
           ("part.first_line / kLines * (part.pitch / kLines)", "0 * part.pitch")),
    mutant("transposed bytes of the first depth", "cube_2201.h", ("(part.k1 + k) / kSquare", "k / kSquare")),
    mutant("squares of bytes that overlap", "cube_2201.h", ("params.dstGap = 1;", "params.dstGap = 0;")),
    mutant("half a square of bytes below a column", "fractals.h", ("is_transposed ? round_up(n, kTransposed<T>) : n", "n")),
    mutant("half a square of bytes beside columns", "cube_unit.h", ("sizeof(T) == sizeof(int8_t) && b_is_down", "false")),
)

MUTANTS_OF_WEIGHTS = (*ROUNDED, *TURNED)
