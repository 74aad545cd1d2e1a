//! The counters of a served file system as a JSON document.

use extant_engine::format::ErrorRecord;
use extant_engine::{FsStats, Operations, OrphanStats, PreallocStats};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Returns state, options and all counters, grouped by module.
pub fn document(fs: &Operations, options: &str, about: &ServerFacts) -> Vec<u8> {
    let stats = FsStats::of(fs);
    let fragmentation = fs.fragmentation();
    let document = json!({
        "state": state(&stats),
        "server": server(about),
        "sandbox": sandbox(about),
        "options": options,
        "usage": usage(&stats),
        "memory": memory(&stats),
        "pages": pages(&stats),
        "plugs": plugs(&stats),
        "space": space(&stats),
        "fragmentation": {
            "longest_free_run": fragmentation.longest,
            "trees_unknown": fragmentation.unknown,
            "free_runs_by_order": fragmentation.runs,
        },
        "cache": cache(&stats),
        "journal": journal(&stats),
        "prealloc": prealloc(&stats),
        "orphans": orphans(&stats),
    });
    document.to_string().into_bytes()
}

/// The serving process.
#[derive(Debug)]
pub struct ServerFacts {
    /// When it began to serve.
    pub begin: Instant,
    /// The kernel opens files without a request.
    pub fast_opens: bool,
    /// Requests come through io_uring.
    pub rings: AtomicBool,
    /// Parts of its sandbox with their states.
    pub containment: Vec<(&'static str, String)>,
}

fn sandbox(about: &ServerFacts) -> Value {
    let parts = about.containment.iter();
    parts.map(|(name, state)| ((*name).to_owned(), Value::from(state.as_str()))).collect()
}

fn server(about: &ServerFacts) -> Value {
    json!({
        "process": std::process::id(),
        "seconds": about.begin.elapsed().as_secs(),
        "open": if about.fast_opens { "fast" } else { "usual" },
        // Relaxed: it is stored before the first request.
        "transport": if about.rings.load(Ordering::Relaxed) { "uring" } else { "dev" },
    })
}

fn state(stats: &FsStats) -> Value {
    let health = &stats.health;
    let changes = match (health.shut_down, health.read_only) {
        (true, _) => "shut down",
        (_, true) => "read-only",
        _ => "writable",
    };
    json!({
        "changes": changes,
        "journal_aborted": health.journal_aborted,
        "stops_on_error": health.stops_on_error,
        "errors": health.errors,
        "first_error": health.first_error.as_ref().map(error),
        "last_error": health.last_error.as_ref().map(error),
    })
}

fn error(record: &ErrorRecord) -> Value {
    json!({
        "time": record.time,
        "inode": record.ino.0,
        "block": record.block.0,
        "function": record.func,
        "line": record.line,
        "code": record.errcode,
    })
}

fn usage(stats: &FsStats) -> Value {
    let usage = &stats.usage;
    json!({
        "blocks": usage.blocks,
        "free_blocks": usage.free,
        "available_blocks": usage.available,
        "inodes": usage.inodes,
        "free_inodes": usage.inodes_free,
    })
}

fn memory(stats: &FsStats) -> Value {
    json!({
        "shards": stats.shards,
        "inodes": stats.inodes_cached,
        "inodes_unused": stats.inodes_unused,
        "inodes_evicted": stats.inodes_evicted,
        "inodes_nameless": stats.inodes_nameless,
        "inodes_parked": stats.inodes_parked,
        "inodes_ahead": stats.inodes_ahead,
        "inodes_ahead_used": stats.inodes_ahead_used,
        "names": stats.names_cached,
        "names_evicted": stats.names_evicted,
        "lockref_fallbacks": stats.lockref_fallbacks,
    })
}

fn plugs(stats: &FsStats) -> Value {
    let plugs = &stats.plugs;
    json!({
        "writes": plugs.pieces,
        "requests": plugs.requests,
        "merged": plugs.pieces.saturating_sub(plugs.requests),
        "bytes": plugs.bytes,
        "files": stats.plug_files,
    })
}

fn orphans(stats: &FsStats) -> Value {
    // Without `..`: a new counter is shown, or this does not compile.
    let OrphanStats { added, listed, removed, retries } = stats.orphans;
    json!({
        "live": added.saturating_sub(removed),
        "added": added,
        "listed": listed,
        "removed": removed,
        "retries": retries,
    })
}

fn pages(stats: &FsStats) -> Value {
    let pages = &stats.pages;
    json!({
        "bytes": pages.bytes,
        "dirty_bytes": pages.dirty,
        "dirty_files": pages.dirty_files,
        "writeback_files": pages.writeback_files,
        "limit_bytes": pages.limit,
    })
}

fn space(stats: &FsStats) -> Value {
    let space = &stats.space;
    let [goal, stream, full, best, any, anywhere] = space.claims;
    json!({
        "frsp_tree_usage": space.frsp_tree_usage,
        "mb_frsp_max_mem": space.mb_frsp_max_mem,
        "frsp_cache_aggression": space.frsp_cache_aggression,
        "prefetch_block_bitmaps": u8::from(space.prefetch_block_bitmaps),
        "trees": space.trees,
        "trees_active": space.trees_active,
        "trees_inactive": space.trees_inactive,
        "trees_unknown": space.trees_unknown,
        "trees_loaded": space.trees_loaded,
        "trees_evicted": space.trees_evicted,
        "cache_hits": space.cache_hits,
        "bitmaps_read": space.bitmaps_read,
        "bitmaps_scanned": space.bitmaps_scanned,
        "claims_at_goal": goal,
        "claims_at_stream": stream,
        "claims_criterion_0": full,
        "claims_criterion_1": best,
        "claims_criterion_2": any,
        "claims_anywhere": anywhere,
        "advice": space.advice,
        "advice_busy": space.advice_busy,
        "advice_unknown": space.advice_unknown,
        "index_bytes": space.index_bytes,
    })
}

fn cache(stats: &FsStats) -> Value {
    let cache = &stats.cache;
    json!({
        "blocks": cache.blocks,
        "bytes": cache.bytes,
        "pinned": cache.pinned,
        "hits": cache.hits,
        "misses": cache.misses,
        "read_ahead": cache.read_ahead,
        "evictions": cache.evictions,
    })
}

fn journal(stats: &FsStats) -> Value {
    let journal = &stats.journal;
    json!({
        "commits": journal.commits,
        "waits": journal.waits,
        "shared_waits": journal.shared_waits,
        "blocks_logged": journal.blocks_logged,
        "log_blocks": journal.log_blocks,
        "writes": journal.writes,
        "requests": journal.requests,
        "writes_merged": journal.writes.saturating_sub(journal.requests),
        "revokes": journal.revokes,
        "escapes": journal.escapes,
        "checkpoints": journal.checkpoints,
        "blocks_checkpointed": journal.blocks_checkpointed,
        "room_waits": journal.room_waits,
        "tail_moves": journal.tail_moves,
        "flushes": journal.flushes,
        "flushes_shared": journal.flushes_shared,
        "start_waits": journal.start_waits,
        "overdrawn": journal.overdrawn,
    })
}

fn prealloc(stats: &FsStats) -> Value {
    let PreallocStats { pa, lg, live, blocks, bytes, created, discarded, .. } = stats.prealloc;
    let PreallocStats { discard_visited, searches, visited, .. } = stats.prealloc;
    let PreallocStats { small_hits, small_misses, .. } = stats.prealloc;
    json!({
        "pa": u8::from(pa),
        "lg": lg,
        "live": live,
        "blocks": blocks,
        "bytes": bytes,
        "created": created,
        "discarded": discarded,
        "discard_visited": discard_visited,
        "searches": searches,
        "visited": visited,
        "small_hits": small_hits,
        "small_misses": small_misses,
    })
}
