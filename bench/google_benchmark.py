#!/usr/bin/env python3
"""Turns a Google Benchmark binary's output into the JSON line of one claim.

    google_benchmark.py --id main.lookup_ns --unit ns --binary BIN --filter REGEX --counter ns_per_block
    google_benchmark.py --id x.y ... --filter 'Copy|Memcpy' --counter real_time --ratio Memcpy Copy

With --worst-of lower|higher several benchmarks may match: each sample is the worst of its repetition, where higher (or
lower) values are better. `--counter` names a user counter, or real_time, cpu_time, bytes_per_second, items_per_second.
With --ratio each sample is the counter of a run whose name contains the first word, divided by that of the same
repetition of the second; the repetitions of both are interleaved.
"""

import argparse
import json
import pathlib
import subprocess
import sys


def run(binary, pattern, repetitions, min_time, interleave):
    command = [str(binary), f"--benchmark_filter={pattern}", "--benchmark_format=json",
               f"--benchmark_repetitions={repetitions}", f"--benchmark_min_time={min_time}"]
    if interleave:
        command.append("--benchmark_enable_random_interleaving=true")
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{binary} exited with {done.returncode}")
    return json.loads(done.stdout or "{}").get("benchmarks", [])


def samples(runs, counter, word=""):
    """Values by repetition of the runs whose name contains `word`; exactly one benchmark may match."""
    picked = [entry for entry in runs if entry.get("run_type", "iteration") == "iteration" and word in entry["name"]]
    failed = [entry for entry in picked if entry.get("error_occurred")]
    if failed:
        raise SystemExit(f"{failed[0]['name']}: {failed[0].get('error_message')}")
    names = {entry.get("run_name", entry["name"]) for entry in picked}
    if len(names) != 1:
        raise SystemExit(f"'{word}' should match one benchmark, matches {sorted(names) or 'none'}")
    if counter not in picked[0]:
        raise SystemExit(f"{picked[0]['name']} has no counter '{counter}'")
    picked.sort(key=lambda entry: entry.get("repetition_index", 0))
    return [entry[counter] for entry in picked]


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--id", required=True)
    parser.add_argument("--unit", required=True)
    parser.add_argument("--binary", type=pathlib.Path, required=True)
    parser.add_argument("--filter", required=True)
    parser.add_argument("--counter", required=True)
    parser.add_argument("--ratio", nargs=2, metavar=("OF", "TO"))
    parser.add_argument("--worst-of", choices=("lower", "higher"), help="which values are better")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--min-time", type=float, default=0.2)
    options = parser.parse_args(arguments)
    runs = run(options.binary, options.filter, options.repetitions, options.min_time, options.ratio is not None)
    if options.ratio:
        pairs = zip(samples(runs, options.counter, options.ratio[0]), samples(runs, options.counter, options.ratio[1]))
        values = [of / to for of, to in pairs]
    elif options.worst_of:
        names = sorted({entry["run_name"] for entry in runs if entry.get("run_type", "iteration") == "iteration"})
        columns = [samples([entry for entry in runs if entry.get("run_name") == name], options.counter)
                   for name in names]
        if not columns:
            raise SystemExit(f"no benchmark matches '{options.filter}'")
        values = [(min if options.worst_of == "higher" else max)(row) for row in zip(*columns)]
    else:
        values = samples(runs, options.counter)
    print(json.dumps({"id": options.id, "values": values, "unit": options.unit}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
