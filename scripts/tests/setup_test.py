#!/usr/bin/env python3
"""scripts/setup.sh against a made-up package manager: nothing is installed on this machine."""

import os
import pathlib
import stat
import subprocess
import tempfile
import unittest

SETUP = pathlib.Path(__file__).resolve().parents[1] / "setup.sh"


class Setup(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.bin = pathlib.Path(self.folder.name)
        # What touches the system does nothing here; sudo runs what follows it.
        for name in ("tee", "chmod", "rm"):
            self.fake(name, "true")
        self.fake("sudo", '"$@"')
        self.fake("apt-get", f'echo "$*" >> {self.bin}/calls')

    def fake(self, name, body):
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def installed(self, absent=()):
        lists = f'source <(sed -n "/^build_packages=/,/^)/p;/^test_packages=/,/^)/p" {SETUP})\n'
        names = subprocess.run(["bash", "-c", lists + 'printf "%s " "${build_packages[@]}" "${test_packages[@]}"'],
                               capture_output=True, text=True, check=True).stdout.split()
        self.assertGreater(len(names), 30)
        lines = [f"{'not-installed' if name in absent else 'installed'} {name}" for name in names]
        self.fake("dpkg-query", "cat <<'END'\n" + "\n".join(lines) + "\nEND")

    def run_setup(self, *arguments):
        environment = {**os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}"}
        done = subprocess.run(["bash", str(SETUP), *arguments], capture_output=True, text=True, env=environment,
                              check=False)
        calls = self.bin / "calls"
        return done, calls.read_text().splitlines() if calls.exists() else []

    def test_asks_no_package_index_when_all_is_present(self):
        self.installed()
        done, calls = self.run_setup("--tests")
        self.assertEqual((done.returncode, calls), (0, []))

    def test_check_names_what_is_missing_and_installs_nothing(self):
        self.installed(absent=("liburing-dev", "g++"))
        done, calls = self.run_setup("--check")
        self.assertEqual((done.returncode, calls), (1, []))
        self.assertIn("missing: g++ liburing-dev", done.stderr)

    def test_installs_only_what_is_missing(self):
        self.installed(absent=("liburing-dev",))
        done, calls = self.run_setup()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(calls[0].endswith(" update"), calls)
        self.assertTrue(calls[1].endswith("install --no-install-recommends liburing-dev"), calls)

    def test_test_packages_are_wanted_only_with_their_option(self):
        self.installed(absent=("fio",))
        self.assertEqual(self.run_setup("--check")[0].returncode, 0)
        self.assertEqual(self.run_setup("--check", "--tests")[0].returncode, 1)

    def test_failed_installation_says_what_was_wanted(self):
        self.installed(absent=("liburing-dev",))
        self.fake("apt-get", 'case "$*" in *install*) echo "E: no such package"; exit 100;; esac')
        done, _ = self.run_setup()
        self.assertEqual(done.returncode, 1)
        self.assertIn("could not install all of: liburing-dev", done.stderr)

    def test_stale_index_is_no_failure(self):
        self.installed(absent=("liburing-dev",))
        self.fake("apt-get", 'case "$*" in *update*) exit 100;; esac')
        self.assertEqual(self.run_setup()[0].returncode, 0)

    def test_unknown_option_is_refused(self):
        done, _ = self.run_setup("--chek")
        self.assertEqual(done.returncode, 1)
        self.assertIn("--chek", done.stderr)


if __name__ == "__main__":
    unittest.main()
