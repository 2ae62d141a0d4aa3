/* Shared-memory layout of the residency table, version 1. Plain C, so that any language can read it.
 *
 * The sidecar creates it as a memfd sealed against shrinking and is its only writer, except for three kinds of words
 * that readers write: holder bits in a slot word, a slot's `used` word, and their own reader record. The sidecar checks
 * every value that it reads back; a hostile one costs that engine its arena and nothing else.
 *
 * Little-endian, x86-64. Offsets are from the start of the mapping. All atomics are naturally aligned 64-bit words.
 */
#pragma once

#include <stdint.h>

#define FL_TABLE_MAGIC 0x314C425444414F4Cull /* "LOADTBL1" */
#define FL_TABLE_VERSION 1u
#define FL_READERS_MAX 28u
#define FL_LAYER_GROUPS_MAX 64u

/* One per mapping, at offset 0. Written before the descriptor is handed out; only `mode_word` changes later. */
typedef struct fl_table_header {
  uint64_t magic;
  uint32_t version;
  uint32_t header_bytes; /* sizeof(fl_table_header) of the writer */
  uint64_t boot_token;   /* of the sidecar that made it */
  uint64_t total_bytes;
  uint32_t engine_id;
  uint32_t slot_count;
  uint64_t bucket_count;     /* a power of two, >= 2 x slot_count */
  uint64_t buckets_offset;   /* uint64_t[bucket_count] */
  uint64_t slots_offset;     /* fl_slot[slot_count] */
  uint64_t readers_offset;   /* fl_reader[FL_READERS_MAX] */
  uint64_t layer_group_mask; /* the groups that a whole block has */
  uint64_t checksum;         /* XXH3-64 of the bytes above */
  uint64_t mode_word;        /* 1: open; 0: closed for good (arena revoked, engine refused): every look-up misses */
  uint64_t reserved[4];
} fl_table_header;

/* A bucket: (tag << 32) | (slot + 1); 0 is empty. `tag` is the high half of the key's hash; linear probing from
 * (hash & (bucket_count - 1)); at most FL_PROBE_MAX buckets. The hash is XXH3-64 of the 56 key bytes. */
#define FL_PROBE_MAX 64u

typedef struct fl_key {
  uint8_t name_space[16];
  uint8_t digest[32];
  uint64_t digest_bytes;
} fl_key; /* same bytes as foreload::BlockKey */

/* Slot word: generation << 32 | state << 28 | holders. The generation grows at each RESERVED. */
enum fl_slot_state {
  FL_SLOT_FREE = 0,
  FL_SLOT_RESERVED = 1,
  FL_SLOT_IN_FLIGHT = 2,
  FL_SLOT_READY = 3,
  FL_SLOT_RETIRED = 4
};

/* 128 bytes, aligned to 64. `key` is written only while RESERVED; readers compare it after they have pinned. */
typedef struct fl_slot {
  uint64_t word;
  fl_key key;
  uint64_t ready_mask; /* layer groups whose bytes have arrived in every rank; cleared at RESERVED */
  uint64_t used;       /* generation last used by a reader; stored while pinned */
  uint64_t reserved[6];
} fl_slot;

/* One per reader bit; written by that reader alone, counters only. */
typedef struct fl_reader {
  uint64_t lookups; /* calls */
  uint64_t hit_blocks;
  uint64_t miss_blocks;
  uint64_t epoch; /* for readers that do not pin; UINT64_MAX: idle */
  uint64_t reserved[4];
} fl_reader;

/* ---- store ring ----------------------------------------------------------------------------------------------------
 * A memfd of its own per worker: header, grant queue, commit queue, slot records, data. The sidecar grants slot numbers
 * through the first queue; begin takes one; commit writes the slot's record and pushes its number into the second
 * queue. Both are single-producer single-consumer rings of slot_count entries (rounded up to a power of two) with
 * free-running 64-bit positions. The library serialises its own threads.
 */
#define FL_RING_MAGIC 0x31474E5244414F4Cull /* "LOADRNG1" */

typedef struct fl_ring_header {
  uint64_t magic;
  uint32_t version;
  uint32_t header_bytes;
  uint64_t boot_token;
  uint64_t total_bytes;
  uint32_t slot_count;
  uint32_t queue_entries;      /* power of two >= slot_count */
  uint64_t slot_stride;        /* a multiple of 4096 */
  uint64_t slot_bytes;         /* payload of one slot, <= slot_stride */
  uint64_t grant_queue_offset; /* uint32_t[queue_entries] */
  uint64_t commit_queue_offset;
  uint64_t records_offset; /* fl_store_record[slot_count] */
  uint64_t data_offset;    /* multiple of 4096 */
  uint64_t checksum;       /* XXH3-64 of the bytes above */
  /* each position on its own cache line */
  uint64_t grant_head __attribute__((aligned(64)));  /* sidecar: granted so far */
  uint64_t grant_tail __attribute__((aligned(64)));  /* engine: taken so far */
  uint64_t commit_head __attribute__((aligned(64))); /* engine: committed so far */
  uint64_t commit_tail __attribute__((aligned(64))); /* sidecar: consumed so far */
  uint64_t sleeping __attribute__((aligned(64)));    /* 1: sidecar wants the doorbell written */
} fl_ring_header;

typedef struct fl_store_record {
  fl_key key;
  fl_key parent;  /* digest_bytes 0: root or unknown */
  uint64_t bytes; /* <= slot_bytes */
  uint64_t token; /* of the library, for messages */
} fl_store_record;

#ifdef __cplusplus
static_assert(sizeof(fl_key) == 56);
static_assert(sizeof(fl_slot) == 128);
static_assert(sizeof(fl_reader) == 64);
static_assert(sizeof(fl_table_header) == 128);
#endif
