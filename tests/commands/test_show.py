"""`hpmoe show`: the text of every stage."""

import json
import re

from command_line import run

from hpmoe.commands import show


def test_show_in_half_precision(capsys):
    status, out, _ = run(capsys, "show", "--dtype=bfloat16", "--stage=program")
    assert status == 0
    assert "{ lambda hidden_states:bf16[8,16] topk_ids:i32[8,2] topk_weights:f32[8,2] gate_up_weight:bf16" in out


def test_show_with_a_limit(capsys):
    status, out, _ = run(capsys, "show", "--rank_capacity_factor=1.5", "--stage=tiles", "--direction=forward")
    assert status == 0 and "# moe_ffn | limit_rows(rank_capacity_factor=1.5) | tile_partition" in out


def test_show_prints_every_stage_of_both_directions(capsys):
    status, out, _ = run(capsys, "show")
    headings = re.findall(r"^== (\w+), (\w+): ", out, re.MULTILINE)
    assert status == 0
    assert headings == [(d, s) for d in ("forward", "backward") for s in show.STAGES]
    for text in ("{ lambda hidden_states:f32[8,16]", "all_to_all", "put[slot 0 -> peer 0]", "queue worker.0",
                 "kernel cpu"):
        assert text in out


def test_show_json_has_the_text_and_the_numbers(capsys):
    status, out, _ = run(capsys, "show", "--json", "--direction=forward", "--stage=queues", "--tile_rows=4",
                         "--machine=ascend_a3", "--order=sequential", "--signal=peer", "--policy=round_robin")
    (stage,) = json.loads(out)["stages"]
    assert status == 0 and (stage["direction"], stage["stage"]) == ("forward", "queues")
    assert f"tasks={stage['tasks']} events={stage['events']} " in stage["text"]
    assert len(stage["queues"]) == 72 and sum(stage["queues"].values()) == stage["tasks"]
    for option in ("rows=4", "order=sequential, signal=peer", "ascend_a3, round_robin"):
        assert option in stage["text"].splitlines()[0]


def test_show_says_that_ascend_has_no_kernel(capsys):
    status, out, _ = run(capsys, "show", "--machine=ascend_a2", "--direction=backward")
    assert status == 0
    assert out.endswith("== backward, kernel: packed for one launch\n"
                        "none for ascend_a2: only what is packed for the cpu is shown\n")


def test_show_of_real_sizes_needs_no_memory(capsys):
    status, out, _ = run(capsys, "show", "--ep=32", "--tokens=4096", "--hidden=7168", "--intermediate=2048",
                         "--experts=256", "--top_k=8", "--stage=program")
    assert status == 0 and "gate_up_weight:f32[8,7168,4096]" in out


def test_show_takes_what_changes_the_rows_that_are_sent(capsys):
    options = ["--scheme=deduplicated", "--quantize=int8", "--prefetch", "--replicas=1", "--row_capacity=received",
               "--imbalance=2"]
    status, out, _ = run(capsys, "show", *options, "--machine=ascend_a3", "--stage=overlap", "--direction=forward")
    steps = out.splitlines()[1]
    assert status == 0
    for step in ("replicate_experts(", "send_rows(scheme=deduplicated)", "quantize_rows(dtype=int8", "prefetch_weights"):
        assert step in steps


def test_show_has_room_for_the_rows_that_a_routing_brings(capsys):
    """With 8 tokens a rank and 2 experts each, at most all 32 entries, and 16 if balanced."""
    for row_capacity, rows in (("all", 32), ("received", 16)):
        status, out, _ = run(capsys, "show", f"--row_capacity={row_capacity}", "--stage=tiles", "--direction=forward")
        assert status == 0 and f"at most {rows} received rows" in out
