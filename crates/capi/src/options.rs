//! Options of opening.

use crate::call::{EINVAL, Failure, Result, done, object_mut, quietly, take};
use extant::OpenOptions;
use std::ffi::c_int;
use std::time::Duration;

/// Open for reading: the device is not changed, a journal is replayed in memory.
pub const EXTANT_READ_ONLY: u32 = 1;
/// Do not replay the journal.
pub const EXTANT_NO_RECOVERY: u32 = 2;
/// Skip a damaged journal, and tell so in the recovery.
pub const EXTANT_LENIENT: u32 = 4;
/// Wait while another program uses the image.
pub const EXTANT_WAIT: u32 = 8;
/// Pass by the page cache of the host.
pub const EXTANT_DIRECT_IO: u32 = 16;
/// Tell the device of space that becomes free.
pub const EXTANT_DISCARD: u32 = 32;

/// Options of opening.
#[derive(Default)]
pub struct Options(OpenOptions);

type Setter = fn(OpenOptions) -> OpenOptions;

impl Options {
    fn set(&mut self, with: impl FnOnce(OpenOptions) -> OpenOptions) {
        self.0 = with(std::mem::take(&mut self.0));
    }
}

/// Returns the options of the caller, or the usual ones.
///
/// # Safety
/// The pointer is null, or to options that nothing changes meanwhile.
pub(crate) unsafe fn of(options: *const Options) -> OpenOptions {
    // SAFETY: as the caller promises.
    unsafe { options.as_ref() }.map_or_else(Default::default, |options| options.0.clone())
}

/// Makes options, as they are without any. Free them by `extant_options_free`. Null if there is no
/// memory.
#[unsafe(no_mangle)]
pub extern "C" fn extant_options_new() -> *mut Options {
    std::panic::catch_unwind(|| Box::into_raw(Box::default())).unwrap_or(std::ptr::null_mut())
}

/// Frees options; null is none.
///
/// # Safety
/// `extant_options_new` made them, and nothing uses them any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_options_free(options: *mut Options) {
    // SAFETY: as the caller promises.
    quietly(|| drop(unsafe { take(options) }));
}

/// Adds flags, `EXTANT_READ_ONLY` and others, to those that are set.
///
/// # Safety
/// The options are live, and nothing else uses them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_options_add(options: *mut Options, flags: u32) -> c_int {
    let setters: [(u32, Setter); 6] = [
        (EXTANT_READ_ONLY, OpenOptions::read_only),
        (EXTANT_NO_RECOVERY, OpenOptions::no_recovery),
        (EXTANT_LENIENT, OpenOptions::lenient),
        (EXTANT_WAIT, OpenOptions::wait),
        (EXTANT_DIRECT_IO, OpenOptions::direct_io),
        (EXTANT_DISCARD, OpenOptions::discard),
    ];
    done(|| {
        // SAFETY: as the caller promises.
        let options = unsafe { object_mut(options, "options") }?;
        let known = setters.iter().fold(0, |known, (flag, _)| known | flag);
        refuse_unknown(flags, known)?;
        setters.iter().filter(|(flag, _)| flags & flag != 0).for_each(|(_, set)| options.set(set));
        Ok(())
    })
}

/// Bounds all caches together, in bytes. Less than 64 MiB counts as 64 MiB; the usual bound is a
/// quarter of the memory that the process may use.
///
/// # Safety
/// The options are live, and nothing else uses them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_options_memory(options: *mut Options, bytes: u64) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { with(options, |options| options.memory(bytes)) }
}

/// Bounds the time for which a change stays in memory only, in milliseconds. At least 10; 0 stands
/// for the usual 5 seconds.
///
/// # Safety
/// The options are live, and nothing else uses them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_options_commit(options: *mut Options, millis: u32) -> c_int {
    let interval = Duration::from_millis(millis.into());
    // SAFETY: as the caller promises.
    unsafe { with(options, |options| options.commit_interval(interval)) }
}

/// Sets the number of shards of the structures that threads share; 0 stands for the number of
/// processors.
///
/// # Safety
/// The options are live, and nothing else uses them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_options_shards(options: *mut Options, count: u32) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { with(options, |options| options.shards(count as usize)) }
}

/// # Safety
/// As the functions above.
unsafe fn with(options: *mut Options, set: impl FnOnce(OpenOptions) -> OpenOptions) -> c_int {
    done(|| {
        // SAFETY: as the caller promises.
        unsafe { object_mut(options, "options") }?.set(set);
        Ok(())
    })
}

/// Refuses flags that this version does not know, since a program may rely on them.
pub(crate) fn refuse_unknown(flags: u32, known: u32) -> Result<()> {
    match flags & !known {
        0 => Ok(()),
        unknown => Err(Failure::new(EINVAL, format!("unknown flags {unknown:#x}"))),
    }
}
