"""Tables of kernels as a profiler writes them, of a machine whose constants are known."""

import csv

import hpmoe
from hpmoe.calibration import kernel_flows
from hpmoe.routing.workload import sampled_ids

HEADER = ("Device_id,Model ID,Task ID,Stream ID,Op Name,OP Type,OP State,Task Type,Task Start Time(us),Task Duration(us),"
          "Task Wait Time(us),Block Dim,Mix Block Dim,HF32 Eligible,Input Shapes,Input Data Types,Input Formats,"
          "Output Shapes,Output Data Types,Output Formats,Context ID,aicore_time(us),aic_total_cycles,aic_mac_time(us),"
          "aic_mac_ratio,aic_mte2_ratio,aiv_time(us),aiv_vec_time(us),cube_utilization(%)").split(",")
FIRST_NS, GAP_US, BEGIN_END_US, TIMES = 1717575960208020758, 6.0, 3.0, 3
NUM_EXPERTS, EP = 64, 8


def shown(*shapes):
    """Returns shapes as msprof writes them in a cell, in quotes."""
    return f'"{";".join(",".join(map(str, shape)) for shape in shapes)}"'


def kernel(kind, unit, us, inputs, outputs, dtypes=None, blocks=24, vectors=0, clock=0.0):
    """One line; of a clock the cycles too."""
    dtypes = dtypes or ["DT_BF16"] * len(inputs)
    return {"OP Type": kind, "Op Name": f"{kind}_1", "Task Type": unit, "us": us, "Block Dim": blocks,
            "Mix Block Dim": vectors, "Input Shapes": shown(*inputs), "Input Data Types": ";".join(dtypes),
            "Output Shapes": shown(*outputs),
            "Output Data Types": ";".join(["DT_BF16"] * len(outputs)),
            **({"aicore_time(us)": us, "aic_total_cycles": round(us * blocks * clock)} if clock else {})}


def product(machine, rows, inner, cols, clock=0.0):
    us = alone(machine, kernel_flows.product_flow(machine, rows, inner, cols))
    return kernel("MatMulV3", "AI_CORE", us, [(rows, inner), (cols, inner)], [(rows, cols)], clock=clock)


def experts(machine, rows, inner, cols, count):
    line = hpmoe.simulate(kernel_flows.experts_flow(machine, count, rows, inner, cols, "bfloat16"))
    us = kernel_flows.kernel_us(line)["grouped_matmul"] + BEGIN_END_US
    return kernel("GroupedMatmul", "MIX_AIC", us, [(rows, inner), (count, inner, cols), (), (), (count,)], [(rows, cols)],
                  ["DT_BF16", "DT_BF16", "", "", "INT64"], vectors=48)


def elementwise(machine, kind, function, shape, out, fresh=False):
    """Returns an elementwise kernel; another kernel has just made its array if `fresh`."""
    count = 1 if kind == "SwiGlu" else 2
    flow = kernel_flows.function_flow(machine, lambda x, *other: function(x * 1.0 if fresh else x, *other),
                                      (shape,) * count, "bfloat16")
    us = list(kernel_flows.kernel_us(hpmoe.simulate(flow)).values())[-1] + BEGIN_END_US
    return kernel(kind, "AI_VECTOR_CORE", us, [shape] * count, [out], blocks=48)


def exchange(machine, leg, tokens, hidden, top_k):
    ids = sampled_ids(EP, tokens, top_k, NUM_EXPERTS, is_zipf=False, seed=0)
    flow = kernel_flows.exchange_flow(machine, leg, ids, NUM_EXPERTS, hidden)
    us = hpmoe.simulate(flow, routing=ids).span + BEGIN_END_US
    rows, of_ids, counts = (tokens, hidden), (tokens, top_k), (NUM_EXPERTS,)
    laid_out = (tokens * EP * top_k, hidden)
    if leg == "dispatch":
        return kernel("MoeDistributeDispatchV2", "MIX_AIV", us, [rows, of_ids],
                      [laid_out, (), (tokens * top_k,), (NUM_EXPERTS // EP,), counts], ["DT_BF16", "INT32"], 0, 48)
    return kernel("MoeDistributeCombineV2", "MIX_AIV", us, [laid_out, of_ids, (tokens * top_k,), counts, of_ids], [rows],
                  ["DT_BF16", "INT32", "INT32", "INT32", "FLOAT"], 0, 48)


def alone(machine, flow):
    return hpmoe.simulate(flow).span - machine.host.launch_us + BEGIN_END_US


def written(path, kernels, times=TIMES, gap_us=GAP_US):
    """Writes the file, with each kernel `times` times in turn."""
    with open(path, "w", encoding="utf-8-sig", newline="") as file:
        table = csv.DictWriter(file, HEADER, restval="N/A")
        table.writeheader()
        start = 0.0
        for _ in range(times):
            for one in kernels:
                us, ns = divmod(FIRST_NS + round(start * 1e3), 1000)
                row = {**one, "Device_id": 0, "Stream ID": 7, "Task Duration(us)": f"{one['us']:.3f}",
                       "Task Start Time(us)": f"{us}.{ns:03d}\t"}
                del row["us"]
                table.writerow(row)
                start += one["us"] + gap_us
    return path
