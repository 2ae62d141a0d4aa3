"""Starts sidecars and engines as processes, and waits for what they do."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

BINARY = os.environ.get("FORELOAD_BINARY", "")
DEADLINE_S = float(os.environ.get("FORELOAD_TEST_DEADLINE", "20"))

BLOCK_BYTES = 16384


def wait_until(condition, what, deadline=DEADLINE_S):
    """Polls `condition` until it is true; fails with `what` after the deadline. Returns its value."""
    end = time.monotonic() + deadline
    pause = 0.002
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline:g} s: {what}")
        time.sleep(pause)  # between two looks at a condition, never instead of one
        pause = min(pause * 1.5, 0.05)


def digest_of(number, family=0):
    return hashlib.sha256(f"{family}/{number}".encode()).digest()


def digests_of(count, family=0, first=0):
    return [digest_of(i, family) for i in range(first, first + count)]


def content_of(digest, size=BLOCK_BYTES):
    """Bytes that are a function of the key."""
    seed = hashlib.sha256(b"content" + digest).digest()
    return (seed * (size // len(seed) + 1))[:size]


def store_chain(client, digests, parent=None):
    """Stores the blocks as one chain, waiting for free slots."""
    for digest in digests:
        slot = wait_until(client.store_begin, "a free store slot")
        slot.data[:] = content_of(digest, len(slot.data))
        client.store_commit(slot, digest, parent)
        parent = digest


class Sidecar:
    """`foreload serve` in a folder of its own; survives restarts of the process."""

    def __init__(self, folder, mode="on", extra="", dram="64MiB", ssd="128MiB", ssd_directory=None):
        self.folder = folder
        self.socket = os.path.join(folder, "run", "control.sock")
        self.ssd = ssd_directory or os.path.join(folder, "ssd")
        self.config = os.path.join(folder, "foreload.toml")
        self.log_path = os.path.join(folder, "log")
        self.process = None
        ssd_table = f'[ssd]\ndirectory = "{self.ssd}"\ncapacity = "{ssd}"\nsegment_size = "4MiB"\n' \
                    f'fsync_interval = "20ms"\n' if ssd else ""
        with open(self.config, "w", encoding="utf-8") as out:
            out.write(f'mode = "{mode}"\n[service]\ncontrol_socket = "{self.socket}"\nhttp_listen = ""\n'
                      f'state_dir = "{folder}/state"\n[dram]\ncapacity = "{dram}"\nlock_memory = false\n'
                      f'{ssd_table}{extra}\n')

    def start(self, wait=True):
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen([BINARY, "serve", "--config", self.config], stdout=log, stderr=log)
        if wait:
            wait_until(lambda: self.process.poll() is not None or os.path.exists(self.socket), "the control socket")
            assert self.process.poll() is None, self.words()
        return self

    def words(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as log:
            return log.read()

    def kill(self, number=signal.SIGKILL):
        self.process.send_signal(number)
        if number == signal.SIGSTOP:
            wait_until(lambda: self._scheduler_state() == "T", "the process stopped")
        elif number != signal.SIGCONT:
            self.process.wait(DEADLINE_S)

    def _scheduler_state(self):
        with open(f"/proc/{self.process.pid}/stat", encoding="utf-8") as stat:
            return stat.read().rpartition(")")[2].split()[0]

    def stop(self):
        if self.process is None or self.process.poll() is not None:
            return None
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        return self.process.wait(DEADLINE_S)

    def status(self):
        done = subprocess.run([BINARY, "status", "--socket", self.socket, "--json"], capture_output=True, text=True,
                              timeout=DEADLINE_S, check=False)
        return json.loads(done.stdout) if done.returncode == 0 else None


class Test(unittest.TestCase):
    """Gives each test a folder and cleans up its processes."""

    def setUp(self):
        self._folder = tempfile.TemporaryDirectory(prefix="foreload-it-")
        self.folder = self._folder.name
        self._sidecars = []
        self._engines = []
        self._children = []

    def tearDown(self):
        for engine in self._engines:
            engine.close()
        for child in self._children:
            if child.poll() is None:
                child.kill()
            child.wait()
            child.stdin.close()
            child.stdout.close()
        for sidecar in self._sidecars:
            sidecar.stop()
        self._folder.cleanup()

    def sidecar(self, **options):
        sidecar = Sidecar(self.folder, **options)
        self._sidecars.append(sidecar)
        return sidecar.start()

    def engine(self, sidecar, name="engine", slots=64, store_slots=32, **options):
        import foreload
        client = foreload.Client(sidecar.socket, name, extents=[foreload.Extent(0, 0, BLOCK_BYTES)], block_tokens=16,
                                 **options)
        self._engines.append(client)
        if slots:
            client.grant_host(slots, BLOCK_BYTES, store_slots)
        return client

    def child(self, sidecar, name, *arguments):
        """An engine in a process of its own (engine_child.py); its first line says that it is connected."""
        script = os.path.join(os.path.dirname(__file__), "engine_child.py")
        child = subprocess.Popen([sys.executable, script, sidecar.socket, name, *map(str, arguments)],
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._children.append(child)
        return child

    def heard(self, child, expected):
        """The child's next line is `expected`."""
        self.assertEqual(child.stdout.readline().strip(), expected)

    @staticmethod
    def tell(child, line):
        child.stdin.write(line + "\n")
        child.stdin.flush()

    def fetch(self, client, digests, deadline=10.0):
        return client.fetch_wait(client.fetch("request", digests, deadline=deadline))

    def check_ready(self, client, digests):
        """Every block of the prefix is READY with its own bytes."""
        pinned = client.lookup_pin(digests)
        try:
            for pin, digest in zip(pinned, digests):
                self.assertEqual(bytes(client.slot(pin.slot)), content_of(digest), "wrong bytes in the arena")
        finally:
            client.unpin(pinned, used=True)
        return len(pinned)

    def restore(self, client, digests):
        result = self.fetch(client, digests)
        self.assertEqual(result.ready_blocks, len(digests),
                         f"absent {result.absent_blocks}, failed {result.failed_blocks}")
        self.assertEqual(self.check_ready(client, digests), len(digests))
        return result
