#!/usr/bin/env python3
"""Runs the claims of bench/claims.toml and says which hold. bench/README.md describes the entries.

A claim's command prints JSON lines. A line {"id", "value", "unit"} is one sample; {"id", "values": [...], "unit"}
several; {"id", "skipped": "reason"} says that the machine lacks something. Other lines are ignored. The measured value
is the median of all samples of all repetitions, and its spread a 95 % bootstrap interval of that median.

A run during which other processes kept a core busy is repeated; when that does not help either it counts, and is
reported as disturbed.
"""

import argparse
import dataclasses
import fnmatch
import json
import os
import pathlib
import random
import resource
import shutil
import statistics
import subprocess
import sys
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
BOOTSTRAP_ROUNDS = 2000
BOOTSTRAP_SEED = 20251
RERUNS_MAX = 3               # of a claim's disturbed runs, in all: a machine that stays busy is busy
FOREIGN_CORES_MAX = 0.25     # busy with others' work, mean over a run
TIMEOUT_SECONDS_DEFAULT = 600
BETTER = ("lower", "higher", "equal")


class ClaimError(Exception):
    """The file of claims or the command line is wrong; the message names the place."""


@dataclasses.dataclass(frozen=True)
class Claim:
    id: str
    sentence: str
    command: object          # a string or a list of strings; the samples of all count
    target: float
    unit: str
    better: str
    repetitions: int
    needs: tuple = ()
    interval: bool = False   # judge the worse end of the interval instead of the median
    slow: bool = False       # runs only when a GLOB was given
    timeout_seconds: int = TIMEOUT_SECONDS_DEFAULT


@dataclasses.dataclass
class Verdict:
    claim: Claim
    holds: object            # True, False or "skipped"
    measured: object = None
    spread: object = None    # [low, high] of the bootstrap interval
    samples: int = 0
    disturbed: int = 0
    why_not: str = ""

    def as_json(self):
        return {"id": self.claim.id, "measured": self.measured, "spread": self.spread, "unit": self.claim.unit,
                "target": f"{SIGN[self.claim.better]} {self.claim.target:g}", "holds": self.holds,
                "why_not": self.why_not, "samples": self.samples, "disturbed": self.disturbed}


SIGN = {"lower": "<=", "higher": ">=", "equal": "="}


# --- what a machine may lack -----------------------------------------------------------------------------------------

def data_folder():
    return pathlib.Path(os.environ.get("FORELOAD_DATA") or ROOT.parent / "shared" / "data")


def lacks(need):
    """The reason in words when this machine lacks `need`, else an empty string."""
    kind, _, value = need.partition(":")
    if kind == "data":
        return "" if data_folder().is_dir() else "no recorded data: set FORELOAD_DATA"
    if kind == "gpu":
        return "" if pathlib.Path("/dev/nvidiactl").exists() else "no GPU"
    if kind == "root":
        return "" if os.geteuid() == 0 else "needs root"
    if kind == "tool":
        return "" if shutil.which(value) else f"{value} is not installed (scripts/setup.sh --tests)"
    if kind == "cores":
        return "" if (os.cpu_count() or 1) >= int(value) else f"needs {value} cores"
    raise ClaimError(f"unknown need '{need}' (data, gpu, root, tool:NAME, cores:N)")


# --- the file --------------------------------------------------------------------------------------------------------

def line_of(text, entry, key=None):
    """Line number of the entry (0-based index) or of a key in it; tomllib keeps none."""
    index = -1
    start = 1
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip().startswith("[[claim]]"):
            index += 1
            start = number if index == entry else start
            if index > entry:
                break
        elif index == entry and key and line.split("=")[0].strip() == key:
            return number
    return start


def nearest(name, names):
    import difflib
    close = difflib.get_close_matches(name, names, 1)
    return f"; did you mean '{close[0]}'?" if close else ""


def parse(text, path):
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ClaimError(f"{path}: {error}") from error
    extra = sorted(set(document) - {"claim"})
    if extra:
        raise ClaimError(f"{path}: unknown table '{extra[0]}'; entries are [[claim]]")
    claims = [parse_entry(raw, text, path, index) for index, raw in enumerate(document.get("claim", []))]
    seen = {}
    for index, claim in enumerate(claims):
        if claim.id in seen:
            raise ClaimError(f"{path}:{line_of(text, index, 'id')}: '{claim.id}' is declared twice")
        seen[claim.id] = index
    return claims


def parse_entry(raw, text, path, index):
    fields = {field.name: field for field in dataclasses.fields(Claim)}

    def wrong(key, message):
        place = f"{path}:{line_of(text, index, key)}: entry {index + 1} ({raw.get('id', 'no id')})"
        return ClaimError(f"{place}: {message}")

    for key in raw:
        if key not in fields:
            raise wrong(key, f"unknown key '{key}'{nearest(key, fields)}")
    for name, field in fields.items():
        if name not in raw and field.default is dataclasses.MISSING:
            raise wrong(None, f"'{name}' is missing")
    for key, value in raw.items():
        expected = {"command": (str, list), "target": (int, float), "repetitions": int, "timeout_seconds": int,
                    "needs": list, "interval": bool, "slow": bool}.get(key, str)
        if not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool):
            raise wrong(key, f"'{key}' has the wrong type")
    if raw["better"] not in BETTER:
        raise wrong("better", f"better = '{raw['better']}' is none of {', '.join(BETTER)}")
    if raw["repetitions"] < 1:
        raise wrong("repetitions", "at least one repetition")
    if "." not in raw["id"] or not all(part.replace("_", "a").isalnum() for part in raw["id"].split(".")):
        raise wrong("id", "an id is part.name in lower-case letters, digits and underscores")
    for need in raw.get("needs", []):
        try:
            lacks(need)
        except ClaimError as error:
            raise wrong("needs", str(error)) from error
    return Claim(**{**raw, "needs": tuple(raw.get("needs", ()))})


# --- statistics ------------------------------------------------------------------------------------------------------

def bootstrap_interval(samples, rounds=BOOTSTRAP_ROUNDS, seed=BOOTSTRAP_SEED):
    """95 % percentile interval of the median; [x, x] for one sample."""
    if len(set(samples)) == 1:
        return [samples[0], samples[0]]
    generator = random.Random(seed)
    medians = sorted(statistics.median(generator.choices(samples, k=len(samples))) for _ in range(rounds))
    return [medians[int(0.025 * rounds)], medians[min(rounds - 1, int(0.975 * rounds))]]


def judge(claim, samples):
    """(measured, spread, holds, why_not). An `equal` claim must hold in every sample."""
    measured = statistics.median(samples)
    low, high = bootstrap_interval(samples)
    if claim.better == "equal":
        off = [sample for sample in samples if sample != claim.target]
        return measured, [low, high], not off, f"{off[0]:g} in one of {len(samples)} samples" if off else ""
    worse = {"lower": high, "higher": low}[claim.better] if claim.interval else measured
    holds = worse <= claim.target if claim.better == "lower" else worse >= claim.target
    where = "worse end of the 95 % interval" if claim.interval else "median"
    return measured, [low, high], holds, "" if holds else f"{where} is {worse:.4g}"


# --- running ---------------------------------------------------------------------------------------------------------

def busy_seconds():
    """Seconds that all cores together have been busy since boot, this machine's guests and thieves included."""
    fields = pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    user, nice, system, _idle, _iowait, irq, softirq, steal = (int(field) for field in fields[:8])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def own_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    mine = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime + mine.ru_utime + mine.ru_stime


@dataclasses.dataclass
class Run:
    """What one run of one command gave; claims with the same command share it."""
    output: str = ""
    error: str = ""
    foreign: float = 0.0  # cores that others kept busy meanwhile


def run_command(command, timeout_seconds, build):
    environment = {**os.environ, "FORELOAD_BUILD": str(build), "FORELOAD_DATA": str(data_folder())}
    busy, own, began = busy_seconds(), own_seconds(), time.monotonic()
    try:
        done = subprocess.run(["bash", "-c", command], cwd=ROOT, env=environment, text=True, errors="replace",
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=timeout_seconds, check=False)
    except subprocess.TimeoutExpired:
        return Run(error=f"the command ran past {timeout_seconds} s")
    elapsed = max(time.monotonic() - began, 1e-3)
    foreign = max(0.0, ((busy_seconds() - busy) - (own_seconds() - own)) / elapsed) if elapsed > 0.5 else 0.0
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        return Run(done.stdout, f"the command exited with {done.returncode}: {last[:200]}", foreign)
    return Run(done.stdout, "", foreign)


def run_once(claim, build, repetition, cache):
    """(samples, skipped reason, error, cores that others kept busy) over all commands of the claim."""
    samples, foreign = [], 0.0
    for command in [claim.command] if isinstance(claim.command, str) else claim.command:
        key = (command, repetition)
        if key not in cache:
            cache[key] = run_command(command, claim.timeout_seconds, build)
        run = cache[key]
        new, skipped, error = read_samples(claim, run.output)
        if skipped:
            return [], skipped, "", 0.0
        error = run.error or error or ("" if new else "the command printed no value for this id")
        if error:
            return [], "", error, run.foreign
        samples += new
        foreign = max(foreign, run.foreign)
    return samples, "", "", foreign


def forget(claim, repetition, cache):
    for command in [claim.command] if isinstance(claim.command, str) else claim.command:
        cache.pop((command, repetition), None)


def read_samples(claim, output):
    samples, skipped = [], ""
    for line in output.splitlines():
        if not line.startswith("{"):
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        if record.get("id") != claim.id:
            continue
        if "skipped" in record:
            skipped = str(record["skipped"])
            continue
        if record.get("unit") != claim.unit:
            return [], "", f"the command's unit is '{record.get('unit')}', not '{claim.unit}'"
        samples += [float(value) for value in record.get("values", [record.get("value")]) if value is not None]
    return samples, skipped, ""


def measure(claim, build, progress, cache):
    for need in claim.needs:
        reason = lacks(need)
        if reason:
            return Verdict(claim, "skipped", why_not=reason)
    samples, disturbed, reruns = [], 0, 0
    for repetition in range(claim.repetitions):
        progress(f"run {repetition + 1}/{claim.repetitions}")
        while True:
            new, skipped, error, foreign = run_once(claim, build, repetition, cache)
            if skipped:
                return Verdict(claim, "skipped", why_not=skipped)
            if error:
                return Verdict(claim, False, why_not=error)
            quiet = foreign <= FOREIGN_CORES_MAX or claim.better == "equal"
            if quiet or claim.slow or reruns == RERUNS_MAX:
                disturbed += not quiet
                break
            reruns += 1
            progress(f"run {repetition + 1}/{claim.repetitions} again: other work kept {foreign:.1f} cores busy")
            forget(claim, repetition, cache)
        samples += new
    measured, spread, holds, why_not = judge(claim, samples)
    if disturbed:
        note = f"{disturbed} of {claim.repetitions} runs were disturbed by other work"
        why_not = "; ".join(filter(None, [why_not, note]))
    return Verdict(claim, holds, measured, spread, len(samples), disturbed, why_not)


# --- output ----------------------------------------------------------------------------------------------------------

def number(value):
    return "-" if value is None else f"{value:.4g}" if abs(value) < 1e5 else f"{value:,.0f}"


def table(verdicts):
    rows = [("id", "measured", "spread", "unit", "target", "holds", "why not")]
    for verdict in verdicts:
        spread = "-" if verdict.spread is None else " .. ".join(number(end) for end in verdict.spread)
        holds = {True: "yes", False: "NO"}.get(verdict.holds, verdict.holds)
        target = f"{SIGN[verdict.claim.better]} {number(verdict.claim.target)}"
        rows.append((verdict.claim.id, number(verdict.measured), spread, verdict.claim.unit, target, holds,
                     verdict.why_not))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    return "\n".join("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths)), row[-1]]).rstrip()
                     for row in rows)


def select(claims, globs):
    for glob in globs:
        if not fnmatch.filter([claim.id for claim in claims], glob):
            raise ClaimError(f"no claim matches '{glob}'{nearest(glob, [claim.id for claim in claims])}")
    return [claim for claim in claims if not globs or any(fnmatch.fnmatch(claim.id, glob) for glob in globs)]


def build_benchmarks():
    print("building preset dev", file=sys.stderr, flush=True)
    script = 'source scripts/lib.sh; mkdir -p build; build_preset dev'
    if subprocess.run(["bash", "-euc", script], cwd=ROOT, stdout=sys.stderr, check=False).returncode != 0:
        raise ClaimError("the build failed")


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="claims.sh", description="Measures the claims of bench/claims.toml.")
    parser.add_argument("globs", nargs="*", metavar="GLOB",
                        help="ids to run, e.g. 'main.*ratio'; without one, all but slow ones")
    parser.add_argument("--json", action="store_true", help="one JSON line per claim instead of a table")
    parser.add_argument("--list", action="store_true", help="only list them")
    parser.add_argument("--no-build", action="store_true", help="measure what lies in the build folder")
    parser.add_argument("--file", type=pathlib.Path, default=ROOT / "bench" / "claims.toml", help=argparse.SUPPRESS)
    parser.add_argument("--build", type=pathlib.Path, default=None,
                        help="another build folder than build/dev; implies --no-build")
    options = parser.parse_args(arguments)
    try:
        claims = select(parse(options.file.read_text(), options.file.name), options.globs)
        if options.list:
            for claim in claims:
                print(f"{claim.id:32} {SIGN[claim.better]} {claim.target:g} {claim.unit}: {claim.sentence}")
            return 0
        if not options.no_build and options.build is None:
            build_benchmarks()
        return run_all(claims, options)
    except (ClaimError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def run_all(claims, options):
    build = (options.build or ROOT / "build" / "dev").resolve()
    verdicts, cache = [], {}
    for index, claim in enumerate(claims, 1):
        def progress(text, index=index, claim=claim):
            print(f"[{index}/{len(claims)}] {claim.id}: {text}", file=sys.stderr, flush=True)

        if claim.slow and not options.globs:
            verdict = Verdict(claim, "skipped", why_not="slow: name it to run it")
        else:
            verdict = measure(claim, build, progress, cache)
        verdicts.append(verdict)
        if options.json:
            print(json.dumps(verdict.as_json()), flush=True)
    if not options.json:
        print(table(verdicts))
        held = sum(verdict.holds is True for verdict in verdicts)
        skipped = sum(verdict.holds == "skipped" for verdict in verdicts)
        print(f"\n{held} hold, {len(verdicts) - held - skipped} do not, {skipped} skipped")
    return 1 if any(verdict.holds is False for verdict in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
