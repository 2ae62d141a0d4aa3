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
import google_benchmark  # noqa: E402
import timed  # noqa: E402
import wire_conformance  # noqa: E402


def benchmark_report(**rows):
    runs = [{"name": name, "run_name": name, "run_type": "iteration", "repetition_index": index, "rate": value}
            for name, values in rows.items() for index, value in enumerate(values)]
    return json.dumps({"benchmarks": runs + [{"name": "A_mean", "run_type": "aggregate", "rate": -1}]})


def test_report(passed=0, failed=0, skipped=0):
    cases = [{"status": "RUN", "result": "COMPLETED"}] * passed
    cases += [{"status": "RUN", "result": "COMPLETED", "failures": [{}]}] * failed
    cases += [{"status": "RUN", "result": "SKIPPED"}] * skipped + [{"status": "NOTRUN"}] * 5
    return json.dumps({"testsuites": [{"testsuite": cases}]})


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
