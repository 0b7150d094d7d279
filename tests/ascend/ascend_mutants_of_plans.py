"""Faults planted in how a launch of the Ascend kernel takes one of several plans."""

from ascend_mutants import mutant, shown_in, without

MUTANTS_OF_PLANS = shown_in(
    "plans",
    mutant("a rank that takes another plan", "plan_choice.h", (
        "rows > rank_.image.header().most_received", "rows + rank_.me() % 2 * 1000 > rank_.image.header().most_received")),
    mutant("a core that takes another plan", "plan_choice.h", (
        "rows > rank_.image.header().most_received", "on_.core % 2 == 0 && rows > rank_.image.header().most_received")),
    mutant("a plan chosen by this rank's rows", "plan_choice.h", (
        "found = most(found, end - before);", "if (dest == rank_.me()) found = end - before;")),
    mutant("a plan chosen by the counts of one rank", "plan_choice.h", (
        "least(at_once, ep_size - first)", "1")),
    without("buffers of the plan before", "plan_choice.h",
            "rank.args.buffers += static_cast<uint64_t>(place.first_word) * sizeof(uint64_t);"),
    mutant("a plan that an AIC reads before it is chosen", "plan_choice.h", (
        "code_of(counters.wait(counters.prologue(kChosen), rank.args.epoch))", "Code::OK")),
    mutant("targets read before the plan is chosen", "prologue.h", ("if (!chooses) targets.read_first();",
                                                                    "targets.read_first();"),
           ("PlanChoice(on_, rank_).take();\n      targets.read_first();",
            "PlanChoice(on_, rank_).take();")),
)
