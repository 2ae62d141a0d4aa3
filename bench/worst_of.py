#!/usr/bin/env python3
"""Runs a benchmark that prints JSON lines with ids of its own, and gives the worst matching value a claim's id.

    worst_of.py --id main.dram_to_arena_ratio --unit ratio --from 'dram_arena_ratio_*' --better higher -- COMMAND...

When every matching line says `skipped`, so does the result; when only some do, the command fails.
"""

import argparse
import fnmatch
import json
import subprocess
import sys


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--id", required=True)
    parser.add_argument("--unit", required=True)
    parser.add_argument("--from", dest="pattern", required=True, metavar="GLOB")
    parser.add_argument("--better", choices=("lower", "higher"), required=True)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(arguments)
    done = subprocess.run(options.command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{options.command[0]} exited with {done.returncode}")
    records = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    records = [record for record in records if fnmatch.fnmatch(record.get("id", ""), options.pattern)]
    skipped = [record["skipped"] for record in records if "skipped" in record]
    if not records or (skipped and len(skipped) < len(records)):
        raise SystemExit(f"'{options.pattern}' matches {len(records)} lines, {len(skipped)} of them skipped")
    if skipped:
        print(json.dumps({"id": options.id, "skipped": skipped[0]}))
        return 0
    if any(record.get("unit") != options.unit for record in records):
        raise SystemExit(f"a line's unit is not '{options.unit}'")
    worst = (min if options.better == "higher" else max)(record["value"] for record in records)
    print(json.dumps({"id": options.id, "value": worst, "unit": options.unit}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
