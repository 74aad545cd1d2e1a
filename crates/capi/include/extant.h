/* The C interface of extant: ext4 in user space. License: MIT OR Apache-2.0. */

#ifndef EXTANT_H
#define EXTANT_H

/* Written by `make header` from crates/capi/src. */

#include <stddef.h>
#include <stdint.h>

/*
 * Functions that return an int give 0 or, after an error, a negative errno; extant_error() has the
 * message then. Those that return a number give a negative errno in place of it. Paths and names
 * are bytes that end with a zero byte. docs/c.md has the owner of each object.
 */

/*
 Allow changes of content. A file is open for reading in any case.
 */
#define EXTANT_WRITE 1

/*
 Send every write to the end of the file. Implies `EXTANT_WRITE`.
 */
#define EXTANT_APPEND 2

/*
 Cut the file to no bytes. Implies `EXTANT_WRITE`.
 */
#define EXTANT_TRUNCATE 4

/*
 Make the file if there is none. Implies `EXTANT_WRITE`.
 */
#define EXTANT_CREATE 8

/*
 Make the file, which must not be there. Implies `EXTANT_WRITE`.
 */
#define EXTANT_CREATE_NEW 16

/*
 Take space, and let the file grow.
 */
#define EXTANT_ALLOCATE 0

/*
 Take space, also behind the end of the file, which stays.
 */
#define EXTANT_ALLOCATE_KEEP_SIZE 1

/*
 Free space and leave a hole.
 */
#define EXTANT_PUNCH 2

/*
 Let the range read as zeroes.
 */
#define EXTANT_ZERO 3

/*
 As `EXTANT_ZERO`; the end of the file stays.
 */
#define EXTANT_ZERO_KEEP_SIZE 4

/*
 Remove the range; content behind it moves.
 */
#define EXTANT_COLLAPSE 5

/*
 Insert a hole; content behind it moves.
 */
#define EXTANT_INSERT 6

/*
 Open for reading: the device is not changed, a journal is replayed in memory.
 */
#define EXTANT_READ_ONLY 1

/*
 Do not replay the journal.
 */
#define EXTANT_NO_RECOVERY 2

/*
 Skip a damaged journal, and tell so in the recovery.
 */
#define EXTANT_LENIENT 4

/*
 Wait while another program uses the image.
 */
#define EXTANT_WAIT 8

/*
 Pass by the page cache of the host.
 */
#define EXTANT_DIRECT_IO 16

/*
 Tell the device of space that becomes free.
 */
#define EXTANT_DISCARD 32

/*
 Look at a symlink itself.
 */
#define EXTANT_NOFOLLOW 1

/*
 Set an attribute only if there is none of the name.
 */
#define EXTANT_XATTR_CREATE 2

/*
 Set an attribute only if there is one of the name.
 */
#define EXTANT_XATTR_REPLACE 4

/*
 The entries of a directory, or of a tree. One thread uses it at a time.
 */
struct extant_dir;

/*
 An open file. Any number of threads may use it at once.
 */
struct extant_file;

/*
 A file system that holds still.
 */
struct extant_frozen;

/*
 An open file system. Any number of threads may use it at once.
 */
struct extant_fs;

/*
 Options of opening.
 */
struct extant_options;

/*
 An entry of a directory, or of a walk.
 */
struct extant_entry {
  /*
   Name, or path in a walk: bytes that end with a zero byte, not always UTF-8.
   */
  const char *name;
  /*
   Bytes of the name.
   */
  size_t name_len;
  /*
   Number of the inode.
   */
  uint32_t inode;
  /*
   Type, as the bits `S_IFMT` of `st_mode`; 0 where directories keep none.
   */
  uint32_t file_type;
  /*
   Directories between the beginning of a walk and the entry.
   */
  uint32_t depth;
};

/*
 A time: seconds since 1970, and nanoseconds.
 */
struct extant_time {
  /*
   Seconds; negative before 1970.
   */
  int64_t sec;
  /*
   Nanoseconds, below 1,000,000,000.
   */
  uint32_t nsec;
};

/*
 Attributes of an inode, all of one moment.
 */
struct extant_stat {
  /*
   Number of the inode.
   */
  uint32_t inode;
  /*
   Number and generation together are never given to another inode.
   */
  uint32_t generation;
  /*
   Type and permissions, as `st_mode`.
   */
  uint32_t mode;
  /*
   Number of links.
   */
  uint32_t links;
  /*
   Owner.
   */
  uint32_t uid;
  /*
   Group.
   */
  uint32_t gid;
  /*
   Major number of a device file.
   */
  uint32_t device_major;
  /*
   Minor number of a device file.
   */
  uint32_t device_minor;
  /*
   Flags as chattr(1) has them, such as 0x10 for immutable.
   */
  uint32_t flags;
  /*
   1 if the time of creation is known.
   */
  uint32_t has_created;
  /*
   Length in bytes.
   */
  uint64_t size;
  /*
   Space that the inode takes, in units of 512 bytes.
   */
  uint64_t sectors;
  /*
   Time of the last access.
   */
  struct extant_time accessed;
  /*
   Time of the last change of content.
   */
  struct extant_time modified;
  /*
   Time of the last change of the inode.
   */
  struct extant_time changed;
  /*
   Time of creation.
   */
  struct extant_time created;
};

/*
 A part of a file that lies in one place.
 */
struct extant_extent {
  /*
   Offset in the file, in bytes.
   */
  uint64_t offset;
  /*
   Length in bytes.
   */
  uint64_t len;
  /*
   Offset on the device, in bytes; `UINT64_MAX` for content in the inode, or without a place so
   far.
   */
  uint64_t place;
  /*
   1 if the space is allocated and reads as zeroes.
   */
  uint32_t unwritten;
  /*
   1 if the content lies in the inode.
   */
  uint32_t is_inline;
};

/*
 A device of the caller. Any number of threads call its functions at once. Each returns 0, or an
 errno as a positive number.
 */
struct extant_device {
  /*
   The first argument of each function.
   */
  void *user;
  /*
   Length in bytes.
   */
  uint64_t len;
  /*
   1 if writes are refused.
   */
  uint32_t read_only;
  /*
   Fills a buffer with bytes from an offset, all of them.
   */
  int (*read)(void *user, void *data, size_t len, uint64_t offset);
  /*
   Writes bytes at an offset, all of them. Null if writes are refused.
   */
  int (*write)(void *user, const void *data, size_t len, uint64_t offset);
  /*
   Makes all writes durable that have returned. Null if writes are refused.
   */
  int (*flush)(void *user);
  /*
   Bytes that are no longer used, whose content may be lost. May be null.
   */
  int (*discard)(void *user, uint64_t offset, uint64_t len);
  /*
   Is called once, when nothing uses the device any more, also if it could not be opened. May
   be null.
   */
  void (*release)(void *user);
};

/*
 Space of a file system, in blocks, and inodes.
 */
struct extant_usage {
  /*
   Bytes of a block.
   */
  uint32_t block_size;
  /*
   All blocks.
   */
  uint64_t blocks;
  /*
   Free blocks.
   */
  uint64_t free;
  /*
   Free blocks that users other than root may take.
   */
  uint64_t available;
  /*
   All inodes.
   */
  uint64_t inodes;
  /*
   Free inodes.
   */
  uint64_t inodes_free;
};

/*
 The work of recovery when a file system was opened.
 */
struct extant_recovery {
  /*
   1 if the file system had not been unmounted.
   */
  uint32_t was_in_use;
  /*
   1 if the device has not changed: the journal is replayed for this opening only.
   */
  uint32_t in_memory;
  /*
   1 if a damaged journal was skipped (`EXTANT_LENIENT`).
   */
  uint32_t skipped;
  /*
   1 if the file system can be read only, though the options allow changes.
   */
  uint32_t read_only;
  /*
   Transactions of the journal that were replayed.
   */
  uint32_t transactions;
  /*
   Blocks that they brought to their places.
   */
  uint64_t blocks;
  /*
   Orphan inodes that were freed.
   */
  uint64_t orphans_freed;
  /*
   Orphan inodes that were cut to their length.
   */
  uint64_t orphans_truncated;
  /*
   Orphan records that named no valid inode.
   */
  uint64_t orphans_invalid;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Returns the message of the last call that failed on this thread, empty if none did. It is valid
 until another call fails on this thread, or the thread ends.
 */
const char *extant_error(void);

/*
 Returns the version of the library, such as "0.1.0".
 */
const char *extant_version(void);

/*
 Opens a directory for `extant_dir_next`.

 # Safety
 The file system is live, the path is text, `dir` is a place for a pointer.
 */
int extant_dir_open(const struct extant_fs *fs, const char *path, struct extant_dir **dir);

/*
 Begins a walk through all entries below a directory, each directory before its entries, for
 `extant_dir_next`. Names are paths then. Symlinks are not followed.

 # Safety
 As `extant_dir_open`.
 */
int extant_walk_open(const struct extant_fs *fs, const char *path, struct extant_dir **dir);

/*
 Gives the next entry, and returns 1, or 0 behind the last one. "." and ".." are left out. The
 name is valid until the next call for the same directory. After an error the next call goes on
 behind it.

 # Safety
 The directory is live, and nothing else uses it; `entry` is a place.
 */
int extant_dir_next(struct extant_dir *dir, struct extant_entry *entry);

/*
 Leaves out the entries below the directory that `extant_dir_next` gave last in a walk.

 # Safety
 The directory is live, and nothing else uses it.
 */
int extant_walk_skip(struct extant_dir *dir);

/*
 Closes a directory or a walk and frees it; null is none.

 # Safety
 `extant_dir_open` or `extant_walk_open` gave it, and nothing uses it any more.
 */
void extant_dir_close(struct extant_dir *dir);

/*
 Opens a file. `flags` are `EXTANT_WRITE` and others, or 0 to read. A new file belongs to root
 and has permissions 0644.

 # Safety
 The file system is live, the path is text, `file` is a place for a pointer.
 */
int extant_file_open(const struct extant_fs *fs,
                     const char *path,
                     uint32_t flags,
                     struct extant_file **file);

/*
 Closes a file and frees it; null is none. Changes are not lost, and not durable yet: see
 `extant_file_sync`.

 # Safety
 `extant_file_open` gave it, and no thread uses it any more.
 */
void extant_file_close(struct extant_file *file);

/*
 Reads bytes from an offset. Returns their number: less than `len` at the end of the file only.

 # Safety
 The file is live, the buffer has `len` bytes.
 */
ptrdiff_t extant_file_read(const struct extant_file *file, void *data, size_t len, uint64_t offset);

/*
 Writes bytes at an offset, all of them or, after an error, a part. A file that was opened to
 append takes them at its end.

 # Safety
 The file is live, the data has `len` bytes.
 */
int extant_file_write(const struct extant_file *file,
                      const void *data,
                      size_t len,
                      uint64_t offset);

/*
 Tells the attributes of an open file, also of one without a name.

 # Safety
 The file is live, `stat` is a place.
 */
int extant_file_stat(const struct extant_file *file, struct extant_stat *stat);

/*
 Cuts a file to a length in bytes, or lets it grow with a hole.

 # Safety
 The file is live.
 */
int extant_file_truncate(const struct extant_file *file, uint64_t len);

/*
 Changes the space of a range in bytes, as fallocate(2): `how` is `EXTANT_ALLOCATE` or another.

 # Safety
 The file is live.
 */
int extant_file_allocate(const struct extant_file *file,
                         uint32_t how,
                         uint64_t offset,
                         uint64_t len);

/*
 Tells the parts of a file: writes at most `count` of them, from the first that ends behind
 `offset`, and returns how many. Less than `count` are the last ones.

 # Safety
 The file is live, `extents` has `count` places.
 */
ptrdiff_t extant_file_extents(const struct extant_file *file,
                              uint64_t offset,
                              struct extant_extent *extents,
                              size_t count);

/*
 Makes content and attributes of a file durable, and the names that lead to it.

 # Safety
 The file is live.
 */
int extant_file_sync(const struct extant_file *file);

/*
 As `extant_file_sync`, without attributes that are not needed to read the content.

 # Safety
 The file is live.
 */
int extant_file_sync_data(const struct extant_file *file);

/*
 Opens an image file or a block device. Options may be null.

 # Safety
 The path is text, the options are live, `fs` is a place for a pointer.
 */
int extant_open(const char *path, const struct extant_options *options, struct extant_fs **fs);

/*
 Opens a disk image in the format "raw" or "qcow2". `backing` is null, or a list of the files
 below an overlay that ends with a null pointer, each as `FILE` (raw) or `FILE:FORMAT`: files
 that only the image names are never opened.

 # Safety
 As `extant_open`; the list holds text.
 */
int extant_open_image(const char *path,
                      const char *format,
                      const char *const *backing,
                      const struct extant_options *options,
                      struct extant_fs **fs);

/*
 Opens the file system on a device of the caller, which is copied: it may go after the call. Its
 function `release` is called once, also after an error. Options may be null.

 # Safety
 The functions of the device fulfil their descriptions; as `extant_open`.
 */
int extant_open_device(const struct extant_device *device,
                       const struct extant_options *options,
                       struct extant_fs **fs);

/*
 Writes all changes and releases the device. Calls on handles fail with `ESTALE` from now on. The
 object stays, for `extant_free`.

 # Safety
 The file system is live.
 */
int extant_unmount(const struct extant_fs *fs);

/*
 Frees a file system; null is none. One that is not unmounted is so once all its files and
 directories are freed, but an error of that is lost.

 # Safety
 A function of this library gave it, and no thread uses it any more.
 */
void extant_free(struct extant_fs *fs);

/*
 Makes all changes durable that have returned.

 # Safety
 The file system is live.
 */
int extant_sync(const struct extant_fs *fs);

/*
 Makes all changes durable, and lets new ones wait until `extant_thaw`: the device may be copied.

 # Safety
 The file system is live, `frozen` is a place for a pointer.
 */
int extant_freeze(const struct extant_fs *fs, struct extant_frozen **frozen);

/*
 Ends `extant_freeze`, and frees its object; null is none.

 # Safety
 `extant_freeze` gave it.
 */
int extant_thaw(struct extant_frozen *frozen);

/*
 Tells space and inodes of a file system.

 # Safety
 The file system is live, `usage` is a place.
 */
int extant_usage(const struct extant_fs *fs, struct extant_usage *usage);

/*
 Tells the work of recovery when a file system was opened.

 # Safety
 The file system is live, `recovery` is a place.
 */
int extant_recovery(const struct extant_fs *fs, struct extant_recovery *recovery);

/*
 Makes an image file with an empty file system. The file must not be there. `size` is its length
 in bytes. `features` is null or a list as mke2fs(8) takes it, such as "^has_journal,casefold";
 `label` is null or a label of at most 16 bytes.

 # Safety
 Path, features and label are text.
 */
int extant_mkfs(const char *path, uint64_t size, const char *features, const char *label);

/*
 Makes an empty file system on a device of the caller, whose content is lost. The function
 `release` of the device is called once.

 # Safety
 The functions of the device fulfil their descriptions; features and label are null or text.
 */
int extant_mkfs_device(const struct extant_device *device, const char *features, const char *label);

/*
 Makes options, as they are without any. Free them by `extant_options_free`. Null if there is no
 memory.
 */
struct extant_options *extant_options_new(void);

/*
 Frees options; null is none.

 # Safety
 `extant_options_new` made them, and nothing uses them any more.
 */
void extant_options_free(struct extant_options *options);

/*
 Adds flags, `EXTANT_READ_ONLY` and others, to those that are set.

 # Safety
 The options are live, and nothing else uses them.
 */
int extant_options_add(struct extant_options *options, uint32_t flags);

/*
 Bounds all caches together, in bytes. Less than 64 MiB counts as 64 MiB; the usual bound is a
 quarter of the memory that the process may use.

 # Safety
 The options are live, and nothing else uses them.
 */
int extant_options_memory(struct extant_options *options, uint64_t bytes);

/*
 Bounds the time for which a change stays in memory only, in milliseconds. At least 10; 0 stands
 for the usual 5 seconds.

 # Safety
 The options are live, and nothing else uses them.
 */
int extant_options_commit(struct extant_options *options, uint32_t millis);

/*
 Sets the number of shards of the structures that threads share; 0 stands for the number of
 processors.

 # Safety
 The options are live, and nothing else uses them.
 */
int extant_options_shards(struct extant_options *options, uint32_t count);

/*
 Tells the attributes of an inode. `flags` is 0 or `EXTANT_NOFOLLOW`.

 # Safety
 The file system is live, the path is text, `stat` is a place.
 */
int extant_stat(const struct extant_fs *fs,
                const char *path,
                uint32_t flags,
                struct extant_stat *stat);

/*
 Sets permission bits (07777). A symlink at the end is followed.

 # Safety
 The file system is live, the path is text.
 */
int extant_chmod(const struct extant_fs *fs, const char *path, uint32_t mode);

/*
 Sets owner and group. `flags` is 0 or `EXTANT_NOFOLLOW`.

 # Safety
 The file system is live, the path is text.
 */
int extant_chown(const struct extant_fs *fs,
                 const char *path,
                 uint32_t flags,
                 uint32_t uid,
                 uint32_t gid);

/*
 Sets the times of access and of change; one whose pointer is null stays. `flags` is 0 or
 `EXTANT_NOFOLLOW`.

 # Safety
 The file system is live, the path is text, the times are null or live.
 */
int extant_utimes(const struct extant_fs *fs,
                  const char *path,
                  uint32_t flags,
                  const struct extant_time *accessed,
                  const struct extant_time *modified);

/*
 Cuts a file to a length in bytes, or lets it grow with a hole.

 # Safety
 The file system is live, the path is text.
 */
int extant_truncate(const struct extant_fs *fs, const char *path, uint64_t len);

/*
 Makes a directory that belongs to root, with permission bits (07777).

 # Safety
 The file system is live, the path is text.
 */
int extant_mkdir(const struct extant_fs *fs, const char *path, uint32_t mode);

/*
 Makes a directory and those above it that are missing, with permissions 0755. One that is there
 is no error.

 # Safety
 The file system is live, the path is text.
 */
int extant_mkdir_all(const struct extant_fs *fs, const char *path);

/*
 Makes a file, device file, FIFO or socket that belongs to root. `mode` has the type (`S_IFREG`
 and others) and permission bits. The numbers are those of a device file.

 # Safety
 The file system is live, the path is text.
 */
int extant_mknod(const struct extant_fs *fs,
                 const char *path,
                 uint32_t mode,
                 uint32_t major,
                 uint32_t minor);

/*
 Removes the name of a file, symlink or device file.

 # Safety
 The file system is live, the path is text.
 */
int extant_unlink(const struct extant_fs *fs, const char *path);

/*
 Removes an empty directory.

 # Safety
 The file system is live, the path is text.
 */
int extant_rmdir(const struct extant_fs *fs, const char *path);

/*
 Gives an inode another name, as rename(2): one that has the new name is replaced.

 # Safety
 The file system is live, the paths are text.
 */
int extant_rename(const struct extant_fs *fs, const char *from, const char *to);

/*
 Makes a symlink at a path, to a target that need not exist.

 # Safety
 The file system is live, target and path are text.
 */
int extant_symlink(const struct extant_fs *fs, const char *target, const char *path);

/*
 Gives an inode a further name.

 # Safety
 The file system is live, the paths are text.
 */
int extant_link(const struct extant_fs *fs, const char *original, const char *path);

/*
 Reads the target of a symlink into a buffer, without a zero byte at the end. Returns its length;
 with `len` 0 that alone. `ERANGE` if the buffer is too short.

 # Safety
 The file system is live, the path is text, the buffer has `len` bytes.
 */
ptrdiff_t extant_readlink(const struct extant_fs *fs, const char *path, void *data, size_t len);

/*
 Reads an extended attribute, such as "user.name", into a buffer. Returns the length of its
 value; with `len` 0 that alone. `ENODATA` if there is none, `ERANGE` if the buffer is too short.
 `flags` is 0 or `EXTANT_NOFOLLOW`.

 # Safety
 The file system is live, path and name are text, the buffer has `len` bytes.
 */
ptrdiff_t extant_getxattr(const struct extant_fs *fs,
                          const char *path,
                          uint32_t flags,
                          const char *name,
                          void *data,
                          size_t len);

/*
 Reads the names of all extended attributes into a buffer, each with a zero byte at its end.
 Returns the length of all; with `len` 0 that alone. `ERANGE` if the buffer is too short. `flags`
 is 0 or `EXTANT_NOFOLLOW`.

 # Safety
 The file system is live, the path is text, the buffer has `len` bytes.
 */
ptrdiff_t extant_listxattr(const struct extant_fs *fs,
                           const char *path,
                           uint32_t flags,
                           void *data,
                           size_t len);

/*
 Sets an extended attribute. `flags` may have `EXTANT_NOFOLLOW`, and `EXTANT_XATTR_CREATE` or
 `EXTANT_XATTR_REPLACE`.

 # Safety
 The file system is live, path and name are text, the value has `len` bytes.
 */
int extant_setxattr(const struct extant_fs *fs,
                    const char *path,
                    uint32_t flags,
                    const char *name,
                    const void *value,
                    size_t len);

/*
 Removes an extended attribute. `flags` is 0 or `EXTANT_NOFOLLOW`.

 # Safety
 The file system is live, path and name are text.
 */
int extant_removexattr(const struct extant_fs *fs,
                       const char *path,
                       uint32_t flags,
                       const char *name);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* EXTANT_H */
