"""Measures compiling, diffing and packing of flow rules of a large site, against os-ken's messages.

``python -m benchmarks.reconfig_flows [ENDPOINTS]`` (default 65,536) prints one JSON document:
a full compilation, an incremental compilation after a regroup of two jobs of 16, the diff of that
change, and packing every rule as an OpenFlow message including its transaction id. The rival packs
the rules of a sample of aggregators with os-ken's message objects, in the same run; the bytes are
compared. Times are CPU times, which do not depend on the machine's load.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from dataclasses import replace

from benchmarks.reconfig_sim import jobs_of, make_site
from controller.devices.aggregators import AttachPoint, Forwarding
from controller.devices.openflow.rules import compiler as flows
from controller.devices.openflow.rules.blocks import RuleSet
from controller.devices.openflow.rules.program import FlowProgram, diff
from controller.devices.openflow.rules.rule import FlowRule
from controller.devices.openflow.session import messages as ofmsgs
from controller.transaction.circuits import Cabling, rewire

SAMPLE = 100
"""Number of aggregators whose rules the rival packs."""


def messages(program: FlowProgram) -> Iterator[ofmsgs.MessageBatch]:
    """Yield the messages that add all rules of a program to an empty table."""
    empty = FlowProgram(program.aggregator, 0, RuleSet(()))
    return ofmsgs.batches(replace(diff(empty, program), add_groups=()))


def main() -> None:
    """Print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("endpoints", nargs="?", type=int, default=65_536)
    options = parser.parse_args()
    site = make_site(options.endpoints)
    jobs = {name: tuple(ends) for name, ends in jobs_of(site).items()}
    attachments: dict[str, AttachPoint] = {}
    cabling = Cabling(site)
    taken: set[AttachPoint] = set()
    for name, home in site.homes.items():
        attachments[name] = cabling.first_free(name, home, taken).point
        taken.add(attachments[name])
    compiler = flows.Compiler(site)
    forwarding = Forwarding(1, attachments, jobs, uplinks=site.uplinks)
    began = time.process_time()
    first = compiler.next(flows.Compiled(), forwarding)
    whole_s = time.process_time() - began

    # Two jobs are scattered over the same two aggregators: regroup both.
    together = {name: f"as{n}" for n, ends in enumerate(list(jobs.values())[:2]) for name in ends}
    moved = rewire(site, attachments, together).attachments
    began = time.process_time()
    second = compiler.next(first, replace(forwarding, epoch=2, attachments=moved))
    next_s = time.process_time() - began
    began = time.process_time()
    steps = [
        diff(first.programs[n], second.programs[n])
        for n in second.programs
        if first.programs[n] is not second.programs[n]
    ]
    diff_s = time.process_time() - began

    rules = sum(len(program.rules) for program in first.programs.values())
    began = time.process_time()
    for program in first.programs.values():
        for batch in messages(program):
            batch.stamped(range(len(batch)))
    pack_s = time.process_time() - began
    sample = list(first.programs.values())[:: max(1, len(first.programs) // SAMPLE)]
    ours = [bytes(batch.data) for program in sample for batch in messages(program)]
    sampled = [
        [rule for rule in batch.about if isinstance(rule, FlowRule)]
        for program in sample
        for batch in messages(program)
    ]
    began = time.process_time()
    theirs = [b"".join([ofmsgs.by_os_ken(rule) for rule in rules]) for rules in sampled]
    os_ken_s = time.process_time() - began
    same = theirs == ours
    per_rule, rival = pack_s / rules, os_ken_s / sum(map(len, sampled))
    print(
        json.dumps(
            {
                "machine": {"cores": os.cpu_count()},
                "endpoints": options.endpoints,
                "aggregators": len(site.aggregators),
                "rules": rules,
                "compile_s": round(whole_s, 3),
                "compile_us_per_rule": round(1e6 * whole_s / rules, 2),
                "regroup_of_two_jobs": {
                    "aggregators_touched": len(steps),
                    "flow_mods": sum(len(s.remove) + len(s.add) for s in steps),
                    "compile_s": round(next_s, 4),
                    "diff_s": round(diff_s, 4),
                },
                "pack_s": round(pack_s, 3),
                "pack_us": round(1e6 * per_rule, 2),
                "flow_mods_per_s": round(1 / per_rule),
                "os_ken_us": round(1e6 * rival, 1),
                "os_ken_flow_mods_per_s": round(1 / rival),
                "speedup": round(rival / per_rule, 1),
                "bytes_equal": same,
            }
        )
    )


if __name__ == "__main__":
    main()
