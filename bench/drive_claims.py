#!/usr/bin/env python3
"""Runs `foreload drive` on one scenario and prints what its report says about the claims.

    drive_claims.py --scenario mooncake --repeat 3

Phases demand, prefetch and observe are interleaved, `--repeat` times; each repeat is one sample:

    main.<scenario>_stall_ratio   stall with prefetch / stall with demand-only loading
    main.demand_p99_ratio         (p99 of demand loads with prefetch - one extent's service time) / p99 demand-only
    main.observe_outcome_error    largest |observe - prefetch| over issued, useful, late and wasted blocks, / issued
    main.mismatches               blocks with wrong bytes, all phases

An extent's service time is that of the slowest link: its bytes over the SSD's rate, plus its latency.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys

PHASES = "demand,prefetch,observe"
OUTCOMES = ("issued", "useful", "late", "wasted")
BYTE_UNITS = {"": 1, "B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "kB": 1e3}
SECOND_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}


def quantity(text, units):
    match = re.fullmatch(r"([0-9.]+)\s*([A-Za-z]*)(?:/s)?", str(text))
    if not match or match.group(2) not in units:
        raise SystemExit(f"cannot read '{text}' in the report's parameters")
    return float(match.group(1)) * units[match.group(2)]


def extent_seconds(parameters):
    extent = quantity(parameters["engine.block_bytes"], BYTE_UNITS) / int(parameters["engine.layer_groups"])
    return extent / quantity(parameters["sidecar.ssd_rate"], BYTE_UNITS) + quantity(
        parameters["sidecar.ssd_latency"], SECOND_UNITS)


def outcome_error(predicted, seen):
    """Both tiers together; None when nothing was issued."""
    issued = sum(seen[tier]["issued"] for tier in ("prefetch_hbm", "prefetch_dram"))
    if issued <= 0:
        return None
    return max(abs(sum(predicted[tier][outcome] - seen[tier][outcome] for tier in ("prefetch_hbm", "prefetch_dram")))
               for outcome in OUTCOMES) / issued


def samples(report):
    """{claim: (values, unit)} of a report."""
    runs = {phase: [run for run in report["runs"] if run["phase"] == phase]
            for phase in ("demand-only", "prefetch", "observe")}
    for run in report["runs"]:
        if run["phase"] != "observe" and run["verified_blocks"] <= 0:
            raise SystemExit(f"the {run['phase']} run verified no block: nothing is shown")
    pairs = list(zip(runs["demand-only"], runs["prefetch"]))
    allowance = extent_seconds(report["parameters"])
    errors = [outcome_error(predicted, seen) for predicted, seen in zip(runs["observe"], runs["prefetch"])]
    return {
        f"main.{report['scenario']}_stall_ratio": (
            [on["stall_total_seconds"] / off["stall_total_seconds"] for off, on in pairs], "ratio"),
        "main.demand_p99_ratio": (
            [(on["demand_p99_seconds"] - allowance) / off["demand_p99_seconds"] for off, on in pairs], "ratio"),
        "main.observe_outcome_error": ([error for error in errors if error is not None], "ratio"),
        "main.mismatches": ([run["mismatches"] for run in report["runs"]], "blocks"),
    }


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", required=True)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--foreload", type=pathlib.Path,
                        default=pathlib.Path(os.environ.get("FORELOAD_BUILD", "build/dev")) / "cmd" / "foreload")
    options = parser.parse_args(arguments)
    done = subprocess.run([str(options.foreload), "drive", "--scenario", options.scenario, "--phases", PHASES,
                           "--repeat", str(options.repeat), "--json"], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"foreload drive exited with {done.returncode}")
    for claim, (values, unit) in samples(json.loads(done.stdout)).items():
        print(json.dumps({"id": claim, "values": values, "unit": unit}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
