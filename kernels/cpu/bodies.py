"""The capability table of the CPU: core/ has the code that moves rows and signals, bodies.cc what computes."""

from hpmoe.runtime.bodies import Bodies

BODIES = Bodies(
    operations=frozenset("""
        PUT PUT_BACK ALL_TO_ALL ALL_TO_ALL_BACK NOTIFY REPLICATE RETURN_GRADS LAUNCH
        GMM GMM_INT8 GMM_FP8 GMM_WIDENED WGRAD
        REDUCE REDUCE_QUANTIZED REDUCE_AND_FILL RELAY_SUM GATHER KEEP DROP_COUNTS FAN_OUT FAN_IN
        MAP SWIGLU SWIGLU_GRAD ROW_REDUCE ROW_DOT COL_SUM GROUP_REDUCE CUMSUM
        TOP_K TAKE_COLS ADD_COLS PICK PLACE DRAW
        QUANTIZE DEQUANTIZE QUANTIZE_WEIGHT WIDEN_WEIGHT RESCALE
        FILL_OUTSIDE COUNT_OUTSIDE COUNT_AND_FILL
    """.split()),
    functions=frozenset("""
        copy neg exp log sqrt rsqrt sigmoid tanh silu relu erf abs reciprocal square sin cos sign softplus floor round
        add sub mul div pow maximum minimum greater greater_equal less less_equal equal not_equal floor_div remainder select
    """.split()),
    dtypes=("float32", "bfloat16", "float16", "int32", "int64", "uint8"),
)
