"""The C API of client/foreload.h, as ctypes sees it."""

import ctypes
import os
from ctypes import (POINTER, Structure, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t, c_uint8, c_uint32,
                    c_uint64, c_void_p)

API_VERSION = 1


class Extent(Structure):
    """Layers that are transferred as one unit inside a slot."""
    _fields_ = [("layer_group", c_uint32), ("offset", c_uint64), ("bytes", c_uint64)]


class Options(Structure):
    _fields_ = [("api_version", c_uint32), ("socket_path", c_char_p), ("engine", c_char_p),
                ("instance_id", c_uint8 * 16), ("scheduler", c_int), ("worker", c_int), ("rank", c_uint32),
                ("rank_count", c_uint32), ("name_space", c_uint8 * 16), ("layout", c_uint8 * 16),
                ("namespace_text", c_char_p), ("extents", POINTER(Extent)), ("extent_count", c_uint32),
                ("block_tokens", c_uint32), ("recompute_seconds_per_token", c_double), ("layer_major", c_int),
                ("demand_only", c_int), ("telemetry_endpoint", c_char_p), ("breaker_open_ms", c_uint32)]


class NamespaceFields(Structure):
    _fields_ = [("model_revision", c_char_p), ("lora", c_char_p), ("cache_salt", c_char_p), ("kv_group", c_uint32),
                ("weights_epoch", c_uint64)]


class LayoutFields(Structure):
    _fields_ = [("dtype", c_char_p), ("block_tokens", c_uint32), ("kv_layout", c_char_p), ("kernel", c_char_p),
                ("engine_version", c_char_p), ("rank_count", c_uint32)]


class Keys(Structure):
    _fields_ = [("name_space", POINTER(c_uint8)), ("digests", POINTER(c_uint8)), ("digest_bytes", c_uint32),
                ("count", c_uint32)]


class Pinned(Structure):
    """A pinned slot: the same number in every rank's arena."""
    _fields_ = [("slot", c_uint32), ("generation", c_uint32), ("ready_mask", c_uint64)]


class FetchResult(Structure):
    _fields_ = [("ready_blocks", c_uint32), ("absent_blocks", c_uint32), ("failed_blocks", c_uint32),
                ("already_ready_blocks", c_uint32), ("joined_blocks", c_uint32), ("bytes_from_dram", c_uint64),
                ("bytes_from_ssd", c_uint64)]


class Store(Structure):
    _fields_ = [("data", c_void_p), ("bytes", c_uint64), ("token", c_uint64)]


class RequestEvent(Structure):
    _fields_ = [("request_id", c_char_p), ("session_id", c_char_p), ("parent_request_id", c_char_p), ("state", c_int),
                ("kind", c_int), ("priority", c_int32), ("keys", Keys), ("expected_start_ms", c_int64),
                ("prompt_tokens", c_uint32), ("turn", c_uint32)]


class Hint(Structure):
    _fields_ = [("action", c_int), ("session_id", c_char_p), ("keys", Keys), ("eta_ms", c_int64), ("sigma_ms", c_int64),
                ("ttl_ms", c_int64)]


class StepAccess(Structure):
    _fields_ = [("request_id", c_char_p), ("step", c_uint64), ("layer_group", c_uint32), ("head_group", c_uint32),
                ("block_ordinals", POINTER(c_uint32)), ("scores", POINTER(c_uint8)), ("block_count", c_uint32),
                ("query_sketch", POINTER(c_uint8)), ("sketch_source", c_int), ("draft_position", c_uint32)]


class Counters(Structure):
    _fields_ = [(name, c_uint64) for name in (
        "lookups", "hit_blocks", "miss_blocks", "stores_begun", "stores_full", "stores_committed", "fetches",
        "fetches_timed_out", "breaker_opened", "events_emitted", "events_dropped", "reconnects", "regrants")]


_PROTOTYPES = {
    "fl_open": [POINTER(Options), POINTER(c_void_p)],
    "fl_connected": [c_void_p],
    "fl_connect_wait": [c_void_p, c_int64],
    "fl_namespace": [POINTER(NamespaceFields), POINTER(c_uint8)],
    "fl_layout": [POINTER(LayoutFields), POINTER(c_uint8)],
    "fl_grant_host": [c_void_p, c_uint32, c_uint64, c_uint32, POINTER(c_void_p)],
    "fl_grant_fd": [c_void_p, c_int, c_uint32, c_uint64, c_uint32],
    "fl_revoke_wait": [c_void_p, c_int64],
    "fl_lookup_pin": [c_void_p, POINTER(Keys), POINTER(Pinned)],
    "fl_lookup": [c_void_p, POINTER(Keys)],
    "fl_unpin": [c_void_p, POINTER(Pinned), c_uint32, c_int],
    "fl_still_valid": [c_void_p, POINTER(Pinned)],
    "fl_fetch": [c_void_p, c_char_p, POINTER(Keys), c_uint32, c_int64, POINTER(c_uint64)],
    "fl_fetch_poll": [c_void_p, c_uint64, POINTER(FetchResult)],
    "fl_fetch_wait": [c_void_p, c_uint64, POINTER(FetchResult)],
    "fl_store_begin": [c_void_p, POINTER(Store)],
    "fl_store_commit": [c_void_p, POINTER(Store), POINTER(Keys), POINTER(c_uint8)],
    "fl_store_abort": [c_void_p, POINTER(Store)],
    "fl_emit_request": [c_void_p, POINTER(RequestEvent)],
    "fl_emit_hint": [c_void_p, POINTER(Hint)],
    "fl_emit_step_access": [c_void_p, POINTER(StepAccess)],
    "fl_flush_wait": [c_void_p, c_int64],
    "fl_purge_wait": [c_void_p, POINTER(c_uint8), c_int64],
    "fl_status_wait": [c_void_p, c_char_p, c_size_t, c_int64],
    "fl_get_counters": [c_void_p, POINTER(Counters)],
}


def load():
    library = ctypes.CDLL(os.environ.get("FORELOAD_LIBRARY", "libforeload.so.1"))
    for name, arguments in _PROTOTYPES.items():
        function = getattr(library, name)
        function.argtypes = arguments
        function.restype = c_int
    library.fl_close.argtypes = [c_void_p]
    library.fl_close.restype = None
    library.fl_error_text.argtypes = []
    library.fl_error_text.restype = c_char_p
    library.fl_random_id.argtypes = [POINTER(c_uint8)]
    library.fl_random_id.restype = None
    library.fl_granted_slots.argtypes = [c_void_p]
    library.fl_granted_slots.restype = c_uint32
    return library

