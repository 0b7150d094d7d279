"""The examples, run with small settings: what they print is read and checked, not only that they end."""

import inspect
import math
import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

import hpmoe

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = sorted(path.name for path in EXAMPLES.glob("*.py"))
TOLERANCE = 1e-5  # relative, float32


def load(name):
    """The names of an example, without running its main()."""
    return runpy.run_path(str(EXAMPLES / name), run_name="example")


@pytest.fixture
def printed(monkeypatch, capsys):
    """`printed(name, *flags)` runs an example as a script and returns what it printed."""

    def run(name, *flags):
        monkeypatch.setattr(sys, "argv", [name, *flags])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run


def numbers_after(pattern, text):
    """The numbers that follow `pattern` wherever it matches."""
    return [float(x) for x in re.findall(pattern + r"\s*(-?\d+(?:\.\d+)?(?:e-?\d+)?)", text)]


def test_examples_are_numbered_and_say_how_to_run_them():
    numbers = [int(name[:2]) for name in NAMES]
    assert numbers == sorted(set(numbers)) and all(name[2] == "_" for name in NAMES)
    for name in NAMES:
        assert f"python examples/{name}" in load(name)["__doc__"]


@pytest.mark.parametrize("name", NAMES)
def test_help_says_what_an_example_is_and_runs_nothing(printed, capsys, name):
    with pytest.raises(SystemExit) as end:
        printed(name, "--help")
    usage, said = capsys.readouterr().out.split("\n\n")[:2]
    assert end.value.code == 0 and usage.startswith(f"usage: {name} [-h]")
    assert " ".join(said.split()) == load(name)["__doc__"].splitlines()[0]


def test_an_example_that_resumes_asks_for_a_folder(printed, capsys):
    with pytest.raises(SystemExit):
        printed("19_restart_at_another_size.py", "resume")
    assert "resume takes the folder of the files" in capsys.readouterr().err


def test_quickstart_agrees_with_the_plain_function(printed):
    text = printed("01_quickstart.py")
    assert "assign_queues(cpu, critical_path) | fuse_persistent(cpu)" in text
    differences = numbers_after(r"\n  (?:output|loss|gradient \w+)", text)
    assert len(differences) == 6
    assert max(differences) < TOLERANCE
    assert len(re.findall(r"\n  forward[a-z ]*\s[\d.]+\s+[\d.]+", text)) == 2


def test_every_stage_is_printed_and_any_order_gives_the_same(printed):
    text = printed("02_read_every_stage.py")
    for level in ("dispatch hidden_states", "all_to_all[", "put[slot 0 -> peer 1]", "queue worker.1", "kernel cpu"):
        assert level in text
    assert "# moe_ffn_vjp" in text
    assert "20 of 20 orders gave the same result" in text
    assert numbers_after("from the program's value:", text)[0] < 1e-3


def test_expert_parallel_reuses_plans_and_leaves_padding_at_zero(printed):
    text = printed("03_expert_parallel.py")
    calls = re.findall(r"\n\d +\S.*?\[(.*?)\] +(\S+) +(\d+) +(\d+)", text)
    assert len(calls) == 6
    for received, difference, _, _ in calls:
        assert sum(map(int, received.split(","))) == (64 + 40 + 7) * 2
        assert float(difference) < TOLERANCE
    assert [int(reused) for *_, reused in calls][:4] == [0, 1, 2, 3]
    gradient = re.search(r"\n  hidden_states +(.*)", text).group(1).split()
    assert [float(x) > 0 for x in gradient] == [True, True, False, True]


def test_own_layers_agree_and_a_bad_one_is_refused_at_its_line(printed):
    text = printed("04_your_own_ffn.py")
    outputs, gradients = numbers_after("relative to MindSpore: output", text), numbers_after("gradients", text)
    assert len(outputs) == len(gradients) == 3
    assert max(outputs + gradients) < TOLERANCE
    assert re.search(r"TransformError: .*mixes rows", text)
    assert re.search(r"written at .*04_your_own_ffn\.py:\d+", text)


def test_own_transforms_change_the_ir_and_not_the_numbers(printed):
    text = printed("05_your_own_transform.py")
    assert "mul topk_weights 2.5" in text
    assert numbers_after("reference:", text)[0] < TOLERANCE
    assert "farthest_first       [[2, 1, 3, 0]" in text
    left = {name: numbers_after(rf"\n  {name}", text)[0] for name in ("critical_path", "keep_slots_together")}
    assert left["keep_slots_together"] < left["critical_path"] / 2
    assert "fold_scale | tile_partition(rows=32, cols=64) | retile(opcode=GMM, cols=32)" in text


@pytest.mark.slow
def test_training_agrees_and_learns(printed, tmp_path):
    picture = tmp_path / "losses.png"
    text = printed("06_train_moe_language_model.py", "--steps", "24", "--batch", "3", "--plot", str(picture))
    rows = [[float(x) for x in line.split()] for line in re.findall(r"\n +(\d+ +[\d.]+ +[\d.]+ +\S+)", text)]
    assert rows[0][0] == 0
    assert rows[-1][0] == 23
    assert abs(rows[0][1] - math.log(256)) < 1.5
    assert rows[-1][1] < rows[0][1] - 2
    assert max(abs(fused - plain) for _, fused, plain, _ in rows) < 1e-4
    assert 0 < numbers_after("of the final weights", text)[0] < 1e-3
    same = re.search(r"of the losses (\S+) nats per byte in (\d+) steps .*; in the (\d+) after these \S+, and (\d+) ", text)
    losses, steps, after, elsewhere = map(float, same.groups())
    assert losses < 1e-5 and steps + after == 24 and (after > 0) == (elsewhere > 0)
    assert all(x > 0 for x in numbers_after("(?:fused|op by op)", text.splitlines()[-1].replace(",", "")))
    assert picture.exists() or "* both" in text


def test_capacity_drops_the_rest_and_a_shared_expert_runs_first(printed):
    text = printed("07_capacity_and_shared_expert.py")
    rows = re.findall(r"\n(None|[\d.]+) +(\w+) +(\d+) +\[([\d, ]+)\] +([\d.]+)% +([\d.]+)", text)
    assert [(factor, policy) for factor, policy, *_ in rows] == [
        ("None", "error"), ("2.0", "position"), ("1.25", "position"), ("1.25", "probs"), ("0.5", "probs")]
    row_capacity, share, change = ([float(row[i]) for row in rows] for i in (2, 4, 5))
    assert share[0] == change[0] == 0 < share[1] < share[2] == share[3] < share[4]
    assert row_capacity[0] == row_capacity[1] > row_capacity[2] > row_capacity[4]
    assert change[3] < change[2]  # the smallest weights matter least
    assert "the number of tokens that chose expert 0 is" in text
    dropped, without = re.search(r"entries dropped: (\d+); weights without a gradient: (\d+)", text).groups()
    assert dropped == without != "0"
    assert "begin with the shared expert: 24 of 24" in text


@pytest.mark.slow
def test_lora_trains_adapters_alone(printed):
    text = printed("13_lora_on_experts.py")
    assert "trained: experts.lora_a1, experts.lora_b1, experts.lora_a2, experts.lora_b2, 163,840 of" in text
    assert numbers_after("outputs differ by", text)[0] < 1e-5
    assert 0 < numbers_after("a step with frozen experts takes", text)[0]


@pytest.mark.slow
def test_a_guarded_layer_counts_replaces_and_prints_its_cost(printed):
    text = printed("14_guard_a_layer.py", "--tokens=16", "--repeats=1")
    assert "found {'hidden_states': 1, 'topk_weights': 0, 'output': 0}; finite everywhere: True; tokens that differ: [1]\n" \
        in text
    assert len(numbers_after("guards", text)) == 12 and all(abs(share) < 100 for share in numbers_after("guards", text))


@pytest.mark.slow
def test_a_layer_of_cells_is_trained_balanced_saved_and_frozen(printed):
    text = printed("15_moe_layer_cell.py")
    losses, imbalances = numbers_after("loss", text), numbers_after("busiest expert", text)
    assert losses[0] > 3 * losses[-1] and imbalances[0] > imbalances[-1]
    assert numbers_after("on two ranks:", text)[0] < TOLERANCE
    assert numbers_after("backward kernel:", text)[0] > numbers_after("with frozen experts:", text)[0]


@pytest.mark.slow
def test_a_token_sent_once_gives_the_same_and_pays_between_nodes(printed):
    text = printed("08_send_a_token_once.py")
    differences = re.findall(r"\n  (?:output|d \w+) +(\S+) +(\S+)", text)
    assert len(differences) == 5
    assert max(float(x) for row in differences for x in row) < TOLERANCE
    assert "two runs are the same bit for bit: True" in text
    assert numbers_after("a token are on", text)[0] < 4
    rows = re.findall(r"\n  (\d) +([\d.]+) +([\d.]+)   for each (\w+)", text)
    assert [(nodes, chosen) for nodes, *_, chosen in rows] == [
        (nodes, "expert" if float(each) < float(once) else "rank")
        for nodes, (_, each, once, _) in zip("821", rows, strict=True)]
    assert float(rows[0][1]) > float(rows[0][2])
    assert float(rows[2][1]) < float(rows[2][2])


def test_a_router_inside_is_two_launches_and_one_back(printed):
    text = printed("09_router_inside.py")
    assert "launches: layer_stage_0, layer_stage_1, layer_vjp" in text
    first, last = text[text.index("# layer_stage_0"):text.index("launches:")].split("# layer_stage_1")
    assert "top_k" in first and "dispatch" not in first and "top_k" not in last and "swiglu" in last
    differences = re.findall(r"\n  (?:loss|d \w+) +(\S+)", text)
    assert len(differences) == 7
    assert max(map(float, differences)) < TOLERANCE


@pytest.mark.slow
def test_a_replay_in_recomputed_microbatches_is_one_batch(printed):
    text = printed("20_router_replay.py")
    assert 0 < numbers_after("choices of other experts:", text)[0] < 100
    assert "entries that experts received: [2048, 2048]" in text
    assert numbers_after("from one, relative:", text)[0] < TOLERANCE


GPT_LOSSES = re.compile(r"^ +(\d+) +([\d.]+)(?: +([\d.]+))? +\d+ s left", re.MULTILINE)


@pytest.mark.slow
def test_a_gpt_resumes_bitwise_and_trains_as_in_plain_mindspore(printed, tmp_path):
    saved, picture = str(tmp_path / "gpt.ckpt"), tmp_path / "losses.png"
    flags = ["--steps", "4", "--batch", "1", "--save_every", "3"]
    whole = printed("10_train_gpt_moe.py", *flags, "--checkpoint", saved, "--plot", str(picture))
    rest = printed("10_train_gpt_moe.py", *flags, "--resume", saved, "--alone")
    losses = [list(map(float, row)) for row in GPT_LOSSES.findall(whole)]
    assert [step for step, *_ in losses] == [0, 1, 2, 3]
    assert abs(losses[0][1] - math.log(256)) < 0.5 and losses[-1][1] < losses[0][1] - 0.1
    assert max(abs(fused - plain) for _, fused, plain in losses) < 2e-5
    assert 0 < numbers_after("largest difference of the losses", whole)[0] < 1e-5
    ends = [re.search(r"fused: (loss \S+, state [0-9a-f]{16}),", text)[1] for text in (whole, rest)]
    assert ends[0] == ends[1] and len(GPT_LOSSES.findall(rest)) == 1
    assert [line.split()[1] for line in rest.splitlines() if re.match(r"layer \d", line)] == ["0", "1", "2", "3"]
    assert picture.stat().st_size > 0


@pytest.mark.slow
def test_a_gpt_learns_in_bfloat16(printed):
    text = printed("10_train_gpt_moe.py", "--steps", "2", "--batch", "1", "--dtype", "bfloat16", "--alone")
    first, last = (float(row[1]) for row in GPT_LOSSES.findall(text))
    assert abs(first - math.log(256)) < 0.5 and last < first
    assert "plain" not in text


def test_a_gpt_is_not_drawn_without_matplotlib(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    load("10_train_gpt_moe.py")["plot"]({}, tmp_path / "none.png")
    assert "matplotlib is not installed" in capsys.readouterr().out and list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_drifting_loads_are_balanced_without_changing_training(printed):
    text = printed("16_balance_drifting_loads.py", "--steps", "4", "--tokens", "64", "--hidden", "32",
                   "--simulated_ranks", "4", "--simulated_tokens", "1024")
    assert "fixed and relocated are the same bit for bit: True" in text
    assert numbers_after("with copies they differ by", text)[0] < 1e-6
    loads = re.findall(r"copies, load of the fullest rank ([\d.]+) -> ([\d.]+) of the mean", text)
    assert len(loads) >= 4 and all(float(after) < float(before) for before, after in loads)
    assert text.count("seen before, nothing is planned") >= 1
    shared, simulated = text.split("2 ranks that share all cores")[1].split("simulated: 4 ranks")
    assert len(re.findall(r"ms  [\d.]+x", shared)) == 9
    gains = [[float(x) for x in re.findall(r"ms  ([\d.]+)x", line)] for line in simulated.splitlines() if "ms  " in line]
    assert [len(row) for row in gains] == [3, 3, 3] and all(fixed == 1 < copied for fixed, _, copied in (gains[0], gains[2]))
    workers = {line[2:20].strip(): list(map(float, line[20:].split())) for line in simulated.splitlines()[-3:]}
    for each in workers.values():
        assert len(each) == 16 and min(each[:3]) > 2 * max(each[3:])
    assert sum(workers["relocated, copies"]) > sum(workers["fixed"])


@pytest.mark.parametrize("path", [None, "none.png"])
def test_training_draws_text_without_matplotlib_or_a_plot_flag(monkeypatch, capsys, tmp_path, path):
    monkeypatch.chdir(tmp_path)
    if path is not None:
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    falling = [5.0, 4.0, 3.0]
    load("06_train_moe_language_model.py")["plot"]({"plain": falling, "fused": [5.0, 4.0, 1.0]}, path)
    lines = capsys.readouterr().out.strip("\n").splitlines()
    assert lines[0] == "  5.00 |*"
    assert lines[11] == "  1.00 |  f"
    assert sum("p" in line for line in lines[:12]) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def transforms():
    return load("05_your_own_transform.py")


@pytest.mark.parametrize("name", ["fold_scale", "retile", "farthest_first", "keep_slots_together"])
def test_own_transforms_are_short(transforms, name):
    function = inspect.unwrap(transforms[name])
    assert len(inspect.getsource(function).splitlines()) < 20


def scaled_by(scale):
    """A MoE layer times `scale(hidden_states)`, and shapes to lower it with."""
    def layer(hidden_states, topk_ids, topk_weights, gate_up_weight, down_weight):
        out = hpmoe.moe_ffn(hidden_states, topk_ids, topk_weights, gate_up_weight, down_weight)
        return scale(hidden_states, out)
    shapes = [(6, 4), (6, 2), (6, 2), (3, 4, 10), (3, 5, 4)]
    return layer, [hpmoe.ShapeDtypeStruct(shape, "int32" if i == 1 else "float32") for i, shape in enumerate(shapes)]


@pytest.mark.parametrize("scale, folded", [
    (lambda x, out: out * 3.0, True),
    (lambda x, out: 3.0 * out, True),
    (lambda x, out: 3.0 * out * 2.0, True),
    (lambda x, out: x.sum(-1, keepdims=True) * out, True),
    (lambda x, out: x * out, False),
    (lambda x, out: out * 3.0 + out, False),
    (lambda x, out: (out * 3.0, out), False),
    (lambda x, out: out * 3.0 + (out * 3.0) * 2.0, False),
], ids=["right", "left", "twice", "per token", "per element", "read again", "returned too", "read twice"])
def test_fold_scale_folds_what_is_one_number_a_token(transforms, scale, folded):
    layer, avals = scaled_by(scale)
    before, after = hpmoe.trace(layer, *avals), transforms["fold_scale"](layer).lower(*avals)
    names = [e.primitive.name for e in after.equations]
    assert names.count("combine") == 1
    assert ("mul" not in names[names.index("combine"):]) == folded
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(a.shape).astype(np.float32) for a in avals]
    inputs[1] = np.argsort(rng.random((6, 3)), axis=1)[:, :2].astype(np.int32)
    for a, b in zip(hpmoe.interpret(before, [inputs])[0], hpmoe.interpret(after, [inputs])[0], strict=True):
        np.testing.assert_allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE)


def test_own_chain_has_the_gradients_of_the_plain_function(transforms):
    args = transforms["make_arguments"]()
    plain = transforms["output_and_grads"](transforms["scaled_moe"], args)
    mine = transforms["output_and_grads"](transforms["my_chain"](transforms["scaled_moe"]), args)
    assert len(plain) == 5
    for a, b in zip(plain, mine, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=TOLERANCE * np.abs(a).max())


def test_retile_narrows_the_named_operations_only(transforms):
    args, on_ranks = transforms["make_arguments"](), transforms["on_ranks"]
    tiled = hpmoe.tile_partition(transforms["scaled_moe"], rows=32, cols=64)
    before, after = (on_ranks(f).lower(*args) for f in (tiled, transforms["retile"](tiled, opcode="GMM", cols=16)))
    for op in after.ops:
        assert op.tile_cols == 16 if op.opcode == "GMM" else op.tile_cols in [o.tile_cols for o in before.ops]
    assert after.num_tasks > before.num_tasks


@pytest.mark.parametrize("ep_size", [1, 2, 3, 4, 8])
def test_farthest_first_names_every_rank_once_and_itself_last(transforms, ep_size):
    for rank in range(ep_size):
        order = transforms["farthest_first"](rank, ep_size)
        assert sorted(order) == list(range(ep_size))
        assert order[-1] == rank
        assert (order[0] - rank) % ep_size in (ep_size // 2, (ep_size + 1) // 2)


@pytest.mark.slow
def test_two_microbatches_in_one_launch_agree_and_are_faster(printed):
    text = printed("17_two_microbatches.py")
    assert 0 < numbers_after("differ from the plain function by at most", text)[0] < TOLERANCE
    apart, together = (numbers_after(what, text)[0] for what in ("one after the other", "both microbatches in one launch"))
    assert together < apart and numbers_after("all tokens in one call of the layer", text)[0] < apart


@pytest.mark.slow
def test_quantised_rows_err_by_their_formats_and_save_bytes(printed):
    """Errors of bfloat16 are of its rounding, those of eight bits larger; fewer bytes take less time."""
    text = printed("18_quantised_rows.py")
    w8, fp8, w8a8 = "bfloat16, int8 weights", "bfloat16, fp8 weights", "int8, int8 weights (W8A8)"

    def row(name, text):
        return [float(x) for x in re.search(rf"^  {re.escape(name)}  +(.*)$", text, re.M).group(1).split()]
    rows = {name: row(name, text) for name in ("bfloat16 rows", "int8", "float8_e4m3fn", "mxfp8", w8, fp8, w8a8)}
    exact = rows.pop("bfloat16 rows")
    assert max(exact[:5]) < 2.0 ** -7 and all(0.005 < error < 0.1 for row in rows.values() for error in row[:5])
    rows["bfloat16 rows"] = exact
    assert rows[w8][5:] == rows[fp8][5:] == exact[5:] and rows[w8a8][5:] == rows["int8"][5:]
    out, back = rows["bfloat16 rows"][5:]
    assert rows["int8"][5] == rows["float8_e4m3fn"][5] < rows["mxfp8"][5] < out and rows["int8"][6] == back
    plain, *given = (row(name, text.split("simulated")[2])
                     for name in ("bfloat16", "int8 weights (W8)", "int8, rows sent so as well"))
    assert all(size == plain[0] / 2 for size, _, _ in given)
    (_, few, many), (_, few_sent, many_sent) = given  # vector units widen weights before they are multiplied
    assert few_sent < plain[1] < few and many_sent < plain[2] < many
    simulated = text.split("simulated")[1]
    plain, short = (numbers_after(rf"  {name} +\d+\.\d", simulated)[0] for name in ("bfloat16 rows", "int8"))
    assert short < plain


def test_process_ranks_are_one_rank_without_a_launcher(printed):
    text = printed("11_ranks_are_processes.py")
    losses = numbers_after("loss", text)
    assert len(losses) == 4 and losses == sorted(losses, reverse=True) and text.endswith("1 rank\n")


def test_a_run_goes_on_from_its_files(printed):
    text = printed("19_restart_at_another_size.py")
    first, went_on, resumed = re.findall(r"steps.*: ([\d. ]+)$", text, re.M)
    assert "lost experts: none" in text and len(first.split()) == 5 and went_on == resumed and first != went_on
