#!/usr/bin/env python3
"""The adaptors in bench/ against made-up benchmark and test binaries."""

import contextlib
import io
import json
import pathlib
import stat
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import drive_claims  # noqa: E402
import google_benchmark  # noqa: E402
import timed  # noqa: E402
import wire_conformance  # noqa: E402
import worst_of  # noqa: E402


def benchmark_report(**rows):
    runs = [{"name": name, "run_name": name, "run_type": "iteration", "repetition_index": index, "rate": value}
            for name, values in rows.items() for index, value in enumerate(values)]
    return json.dumps({"benchmarks": runs + [{"name": "A_mean", "run_type": "aggregate", "rate": -1}]})


def test_report(passed=0, failed=0, skipped=0):
    cases = [{"status": "RUN", "result": "COMPLETED"}] * passed
    cases += [{"status": "RUN", "result": "COMPLETED", "failures": [{}]}] * failed
    cases += [{"status": "RUN", "result": "SKIPPED"}] * skipped + [{"status": "NOTRUN"}] * 5
    return json.dumps({"testsuites": [{"testsuite": cases}]})


def drive_run(phase, **changes):
    ledger = {"issued": 100, "useful": 80, "late": 10, "wasted": 10}
    return {"phase": phase, "stall_total_seconds": 4.0, "demand_p99_seconds": 0.010, "verified_blocks": 9,
            "mismatches": 0, "prefetch_hbm": ledger, "prefetch_dram": ledger, **changes}


def drive_report(*runs):
    return {"scenario": "weka", "runs": list(runs), "parameters": {
        "engine.block_bytes": "64KiB", "engine.layer_groups": "4", "sidecar.ssd_rate": "16.384MB/s",
        "sidecar.ssd_latency": "1ms"}}


class Drive(unittest.TestCase):
    def samples(self, *runs):
        return {claim: values for claim, (values, _) in drive_claims.samples(drive_report(*runs)).items()}

    def test_stall_and_p99_pair_the_runs_in_order(self):
        got = self.samples(drive_run("demand-only"), drive_run("prefetch", stall_total_seconds=1.0),
                           drive_run("demand-only", stall_total_seconds=2.0), drive_run("prefetch"))
        self.assertEqual(got["main.weka_stall_ratio"], [0.25, 2.0])
        # 16 KiB at 16.384 MB/s is 1 ms, and 1 ms of latency: 10 ms less 2 ms, of 10 ms.
        self.assertAlmostEqual(got["main.demand_p99_ratio"][0], 0.8)

    def test_observe_error_is_the_largest_difference_by_what_was_issued(self):
        off = {"issued": 110, "useful": 70, "late": 10, "wasted": 30}
        got = self.samples(drive_run("prefetch"), drive_run("observe", prefetch_hbm=off))
        self.assertEqual(got["main.observe_outcome_error"], [20 / 200])

    def test_mismatches_are_those_of_every_run_and_a_run_that_verified_nothing_is_an_error(self):
        self.assertEqual(self.samples(drive_run("demand-only"), drive_run("prefetch", mismatches=2))["main.mismatches"],
                         [0, 2])
        with self.assertRaises(SystemExit):
            self.samples(drive_run("prefetch", verified_blocks=0))


class Adaptors(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def binary(self, body):
        path = pathlib.Path(self.folder.name) / "binary"
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)

    def run_main(self, module, *arguments):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            module.main(list(arguments))
        return json.loads(out.getvalue())

    def benchmark(self, report, *arguments):
        binary = self.binary(f"cat <<'END'\n{report}\nEND")
        return self.run_main(google_benchmark, "--id", "x.y", "--unit", "u", "--binary", binary, "--filter", ".",
                             "--counter", "rate", *arguments)

    def conformance(self, report):
        binary = self.binary('for a; do case $a in --gtest_output=json:*) out=${a#*json:};; esac; done\n'
                             f"cat > $out <<'END'\n{report}\nEND")
        return self.run_main(wire_conformance, "--id", "x.y", "--binary", binary, "--filter", "*", "--at-least", "3")

    def test_benchmark_gives_one_sample_per_repetition_and_no_aggregates(self):
        self.assertEqual(self.benchmark(benchmark_report(A=[1, 2, 3])), {"id": "x.y", "values": [1, 2, 3], "unit": "u"})

    def test_benchmark_ratio_pairs_repetitions(self):
        record = self.benchmark(benchmark_report(Copy=[4, 9], Memcpy=[2, 3]), "--ratio", "Copy", "Memcpy")
        self.assertEqual(record["values"], [2, 3])

    def test_benchmark_that_matches_nothing_or_lacks_the_counter_is_an_error(self):
        with self.assertRaises(SystemExit):
            self.benchmark(benchmark_report())
        with self.assertRaises(SystemExit):
            self.benchmark(benchmark_report(A=[1]).replace('"rate"', '"other"'))
        with self.assertRaises(SystemExit):
            self.benchmark(benchmark_report(A=[1], B=[2]))

    def test_benchmark_worst_of_takes_the_worst_of_each_repetition(self):
        record = self.benchmark(benchmark_report(A=[4, 1], B=[2, 3]), "--worst-of", "higher")
        self.assertEqual(record["values"], [2, 1])

    def worst(self, *lines):
        return self.run_main(worst_of, "--id", "x.y", "--unit", "ratio", "--from", "a_*", "--better", "higher",
                             self.binary("cat <<'END'\n" + "\n".join(json.dumps(line) for line in lines) + "\nEND"))

    def test_worst_of_lines_renames_the_worst(self):
        record = self.worst({"id": "a_1", "value": 0.9, "unit": "ratio"}, {"id": "a_2", "value": 0.8, "unit": "ratio"},
                            {"id": "b", "value": 0.1, "unit": "ratio"})
        self.assertEqual(record, {"id": "x.y", "value": 0.8, "unit": "ratio"})

    def test_worst_of_lines_is_skipped_only_when_all_are(self):
        self.assertEqual(self.worst({"id": "a_1", "skipped": "no disk"})["skipped"], "no disk")
        with self.assertRaises(SystemExit):
            self.worst({"id": "a_1", "skipped": "no disk"}, {"id": "a_2", "value": 1, "unit": "ratio"})
        with self.assertRaises(SystemExit):
            self.worst({"id": "b", "value": 1, "unit": "ratio"})

    def test_conformance_counts_failed_and_skipped_cases(self):
        self.assertEqual(self.conformance(test_report(passed=4))["value"], 0)
        self.assertEqual(self.conformance(test_report(passed=4, failed=1, skipped=2))["value"], 3)

    def test_conformance_without_data_is_skipped_and_with_few_cases_an_error(self):
        self.assertIn("skipped", self.conformance(test_report(skipped=4)))
        with self.assertRaises(SystemExit):
            self.conformance(test_report(passed=2))

    def test_timed_passes_on_failure(self):
        with self.assertRaises(SystemExit):
            self.run_main(timed, "--id", "x.y", "--unit", "s", "false")
        self.assertGreaterEqual(self.run_main(timed, "--id", "x.y", "--unit", "s", "true")["value"], 0)


if __name__ == "__main__":
    unittest.main()
