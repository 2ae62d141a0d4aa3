"""The sidecar and its engines as processes: what is stored comes back, and what fails fails in words."""

import fcntl
import mmap
import os
import signal
import subprocess
import sys
import unittest

from harness import (BINARY, BLOCK_BYTES, DEADLINE_S, Sidecar, Test, content_of, digests_of, store_chain,
                     wait_until)

if not BINARY or "FORELOAD_LIBRARY" not in os.environ:
    sys.exit("set FORELOAD_BINARY and FORELOAD_LIBRARY")

import foreload  # noqa: E402


class Restore(Test):
    def test_what_an_engine_stored_comes_back_from_dram_and_after_a_restart_from_ssd(self):
        sidecar = self.sidecar()
        engine = self.engine(sidecar)
        engine.connect_wait()
        digests = digests_of(40)
        store_chain(engine, digests)
        engine.flush_wait()
        self.assertEqual(engine.lookup(digests), 0, "nothing was asked for yet")
        self.assertEqual(self.restore(engine, digests).bytes_from_dram, 40 * BLOCK_BYTES)
        self.assertEqual(sidecar.stop(), 0)
        sidecar.start()
        engine.connect_wait(DEADLINE_S)
        wait_until(lambda: engine.granted_slots == 64, "the arena granted again")
        self.assertEqual(self.restore(engine, digests).bytes_from_ssd, 40 * BLOCK_BYTES)

    def test_an_unknown_block_is_absent_and_what_lies_behind_it_too(self):
        engine = self.engine(self.sidecar())
        engine.connect_wait()
        digests = digests_of(8)
        store_chain(engine, digests[:4])
        engine.flush_wait()
        result = self.fetch(engine, digests)
        self.assertEqual((result.ready_blocks, result.absent_blocks), (4, 4))

    def test_other_namespaces_and_layouts_see_nothing(self):
        sidecar = self.sidecar()
        engine = self.engine(sidecar, name_space=foreload.name_space("model", cache_salt="tenant-a"))
        engine.connect_wait()
        digests = digests_of(4)
        store_chain(engine, digests)
        engine.flush_wait()
        salted = self.engine(sidecar, "b", name_space=foreload.name_space("model", cache_salt="tenant-b"))
        salted.connect_wait()
        self.assertEqual(self.fetch(salted, digests).absent_blocks, 4)
        other = self.engine(sidecar, "c", name_space=foreload.name_space("model", cache_salt="tenant-a"),
                            layout=foreload.layout("float16", 16, "LBHNC"))
        other.connect_wait()
        self.assertEqual(self.fetch(other, digests).absent_blocks, 4)

    def test_a_purged_namespace_is_gone_in_every_tier(self):
        sidecar = self.sidecar()
        space = foreload.name_space("model", cache_salt="leaver")
        engine = self.engine(sidecar, name_space=space)
        engine.connect_wait()
        digests = digests_of(8)
        store_chain(engine, digests)
        engine.flush_wait()
        self.restore(engine, digests)
        engine.purge_wait(space)
        self.assertEqual(engine.lookup(digests), 0)
        self.assertEqual(self.fetch(engine, digests).absent_blocks, 8)
        sidecar.stop()
        sidecar.start()
        engine.connect_wait(DEADLINE_S)
        self.assertEqual(self.fetch(engine, digests).absent_blocks, 8, "not even after a restart")

    def test_more_than_the_arena_holds_comes_as_the_longest_prefix_that_fits(self):
        engine = self.engine(self.sidecar(), slots=16)
        engine.connect_wait()
        digests = digests_of(40)
        store_chain(engine, digests)
        engine.flush_wait()
        result = self.fetch(engine, digests)
        self.assertGreater(result.ready_blocks, 0)
        self.assertLessEqual(result.ready_blocks, 16)
        self.assertEqual(self.check_ready(engine, digests), result.ready_blocks)


class Telemetry(Test):
    def test_every_kind_of_event_leaves_through_the_python_package(self):
        engine = self.engine(self.sidecar(), telemetry_endpoint=f"ipc://{self.folder}/access")
        engine.connect_wait()
        engine.emit_request("r", foreload.RequestState.QUEUED, digests=digests_of(3), session_id="s")
        engine.emit_step_access("r", 1, [0, 2], scores=bytes([9, 7]), query_sketch=bytes(16), sketch_source=1)
        engine.emit_hint(foreload.HintAction.RETAIN, session_id="s", ttl_ms=1000)
        wait_until(lambda: engine.counters().events_emitted == 3, "three events emitted")
        self.assertEqual(engine.counters().events_dropped, 0)
        with self.assertRaises(foreload.Error) as unordered:
            engine.emit_step_access("r", 2, [2, 0])
        self.assertEqual(unordered.exception.code, foreload.EINVAL)
        with self.assertRaises(ValueError):
            engine.emit_step_access("r", 2, [0, 2], scores=bytes(1))


class SidecarDeath(Test):
    def test_kill_9_loses_no_durable_block_whenever_it_comes(self):
        sidecar = self.sidecar()
        engine = self.engine(sidecar, store_slots=8)
        for round_number in range(5):
            engine.connect_wait(DEADLINE_S)
            durable = digests_of(12, family=round_number)
            store_chain(engine, durable)
            engine.flush_wait()
            volatile = digests_of(6, family=100 + round_number)
            for digest in volatile[:round_number + 1]:  # in the middle of this it dies
                slot = engine.store_begin()
                if slot is not None:
                    slot.data[:] = content_of(digest)
                    engine.store_commit(slot, digest)
            sidecar.kill()
            sidecar.start()
            engine.connect_wait(DEADLINE_S)
            for family in range(round_number + 1):
                self.restore(engine, digests_of(12, family=family))

    def test_ready_blocks_stay_readable_while_the_sidecar_is_dead(self):
        sidecar = self.sidecar()
        engine = self.engine(sidecar)
        engine.connect_wait()
        digests = digests_of(8)
        store_chain(engine, digests)
        engine.flush_wait()
        self.restore(engine, digests)
        sidecar.kill()
        wait_until(lambda: not engine.connected, "the end of the connection")
        self.assertEqual(self.check_ready(engine, digests), 8)
        with self.assertRaises(foreload.Error) as refused:
            engine.fetch("request", digests)
        self.assertEqual(refused.exception.code, foreload.EUNAVAIL)

    def test_a_stopped_sidecar_costs_one_deadline_and_then_nothing(self):
        sidecar = self.sidecar()
        engine = self.engine(sidecar, breaker_open_ms=60000)
        engine.connect_wait()
        digests = digests_of(8)
        store_chain(engine, digests)
        engine.flush_wait()
        self.restore(engine, digests)
        sidecar.kill(signal.SIGSTOP)
        other = digests_of(4, family=1)
        ticket = engine.fetch("request", other, deadline=0.2)
        with self.assertRaises(foreload.Error) as late:
            engine.fetch_wait(ticket)
        self.assertEqual(late.exception.code, foreload.ETIMEDOUT)
        with self.assertRaises(foreload.Error) as refused:
            engine.fetch("request", other, deadline=0.2)
        self.assertEqual(refused.exception.code, foreload.ESTATE, "the breaker is open")
        self.assertEqual(self.check_ready(engine, digests), 8, "look-ups go on")
        engine.emit_request("r", foreload.RequestState.QUEUED, digests=digests)
        sidecar.kill(signal.SIGCONT)
        self.assertEqual(self.check_ready(engine, digests), 8)
        engine.flush_wait()

    def test_a_second_sidecar_on_the_same_folder_is_refused_in_words(self):
        first = self.sidecar()
        second = Sidecar(os.path.join(self.folder), ssd_directory=first.ssd)
        second.socket = os.path.join(self.folder, "run", "other.sock")
        with open(second.config, encoding="utf-8") as config:
            text = config.read().replace("control.sock", "other.sock")
        second.config = os.path.join(self.folder, "second.toml")
        with open(second.config, "w", encoding="utf-8") as config:
            config.write(text)
        done = subprocess.run([BINARY, "serve", "--config", second.config], capture_output=True, text=True,
                              timeout=DEADLINE_S, check=False)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(str(first.process.pid), done.stdout + done.stderr, "says who holds it")
        done = subprocess.run([BINARY, "serve", "--config", first.config], capture_output=True, text=True,
                              timeout=DEADLINE_S, check=False)
        self.assertNotEqual(done.returncode, 0, "and the socket is taken, too")
        self.assertIsNotNone(first.status())


class EngineDeath(Test):
    def test_a_killed_engine_is_gone_and_the_next_one_restores_what_it_stored(self):
        sidecar = self.sidecar()
        child = self.child(sidecar, "engine", "both")
        self.heard(child, "ready")
        self.tell(child, "store 24 0")
        self.heard(child, "stored")
        digests = digests_of(24)
        wait_until(lambda: sidecar.status()["stores"]["accepted"] == 24, "24 stored blocks")
        self.tell(child, "fetch 24 0")
        child.kill()  # with transfers on their way, perhaps
        wait_until(lambda: not sidecar.status()["engines"], "the engine's end")
        engine = self.engine(sidecar)
        engine.connect_wait()
        self.restore(engine, digests)

    def test_one_dead_rank_makes_the_grant_zero_for_all(self):
        sidecar = self.sidecar()
        instance = foreload.random_id()
        rank0 = self.child(sidecar, "tp", "hold", 0, 2, instance.hex())
        rank1 = self.child(sidecar, "tp", "rank", 1, 2, instance.hex())
        self.heard(rank0, "ready")
        self.heard(rank1, "ready")
        def slots():
            engines = sidecar.status()["engines"]
            return engines[0]["slots"] if engines else None
        wait_until(lambda: slots() == 64, "an arena of both ranks")
        self.tell(rank0, "store 4 0")  # of one rank alone
        self.heard(rank0, "stored")
        self.tell(rank1, "store 4 0")
        self.heard(rank1, "stored")
        wait_until(lambda: sidecar.status()["stores"]["accepted"] == 4, "blocks of which both ranks gave their share")
        rank1.kill()
        wait_until(lambda: slots() == 0, "no slots without rank 1")
        self.assertIn("rank 1", sidecar.status()["engines"][0]["arena"])

    def test_two_engines_of_one_name_the_second_is_refused_and_the_first_goes_on(self):
        sidecar = self.sidecar()
        first = self.engine(sidecar)
        first.connect_wait()
        second = self.engine(sidecar)
        with self.assertRaises(foreload.Error) as refused:
            second.connect_wait(2)
        self.assertIn("engine named", str(refused.exception) + sidecar.words())
        digests = digests_of(4)
        store_chain(first, digests)
        first.flush_wait()
        self.restore(first, digests)

    def test_garbage_in_shared_memory_costs_that_engine_its_arena_alone(self):
        sidecar = self.sidecar()
        good = self.engine(sidecar, "good")
        good.connect_wait()
        digests = digests_of(16)
        store_chain(good, digests)
        good.flush_wait()
        child = self.child(sidecar, "bad", "both")
        self.heard(child, "ready")
        self.tell(child, "store 8 1")
        self.heard(child, "stored")
        self.tell(child, "fetch 8 1")
        self.heard(child, "fetched")
        self.tell(child, "scribble")
        self.heard(child, "scribbled")

        def arena_taken():
            return any("arena is taken away" in line for line in sidecar.words().splitlines())
        wait_until(arena_taken, "the bad engine's arena taken away")
        self.restore(good, digests)
        self.assertIsNone(sidecar.process.poll(), sidecar.words())

    def test_a_grant_revoked_in_mid_transfer_ends_when_no_transfer_touches_it(self):
        sidecar = self.sidecar(extra='[links.dram_to_hbm]\nthrottle = "2MB/s"')
        engine = self.engine(sidecar, slots=0)
        arena_fd = os.memfd_create("arena", os.MFD_ALLOW_SEALING)
        os.ftruncate(arena_fd, 64 * BLOCK_BYTES)
        fcntl.fcntl(arena_fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        arena = mmap.mmap(arena_fd, 64 * BLOCK_BYTES)
        engine.grant_fd(arena_fd, 64, BLOCK_BYTES, 32)
        engine.connect_wait()
        digests = digests_of(48)
        store_chain(engine, digests)
        engine.flush_wait()
        ticket = engine.fetch("request", digests, deadline=30)  # 0.4 s at that rate
        wait_until(lambda: engine.lookup(digests) > 0, "the first block")
        engine.revoke_wait(DEADLINE_S)
        before = bytes(arena)
        try:
            engine.fetch_wait(ticket)
        except foreload.Error:
            pass
        self.assertEqual(bytes(arena), before, "nothing is written after the revoke has ended")
        self.assertIsNone(sidecar.process.poll(), sidecar.words())


class Disk(Test):
    def test_a_full_disk_stops_writes_and_nothing_else(self):
        if os.geteuid() != 0:
            self.skipTest("mounting a small file system needs root")
        mount = os.path.join(self.folder, "small")
        os.mkdir(mount)
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m,mode=0700", "foreload-test", mount], check=False)
        if done.returncode != 0:
            self.skipTest("mount is not allowed here")
        try:
            sidecar = self.sidecar(ssd="256MiB", ssd_directory=mount, dram="8MiB")
            engine = self.engine(sidecar)
            engine.connect_wait()
            for family in range(6):
                store_chain(engine, digests_of(200, family=family))
            wait_until(lambda: sidecar.status()["tiers"]["ssd"]["state"] != "on", "writes stopped, in words")
            self.assertIsNone(sidecar.process.poll(), sidecar.words())
            self.assertEqual(self.fetch(engine, digests_of(1, family=9)).absent_blocks, 1)
            self.assertGreater(self.fetch(engine, digests_of(20, family=0)).ready_blocks +
                               self.fetch(engine, digests_of(20, family=5)).ready_blocks, 0)
            self.engine(sidecar, "another").connect_wait()
            sidecar.stop()
        finally:
            subprocess.run(["umount", "-l", mount], check=False)


class ObserveMode(Test):
    def test_observing_grants_nothing_and_moves_no_byte(self):
        sidecar = self.sidecar(mode="observe")
        engine = self.engine(sidecar)
        wait_until(lambda: engine.connected, "a connection")
        self.assertEqual(engine.granted_slots, 0)
        self.assertIsNone(_begin(engine))
        status = sidecar.status()
        self.assertEqual(status["mode"], "observe")
        self.assertEqual(status["movers"], {})


def _begin(engine):
    try:
        return engine.store_begin()
    except foreload.Error:
        return None


if __name__ == "__main__":
    outcome = unittest.main(verbosity=2, exit=False).result
    if outcome.skipped and len(outcome.skipped) == outcome.testsRun and outcome.wasSuccessful():
        print(f"SKIPPED: {outcome.skipped[0][1]}")
        sys.exit(77)
    sys.exit(not outcome.wasSuccessful())
