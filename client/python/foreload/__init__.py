"""Engine-side client of the Foreload sidecar.

A thin layer over the C library (client/foreload.h, which documents every call). Look-ups, stores and telemetry never
wait; methods whose names end in `_wait` have a deadline of their own. Memory is never copied here: `slot()` and
`Store.data` are memoryviews over shared memory. A Client may be used from several threads.
"""

import ctypes
import enum

from . import _capi
from ._capi import Counters, Extent, FetchResult, Pinned

__all__ = ["EFULL", "EINVAL", "EREFUSED", "ESTATE", "ESYSTEM", "ETIMEDOUT", "EUNAVAIL", "Client", "Counters", "Error",
           "Extent", "FetchResult", "HintAction", "Pinned", "RequestKind", "RequestState", "Store", "layout",
           "name_space", "random_id"]

_lib = _capi.load()

EINVAL, EUNAVAIL, EFULL, ETIMEDOUT, EREFUSED, ESTATE, ESYSTEM = -1, -2, -3, -4, -5, -6, -7


class Error(Exception):
    """A refused call: `code` is an FL_E* value."""

    def __init__(self, code):
        super().__init__(_lib.fl_error_text().decode(errors="replace") or f"foreload error {code}")
        self.code = code


class RequestState(enum.IntEnum):
    QUEUED = 1
    SCHEDULED = 2
    FIRST_TOKEN = 3
    FINISHED = 4
    ABORTED = 5


class RequestKind(enum.IntEnum):
    UNKNOWN = 0
    HUMAN = 1
    TOOL = 2
    WORKFLOW = 3


class HintAction(enum.IntEnum):
    EXPECT = 1
    PREFETCH = 2
    RETAIN = 3
    DEMOTE = 4
    PIN = 5


def _check(code):
    if code < 0:
        raise Error(code)
    return code


def _text(value):
    return None if value is None else value.encode()


def _bytes_pointer(data):
    return ctypes.cast(ctypes.c_char_p(bytes(data)), ctypes.POINTER(ctypes.c_uint8))


def random_id():
    """16 random bytes: an instance id, the same in all processes of one engine instance."""
    out = (ctypes.c_uint8 * 16)()
    _lib.fl_random_id(out)
    return bytes(out)


def name_space(model_revision, lora=None, cache_salt=None, kv_group=0, weights_epoch=0):
    """16-byte fingerprint of what the tokens mean."""
    out = (ctypes.c_uint8 * 16)()
    fields = _capi.NamespaceFields(_text(model_revision), _text(lora), _text(cache_salt), kv_group, weights_epoch)
    _check(_lib.fl_namespace(fields, out))
    return bytes(out)


def layout(dtype, block_tokens, kv_layout, kernel="", engine_version="", rank_count=1):
    """16-byte fingerprint of how the bytes of a block lie."""
    out = (ctypes.c_uint8 * 16)()
    fields = _capi.LayoutFields(_text(dtype), block_tokens, _text(kv_layout), _text(kernel), _text(engine_version),
                                rank_count)
    _check(_lib.fl_layout(fields, out))
    return bytes(out)


class Store:
    """A store slot to fill: `data` is a writable memoryview of it."""

    def __init__(self, raw):
        self._raw = raw
        self.data = memoryview((ctypes.c_uint8 * raw.bytes).from_address(raw.data)).cast("B")


class Client:
    """One engine process. Closing revokes its arena; use it as a context manager."""

    def __init__(self, socket_path, engine, *, instance_id=None, scheduler=True, worker=True, rank=0, rank_count=1,
                 name_space=bytes(16), layout=bytes(16), namespace_text=None, extents=(), block_tokens=0,
                 recompute_seconds_per_token=0.0, layer_major=False, demand_only=False, telemetry_endpoint=None,
                 breaker_open_ms=0):
        self._extents = (Extent * max(len(extents), 1))(*extents)
        options = _capi.Options(
            api_version=_capi.API_VERSION, socket_path=_text(socket_path), engine=_text(engine),
            scheduler=scheduler, worker=worker, rank=rank, rank_count=rank_count,
            namespace_text=_text(namespace_text), extents=self._extents, extent_count=len(extents),
            block_tokens=block_tokens, recompute_seconds_per_token=recompute_seconds_per_token,
            layer_major=layer_major, demand_only=demand_only, telemetry_endpoint=_text(telemetry_endpoint),
            breaker_open_ms=breaker_open_ms)
        for field, value in (("instance_id", instance_id or random_id()), ("name_space", name_space),
                             ("layout", layout)):
            if len(value) != 16:
                raise ValueError(f"{field} must have 16 bytes")
            ctypes.memmove(getattr(options, field), bytes(value), 16)
        self._handle = ctypes.c_void_p()
        _check(_lib.fl_open(options, ctypes.byref(self._handle)))
        self._base = None
        self._stride = 0
        self._slots = 0

    def close(self):
        if self._handle:
            _lib.fl_close(self._handle)
            self._handle = ctypes.c_void_p()

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.close()

    # --- connection

    @property
    def connected(self):
        return _lib.fl_connected(self._handle) == 1

    def connect_wait(self, timeout=5.0):
        _check(_lib.fl_connect_wait(self._handle, int(timeout * 1e6)))

    # --- worker: arena

    def grant_host(self, slot_count, slot_stride, store_slots=0):
        """Makes shared host memory and grants it; `slot(i)` is a memoryview of slot i."""
        base = ctypes.c_void_p()
        _check(_lib.fl_grant_host(self._handle, slot_count, slot_stride, store_slots, ctypes.byref(base)))
        self._base, self._stride, self._slots = base.value, slot_stride, slot_count

    def grant_fd(self, fd, slot_count, slot_stride, store_slots=0):
        _check(_lib.fl_grant_fd(self._handle, fd, slot_count, slot_stride, store_slots))

    @property
    def granted_slots(self):
        return _lib.fl_granted_slots(self._handle)

    def revoke_wait(self, timeout=5.0):
        """Ends the grant. Memory that grant_host made is unmapped: keep no view of a slot across this call."""
        _check(_lib.fl_revoke_wait(self._handle, int(timeout * 1e6)))
        self._base, self._slots = None, 0

    def slot(self, index):
        """The memory of one slot of the arena that grant_host made."""
        if self._base is None or not 0 <= index < self._slots:
            raise IndexError(index)
        return memoryview((ctypes.c_uint8 * self._stride).from_address(self._base + self._stride * index)).cast("B")

    # --- scheduler: look-up and demand

    @staticmethod
    def _keys(digests, name_space=None):
        digest_bytes = len(digests[0]) if digests else 32
        return _capi.Keys(_bytes_pointer(name_space) if name_space else None, _bytes_pointer(b"".join(digests)),
                          digest_bytes, len(digests))

    def lookup_pin(self, digests, name_space=None):
        """Pins the longest prefix that is wholly READY. Every result needs an unpin."""
        pinned = (Pinned * max(len(digests), 1))()
        count = _check(_lib.fl_lookup_pin(self._handle, self._keys(digests, name_space), pinned))
        return list(pinned[:count])

    def lookup(self, digests, name_space=None):
        """How many blocks of the prefix are READY now."""
        return _check(_lib.fl_lookup(self._handle, self._keys(digests, name_space)))

    def unpin(self, pinned, used):
        array = (Pinned * max(len(pinned), 1))(*pinned)
        _check(_lib.fl_unpin(self._handle, array, len(pinned), int(used)))

    def still_valid(self, pinned):
        return _lib.fl_still_valid(self._handle, ctypes.byref(pinned)) == 1

    def fetch(self, request_id, digests, first_block=0, deadline=1.0, name_space=None):
        """Asks for blocks that a request waits for; returns a ticket for fetch_poll or fetch_wait."""
        ticket = ctypes.c_uint64()
        _check(_lib.fl_fetch(self._handle, _text(request_id), self._keys(digests, name_space), first_block,
                             int(deadline * 1e6), ctypes.byref(ticket)))
        return ticket.value

    def fetch_poll(self, ticket):
        """The FetchResult, or None while it is on its way."""
        result = FetchResult()
        return result if _check(_lib.fl_fetch_poll(self._handle, ticket, ctypes.byref(result))) == 1 else None

    def fetch_wait(self, ticket):
        result = FetchResult()
        _check(_lib.fl_fetch_wait(self._handle, ticket, ctypes.byref(result)))
        return result

    # --- worker: store

    def store_begin(self):
        """A Store to fill, or None when no slot is free (the block is then not stored)."""
        raw = _capi.Store()
        code = _lib.fl_store_begin(self._handle, ctypes.byref(raw))
        if code == EFULL:
            return None
        _check(code)
        return Store(raw)

    def store_commit(self, store, digest, parent_digest=None, name_space=None):
        store.data.release()
        parent = _bytes_pointer(parent_digest) if parent_digest else None
        _check(_lib.fl_store_commit(self._handle, store._raw, self._keys([digest], name_space), parent))

    def store_abort(self, store):
        store.data.release()
        _check(_lib.fl_store_abort(self._handle, store._raw))

    # --- telemetry

    def emit_request(self, request_id, state, *, digests=(), name_space=None, session_id=None, parent_request_id=None,
                     kind=RequestKind.UNKNOWN, priority=0, expected_start_ms=-1, prompt_tokens=0, turn=0):
        event = _capi.RequestEvent(_text(request_id), _text(session_id), _text(parent_request_id), int(state),
                                   int(kind), priority, self._keys(list(digests), name_space), expected_start_ms,
                                   prompt_tokens, turn)
        _check(_lib.fl_emit_request(self._handle, event))

    def emit_hint(self, action, *, session_id=None, digests=(), name_space=None, eta_ms=0, sigma_ms=0, ttl_ms=0):
        hint = _capi.Hint(int(action), _text(session_id), self._keys(list(digests), name_space), eta_ms, sigma_ms,
                          ttl_ms)
        _check(_lib.fl_emit_hint(self._handle, hint))

    def emit_step_access(self, request_id, step, block_ordinals, *, scores=None, layer_group=0, head_group=0,
                         query_sketch=None, sketch_source=0, draft_position=0):
        """Which blocks of its prompt a request attended to: ordinals ascending, one score byte each or none."""
        if scores is not None and len(scores) != len(block_ordinals):
            raise ValueError("one score for each block ordinal")
        if query_sketch is not None and len(query_sketch) != 16:
            raise ValueError("query_sketch must have 16 bytes")
        ordinals = (ctypes.c_uint32 * len(block_ordinals))(*block_ordinals)
        access = _capi.StepAccess(_text(request_id), step, layer_group, head_group, ordinals,
                                  None if scores is None else _bytes_pointer(scores), len(block_ordinals),
                                  None if query_sketch is None else _bytes_pointer(query_sketch), sketch_source,
                                  draft_position)
        _check(_lib.fl_emit_step_access(self._handle, access))

    # --- control

    def flush_wait(self, timeout=10.0):
        """Everything committed before is durable when this returns."""
        _check(_lib.fl_flush_wait(self._handle, int(timeout * 1e6)))

    def purge_wait(self, name_space, timeout=10.0):
        _check(_lib.fl_purge_wait(self._handle, _bytes_pointer(name_space), int(timeout * 1e6)))

    def status_wait(self, timeout=5.0):
        """The sidecar's status document (JSON text)."""
        buffer = ctypes.create_string_buffer(1 << 20)
        _check(_lib.fl_status_wait(self._handle, buffer, len(buffer), int(timeout * 1e6)))
        return buffer.value.decode()

    def counters(self):
        counters = Counters()
        _check(_lib.fl_get_counters(self._handle, ctypes.byref(counters)))
        return counters
