#!/usr/bin/env python3
"""scripts/fuzz.py against made-up fuzzers."""

import json
import pathlib
import stat
import subprocess
import sys
import tempfile
import unittest

FUZZ = pathlib.Path(__file__).resolve().parents[1] / "fuzz.py"


class Fuzz(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.build = pathlib.Path(self.folder.name) / "build"
        (self.build / "module").mkdir(parents=True)
        (self.build.parent / "corpus" / "a_fuzz").mkdir(parents=True)

    def fuzzer(self, name, body):
        path = self.build / "module" / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def run_fuzz(self, *arguments):
        return subprocess.run([sys.executable, str(FUZZ), "--build", str(self.build), "--corpus",
                               str(self.build.parent / "corpus"), "--seconds", "7", *arguments],
                              capture_output=True, text=True, check=False)

    def test_clean_fuzzers_get_their_time_and_their_seeds(self):
        self.fuzzer("a_fuzz", f'echo "$*" > {self.build}/seen; echo "stat::number_of_executed_units: 42" >&2')
        done = self.run_fuzz("--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        record = json.loads(done.stdout)
        self.assertEqual((record["fuzzer"], record["clean"], record["executions"]), ("a_fuzz", True, 42))
        seen = (self.build / "seen").read_text()
        self.assertIn("-max_total_time=7", seen)
        self.assertIn("corpus/a_fuzz", seen)

    def test_undefined_behaviour_stops_a_fuzzer(self):
        self.fuzzer("a_fuzz", 'case "$UBSAN_OPTIONS" in *halt_on_error=1*) exit 1;; esac')
        self.assertEqual(self.run_fuzz().returncode, 1)

    def test_a_finding_fails_and_shows_the_end_of_its_output(self):
        self.fuzzer("a_fuzz", "true")
        self.fuzzer("b_fuzz", 'echo "heap-buffer-overflow" >&2; exit 77')
        done = self.run_fuzz()
        self.assertEqual(done.returncode, 1)
        self.assertIn("heap-buffer-overflow", done.stderr)
        self.assertIn("1 passed, 1 failed", done.stdout)

    def test_no_fuzzer_is_a_failure(self):
        self.assertEqual(self.run_fuzz().returncode, 1)


if __name__ == "__main__":
    unittest.main()
