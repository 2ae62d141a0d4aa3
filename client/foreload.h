/* Foreload's engine-side library: a C ABI for the processes of an inference engine.
 *
 * What it promises: nothing here waits for the sidecar except fl_close and the calls whose names end in _wait, and
 * those have a deadline of their own. With the sidecar dead, stopped or never started, look-ups miss, stores are
 * refused, and the engine loses nothing but hits.
 *
 * Processes: an engine instance is one scheduler client and N rank (worker) clients with one `instance_id`. One process
 * may be both. A client is thread-safe unless said otherwise. After fork() the child must not use it.
 *
 * Errors: functions return 0 or a negative FL_E* code; fl_error_text() has the last message of the calling thread.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FL_API_VERSION 1

enum fl_code {
  FL_OK = 0,
  FL_EINVAL = -1,   /* wrong argument */
  FL_EUNAVAIL = -2, /* no sidecar now; the library reconnects by itself */
  FL_EFULL = -3,    /* no store slot is free: this block is not stored */
  FL_ETIMEDOUT = -4,
  FL_EREFUSED = -5, /* the sidecar said no; fl_error_text() has its words */
  FL_ESTATE = -6,   /* right call, wrong moment (no arena granted, breaker open, ...) */
  FL_ESYSTEM = -7   /* errno is in the message */
};

typedef struct fl_client fl_client;

/* Layers that are transferred as one unit inside a slot. */
typedef struct fl_extent {
  uint32_t layer_group; /* < 64 */
  uint64_t offset;      /* in the slot, a multiple of 64 */
  uint64_t bytes;
} fl_extent;

typedef struct fl_options {
  uint32_t api_version;       /* FL_API_VERSION */
  const char* socket_path;    /* control socket of the sidecar */
  const char* engine;         /* instance name, unique among live instances of one sidecar */
  uint8_t instance_id[16];    /* random, the same in all processes of the instance; fl_random_id() makes one */
  int scheduler;              /* this process looks up and pins */
  int worker;                 /* this process grants memory and stores */
  uint32_t rank;              /* of a worker */
  uint32_t rank_count;        /* >= 1 */
  uint8_t name_space[16];     /* default namespace; fl_namespace() makes one */
  uint8_t layout[16];         /* fl_layout() makes one */
  const char* namespace_text; /* in words; may be NULL */
  const fl_extent* extents;   /* of one slot of this rank; a worker needs at least one */
  uint32_t extent_count;
  uint32_t block_tokens;
  double recompute_seconds_per_token; /* 0: unknown */
  int layer_major;
  int demand_only;                /* this instance wants no prediction */
  const char* telemetry_endpoint; /* access stream: "ipc:///run/foreload/engine.access", "tcp://127.0.0.1:5560", or
                                   * "insecure+tcp://0.0.0.0:5560" on a network that is trusted; NULL: none */
  uint32_t breaker_open_ms;       /* how long demand fetches fail at once after one has timed out; 0: 1000 */
} fl_options;

/* Never waits for the sidecar: connects in the background and re-registers and re-grants by itself after a restart of
 * the sidecar. Fails only for wrong options or when the machine refuses memory, threads or the telemetry socket. */
int fl_open(const fl_options* options, fl_client** client);
/* Revokes the arena (waits for the sidecar at most 5 s: its transfers must have ended), then closes. */
void fl_close(fl_client* client);

/* 1 when registered with a live sidecar, else 0. */
int fl_connected(fl_client* client);
/* Waits until fl_connected and, for a worker with an arena, until the grant is in force. For start-up and tests. */
int fl_connect_wait(fl_client* client, int64_t timeout_us);
const char* fl_error_text(void);

/* --- identity ---------------------------------------------------------------------------------------------------- */

typedef struct fl_namespace_fields {
  const char* model_revision; /* SHA-256 of the weight files in hex, or an operator's revision string */
  const char* lora;           /* content hash of the adapter; NULL or "": none */
  const char* cache_salt;     /* tenant; NULL or "": none */
  uint32_t kv_group;
  uint64_t weights_epoch;
} fl_namespace_fields;
int fl_namespace(const fl_namespace_fields* fields, uint8_t name_space[16]);

typedef struct fl_layout_fields {
  const char* dtype; /* "bfloat16" */
  uint32_t block_tokens;
  const char* kv_layout; /* "LBHNC" */
  const char* kernel;    /* kernel or ISA compatibility string */
  const char* engine_version;
  uint32_t rank_count;
} fl_layout_fields;
int fl_layout(const fl_layout_fields* fields, uint8_t layout[16]);
void fl_random_id(uint8_t id[16]);

/* Keys of one request: `count` digests of `digest_bytes` (16 to 32) each, in prefix order, under one namespace. */
typedef struct fl_keys {
  const uint8_t* name_space; /* 16 bytes; NULL: the client's default */
  const uint8_t* digests;
  uint32_t digest_bytes;
  uint32_t count;
} fl_keys;

/* --- worker: arena ----------------------------------------------------------------------------------------------- */

/* Makes host memory that can be shared (memfd, sealed against shrinking) and grants it. *base stays mapped until
 * fl_revoke_wait or fl_close. Slot i is at base + slot_stride * i. Does not wait: the grant is in force once
 * every rank has granted (fl_granted_slots). store_slots: how many store slots this worker wants. */
int fl_grant_host(fl_client* client, uint32_t slot_count, uint64_t slot_stride, uint32_t store_slots, void** base);
/* Grants memory that the caller made: a memfd of at least slot_stride * slot_count bytes, sealed with F_SEAL_SHRINK. */
int fl_grant_fd(fl_client* client, int fd, uint32_t slot_count, uint64_t slot_stride, uint32_t store_slots);
uint32_t fl_granted_slots(fl_client* client);
/* Returns when no transfer into the arena is outstanding and none will start, or the sidecar is dead. A sidecar that is
 * merely stopped keeps the memory: FL_ETIMEDOUT, and the memory must not be reused. */
int fl_revoke_wait(fl_client* client, int64_t timeout_us);

/* --- scheduler: look-up ------------------------------------------------------------------------------------------ */

typedef struct fl_pinned {
  uint32_t slot; /* in every rank's arena */
  uint32_t generation;
  uint64_t ready_mask; /* layer groups that are there now */
} fl_pinned;

/* Pins the longest prefix of `keys` whose blocks are wholly READY; fills pinned[0 .. n) and returns n (>= 0). A shared
 * memory read: no lock, no syscall. Every pin needs one fl_unpin. False misses happen, false hits never. */
int fl_lookup_pin(fl_client* client, const fl_keys* keys, fl_pinned* pinned);
/* As above without pinning and without counting as use: how many blocks of the prefix are READY now. */
int fl_lookup(fl_client* client, const fl_keys* keys);
/* `used`: the content was read (or will have been, by workers under this pin): that is what makes a prefetch useful. */
int fl_unpin(fl_client* client, const fl_pinned* pinned, uint32_t count, int used);
/* For an engine that may copy after a sidecar's death: 1 while the pinned content is still the same. */
int fl_still_valid(fl_client* client, const fl_pinned* pinned);

/* --- scheduler: demand ------------------------------------------------------------------------------------------- */

typedef struct fl_fetch_result {
  uint32_t ready_blocks; /* longest READY prefix: look up and pin them next */
  uint32_t absent_blocks;
  uint32_t failed_blocks;
  uint32_t already_ready_blocks;
  uint32_t joined_blocks; /* were in flight as prefetch */
  uint64_t bytes_from_dram;
  uint64_t bytes_from_ssd;
} fl_fetch_result;

/* Asks for blocks that a request waits for. Does not wait; *fetch is a ticket for the next two. FL_ESTATE while the
 * breaker is open, FL_EUNAVAIL without a sidecar. deadline_us counts from now. */
int fl_fetch(fl_client* client, const char* request_id, const fl_keys* keys, uint32_t first_block, int64_t deadline_us,
             uint64_t* fetch);
/* 1: done, *result filled, ticket gone. 0: not yet. FL_ETIMEDOUT: the deadline passed, ticket gone, breaker open. */
int fl_fetch_poll(fl_client* client, uint64_t fetch, fl_fetch_result* result);
/* Waits for the same, until the fetch's own deadline. */
int fl_fetch_wait(fl_client* client, uint64_t fetch, fl_fetch_result* result);

/* --- worker: store ----------------------------------------------------------------------------------------------- */

typedef struct fl_store {
  void* data;     /* slot memory: copy the block here, as one slot of the arena would hold it */
  uint64_t bytes; /* its size */
  uint64_t token;
} fl_store;

/* Takes a store slot without a syscall, or FL_EFULL (the block is not stored; counted). */
int fl_store_begin(fl_client* client, fl_store* store);
/* Publishes: keys->count must be 1; parent digest may be NULL (root or unknown). The sidecar copies and checksums
 * before the block becomes visible. With several ranks, each commits its own share under the same key. */
int fl_store_commit(fl_client* client, const fl_store* store, const fl_keys* key, const uint8_t* parent_digest);
/* Gives the slot back unused. */
int fl_store_abort(fl_client* client, const fl_store* store);

/* --- telemetry: never blocks, drops the oldest StepAccess first --------------------------------------------------- */

enum fl_request_state {
  FL_REQUEST_QUEUED = 1,
  FL_REQUEST_SCHEDULED,
  FL_REQUEST_FIRST_TOKEN,
  FL_REQUEST_FINISHED,
  FL_REQUEST_ABORTED
};
enum fl_request_kind { FL_KIND_UNKNOWN = 0, FL_KIND_HUMAN, FL_KIND_TOOL, FL_KIND_WORKFLOW };

typedef struct fl_request_event {
  const char* request_id;
  const char* session_id;        /* may be NULL */
  const char* parent_request_id; /* may be NULL */
  int state;                     /* fl_request_state */
  int kind;                      /* fl_request_kind */
  int32_t priority;
  fl_keys keys;              /* whole prompt at QUEUED; count 0: none */
  int64_t expected_start_ms; /* from now; negative: unknown */
  uint32_t prompt_tokens;
  uint32_t turn;
} fl_request_event;
int fl_emit_request(fl_client* client, const fl_request_event* event);

enum fl_hint_action { FL_HINT_EXPECT = 1, FL_HINT_PREFETCH, FL_HINT_RETAIN, FL_HINT_DEMOTE, FL_HINT_PIN };
typedef struct fl_hint {
  int action;
  const char* session_id; /* may be NULL when keys are given */
  fl_keys keys;
  int64_t eta_ms;
  int64_t sigma_ms;
  int64_t ttl_ms;
} fl_hint;
int fl_emit_hint(fl_client* client, const fl_hint* hint);

typedef struct fl_step_access {
  const char* request_id;
  uint64_t step;
  uint32_t layer_group;
  uint32_t head_group;
  const uint32_t* block_ordinals; /* ascending */
  const uint8_t* scores;          /* block_count bytes or NULL */
  uint32_t block_count;
  const uint8_t* query_sketch; /* 16 bytes or NULL */
  int sketch_source;           /* foreload.telemetry.SketchSource */
  uint32_t draft_position;
} fl_step_access;
int fl_emit_step_access(fl_client* client, const fl_step_access* access);

/* --- control ------------------------------------------------------------------------------------------------------ */

/* Everything committed before is durable when this returns 0. For shutdown and tests. */
int fl_flush_wait(fl_client* client, int64_t timeout_us);
/* Forgets a namespace in every tier. */
int fl_purge_wait(fl_client* client, const uint8_t name_space[16], int64_t timeout_us);
/* The sidecar's status document (JSON) into buf, always terminated; returns its whole length or a negative code. */
int fl_status_wait(fl_client* client, char* buf, size_t size, int64_t timeout_us);

typedef struct fl_counters {
  uint64_t lookups, hit_blocks, miss_blocks;
  uint64_t stores_begun, stores_full, stores_committed;
  uint64_t fetches, fetches_timed_out, breaker_opened;
  uint64_t events_emitted, events_dropped;
  uint64_t reconnects, regrants;
} fl_counters;
int fl_get_counters(fl_client* client, fl_counters* counters);

#ifdef __cplusplus
}
#endif
