/* Calls every function, with right and with wrong arguments. Takes the path of a new image. */
#include <extant.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int line_of_failure;

static void must(int holds, int line, const char *text)
{
	if (holds)
		return;
	fprintf(stderr, "line %d: %s; last error: %s\n", line, text, extant_error());
	line_of_failure = line;
	exit(1);
}

#define MUST(condition) must(!!(condition), __LINE__, #condition)
/* The call must fail with this errno and a message. */
#define FAILS(errno_, call) \
	(must((call) == -(errno_), __LINE__, #call), must(*extant_error() != 0, __LINE__, "message"))

static void names(struct extant_fs *fs)
{
	struct extant_stat stat;
	struct extant_time time = { 1700000000, 5 };
	struct extant_time wrong = { 0, 1000000000 };
	char text[64];

	MUST(!extant_mkdir(fs, "/dir", 0750));
	FAILS(EEXIST, extant_mkdir(fs, "/dir/", 0750));
	FAILS(EINVAL, extant_mkdir(fs, "/other", 010000));
	FAILS(ENOENT, extant_mkdir(fs, "/none/dir", 0750));
	FAILS(EINVAL, extant_mkdir(NULL, "/dir", 0750));
	FAILS(EINVAL, extant_mkdir(fs, NULL, 0750));
	MUST(!extant_mkdir_all(fs, "/a/b/c") && !extant_mkdir_all(fs, "/a/b/c"));
	MUST(!extant_mknod(fs, "/dir/file", S_IFREG | 0640, 0, 0));
	MUST(!extant_mknod(fs, "dir/null", S_IFCHR | 0666, 1, 3));
	FAILS(EINVAL, extant_mknod(fs, "/dir/link", S_IFLNK | 0777, 0, 0));
	MUST(!extant_stat(fs, "/dir/null", 0, &stat));
	MUST(S_ISCHR(stat.mode) && stat.device_major == 1 && stat.device_minor == 3);
	FAILS(EINVAL, extant_stat(fs, "/dir", 256, &stat));
	FAILS(EINVAL, extant_stat(fs, "/dir", 0, NULL));

	MUST(!extant_symlink(fs, "file", "/dir/link"));
	MUST(extant_readlink(fs, "/dir/link", NULL, 0) == 4);
	MUST(extant_readlink(fs, "/dir/link", text, sizeof(text)) == 4 && !memcmp(text, "file", 4));
	FAILS(ERANGE, extant_readlink(fs, "/dir/link", text, 3));
	FAILS(EINVAL, extant_readlink(fs, "/dir/link", NULL, 3 + 1));
	MUST(!extant_stat(fs, "/dir/link", EXTANT_NOFOLLOW, &stat) && S_ISLNK(stat.mode));
	MUST(!extant_chown(fs, "/dir/link", EXTANT_NOFOLLOW, 7, 8));
	MUST(!extant_stat(fs, "/dir/link", EXTANT_NOFOLLOW, &stat) && stat.uid == 7);
	MUST(!extant_chmod(fs, "/dir/link", 0600));
	MUST(!extant_utimes(fs, "/dir/link", 0, NULL, &time));
	FAILS(EINVAL, extant_utimes(fs, "/dir/link", 0, &wrong, NULL));
	MUST(!extant_truncate(fs, "/dir/link", 5000));
	MUST(!extant_stat(fs, "/dir/file", 0, &stat));
	MUST(stat.mode == (S_IFREG | 0600) && stat.uid == 0 && stat.size == 5000);
	MUST(stat.modified.sec != 0 && stat.has_created == 1);

	MUST(!extant_link(fs, "/dir/file", "/dir/second"));
	MUST(!extant_stat(fs, "/dir/second", 0, &stat) && stat.links == 2);
	MUST(!extant_rename(fs, "/dir/second", "/a/third"));
	FAILS(ENOENT, extant_unlink(fs, "/dir/second"));
	MUST(!extant_unlink(fs, "/a/third"));
	FAILS(ENOTEMPTY, extant_rmdir(fs, "/a"));
	MUST(!extant_rmdir(fs, "/a/b/c"));
}

static void attributes(struct extant_fs *fs)
{
	char text[64];

	MUST(!extant_setxattr(fs, "/dir", 0, "user.one", "1", 1));
	MUST(!extant_setxattr(fs, "/dir", EXTANT_XATTR_CREATE, "user.none", NULL, 0));
	FAILS(EEXIST, extant_setxattr(fs, "/dir", EXTANT_XATTR_CREATE, "user.one", "2", 1));
	FAILS(ENODATA, extant_setxattr(fs, "/dir", EXTANT_XATTR_REPLACE, "user.two", "2", 1));
	FAILS(EINVAL, extant_setxattr(fs, "/dir", EXTANT_XATTR_CREATE | EXTANT_XATTR_REPLACE,
				      "user.two", "2", 1));
	FAILS(EINVAL, extant_setxattr(fs, "/dir", 0, "user.two", NULL, 1));
	MUST(extant_getxattr(fs, "/dir", 0, "user.one", NULL, 0) == 1);
	MUST(extant_getxattr(fs, "/dir", 0, "user.one", text, sizeof(text)) == 1 && *text == '1');
	MUST(extant_getxattr(fs, "/dir", 0, "user.none", text, sizeof(text)) == 0);
	FAILS(ENODATA, extant_getxattr(fs, "/dir", 0, "user.two", text, sizeof(text)));
	MUST(extant_listxattr(fs, "/dir", 0, NULL, 0) == 9 + 10);
	MUST(extant_listxattr(fs, "/dir", 0, text, sizeof(text)) == 19 && !text[8]);
	MUST(!extant_removexattr(fs, "/dir", 0, "user.none"));
	FAILS(ENODATA, extant_removexattr(fs, "/dir", 0, "user.none"));
}

struct writer {
	struct extant_file *file;
	unsigned char number;
};

/* Writes every fourth block. */
static void *write_blocks(void *argument)
{
	struct writer *writer = argument;
	unsigned char block[4096];

	memset(block, writer->number, sizeof(block));
	for (uint64_t at = writer->number; at < 64; at += 4)
		MUST(!extant_file_write(writer->file, block, sizeof(block), at * sizeof(block)));
	return NULL;
}

static void threads(struct extant_file *file)
{
	pthread_t running[4];
	struct writer writers[4];
	unsigned char block[4096];

	for (int i = 0; i < 4; i++) {
		writers[i].file = file;
		writers[i].number = (unsigned char)i;
		MUST(!pthread_create(&running[i], NULL, write_blocks, &writers[i]));
	}
	for (int i = 0; i < 4; i++)
		MUST(!pthread_join(running[i], NULL));
	for (int at = 0; at < 64; at++) {
		MUST(extant_file_read(file, block, sizeof(block), (uint64_t)at * 4096) == 4096);
		MUST(block[0] == at % 4 && block[4095] == at % 4);
	}
}

static void files(struct extant_fs *fs)
{
	struct extant_file *file = NULL;
	struct extant_extent extents[64];
	struct extant_stat stat;
	uint64_t mapped = 0;
	ptrdiff_t found;
	char text[16];

	FAILS(ENOENT, extant_file_open(fs, "/none", 0, &file));
	MUST(!file);
	FAILS(EINVAL, extant_file_open(fs, "/none", 4096, &file));
	FAILS(EINVAL, extant_file_open(fs, "/none", EXTANT_CREATE, NULL));
	FAILS(ENOENT, extant_stat(fs, "/none", 0, &stat));
	MUST(!extant_file_open(fs, "/log", EXTANT_CREATE_NEW | EXTANT_APPEND, &file));
	MUST(!extant_file_write(file, "one", 3, 0) && !extant_file_write(file, "two", 3, 0));
	MUST(extant_file_read(file, text, sizeof(text), 1) == 5 && !memcmp(text, "netwo", 5));
	MUST(extant_file_read(file, text, sizeof(text), 1 << 20) == 0);
	MUST(extant_file_read(file, NULL, 0, 0) == 0);
	FAILS(EINVAL, extant_file_read(file, NULL, 1, 0));
	FAILS(EINVAL, extant_file_read(file, text, SIZE_MAX, 0));
	MUST(!extant_file_sync_data(file));
	extant_file_close(file);

	MUST(!extant_file_open(fs, "/log", 0, &file));
	FAILS(EBADF, extant_file_write(file, "x", 1, 0));
	extant_file_close(file);

	MUST(!extant_file_open(fs, "/data", EXTANT_CREATE | EXTANT_TRUNCATE | EXTANT_WRITE, &file));
	threads(file);
	MUST(!extant_file_sync(file));
	MUST(!extant_file_allocate(file, EXTANT_PUNCH, 8192, 8192));
	FAILS(EINVAL, extant_file_allocate(file, 99, 0, 4096));
	MUST(!extant_file_sync(file));
	/* Blocks may be anywhere on the disk if some were written back between the threads' writes. */
	found = extant_file_extents(file, 0, extents, 64);
	MUST(found >= 2 && extents[0].offset == 0 && extents[0].place != UINT64_MAX);
	for (int at = 0; at < found; at++) {
		MUST(!extents[at].unwritten && !extents[at].is_inline);
		MUST(extents[at].offset + extents[at].len <= 8192 || extents[at].offset >= 16384);
		mapped += extents[at].len;
	}
	MUST(mapped == 62 * 4096);
	MUST(extant_file_extents(file, 8192, extents, 1) == 1 && extents[0].offset == 16384);
	FAILS(EINVAL, extant_file_extents(file, 0, NULL, 1));
	MUST(!extant_file_truncate(file, 10) && !extant_unlink(fs, "/data"));
	MUST(!extant_file_stat(file, &stat) && stat.size == 10 && stat.links == 0);
	extant_file_close(file);
	extant_file_close(NULL);
}

static void directories(struct extant_fs *fs)
{
	struct extant_dir *dir = NULL;
	struct extant_entry entry;
	int count = 0, found;

	FAILS(ENOTDIR, extant_dir_open(fs, "/log", &dir));
	MUST(!extant_dir_open(fs, "/dir", &dir));
	while ((found = extant_dir_next(dir, &entry)) == 1) {
		MUST(strlen(entry.name) == entry.name_len && entry.inode > 11);
		MUST(strcmp(entry.name, "link") || S_ISLNK(entry.file_type));
		count++;
	}
	MUST(found == 0 && count == 3 && extant_dir_next(dir, &entry) == 0);
	MUST(!extant_walk_skip(dir));
	extant_dir_close(dir);

	MUST(!extant_walk_open(fs, "/", &dir));
	for (count = 0; (found = extant_dir_next(dir, &entry)) == 1; count++) {
		MUST(*entry.name == '/' && strcmp(entry.name, "/a/b"));
		if (!strcmp(entry.name, "/a"))
			MUST(!extant_walk_skip(dir));
	}
	MUST(found == 0 && count == 7);
	FAILS(EINVAL, extant_dir_next(NULL, &entry));
	extant_dir_close(dir);
	extant_dir_close(NULL);
}

static void whole(struct extant_fs *fs)
{
	struct extant_usage usage;
	struct extant_recovery recovery;
	struct extant_frozen *frozen = NULL;

	/* Without the blocks of metadata, as statfs(2). */
	MUST(!extant_usage(fs, &usage));
	MUST(usage.block_size * usage.blocks > 24 << 20);
	MUST(usage.block_size * usage.blocks < 32 << 20);
	MUST(usage.available <= usage.free && usage.inodes_free < usage.inodes);
	MUST(!extant_recovery(fs, &recovery) && !recovery.was_in_use && !recovery.read_only);
	MUST(!extant_freeze(fs, &frozen) && frozen && !extant_thaw(frozen) && !extant_thaw(NULL));
	MUST(!extant_sync(fs));
}

static void images(const char *image)
{
	struct extant_options *options = extant_options_new();
	struct extant_file *file = NULL;
	struct extant_fs *fs = NULL;
	struct extant_stat stat;

	MUST(options && !extant_options_add(options, EXTANT_DISCARD));
	FAILS(EINVAL, extant_options_add(options, 1u << 31));
	MUST(!extant_options_memory(options, 64 << 20) && !extant_options_commit(options, 1000));
	MUST(!extant_options_shards(options, 2));
	FAILS(EINVAL, extant_options_shards(NULL, 2));
	FAILS(EINVAL, extant_mkfs(image, 32 << 20, "no_such_feature", NULL));
	MUST(!extant_mkfs(image, 32 << 20, "^has_journal", "label"));
	FAILS(EEXIST, extant_mkfs(image, 32 << 20, NULL, NULL));
	MUST(!extant_open(image, options, &fs));
	names(fs);
	attributes(fs);
	files(fs);
	directories(fs);
	whole(fs);
	MUST(!extant_file_open(fs, "/log", 0, &file));
	MUST(!extant_unmount(fs));
	FAILS(ESTALE, extant_file_stat(file, &stat));
	FAILS(ESTALE, extant_mkdir(fs, "/late", 0755));
	extant_free(fs);
	extant_file_close(file);

	MUST(!extant_options_add(options, EXTANT_READ_ONLY));
	FAILS(EINVAL, extant_open_image(image, "vmdk", NULL, options, &fs));
	MUST(!fs);
	MUST(!extant_open_image(image, "raw", NULL, options, &fs));
	FAILS(EROFS, extant_mkdir(fs, "/new", 0755));
	/* Without an unmount: the last handle does it. */
	extant_free(fs);
	extant_options_free(options);
	extant_options_free(NULL);
	extant_free(NULL);
}

struct memory {
	char *bytes;
	int fail, released;
};

static int memory_read(void *user, void *data, size_t len, uint64_t offset)
{
	memcpy(data, ((struct memory *)user)->bytes + offset, len);
	return 0;
}

static int memory_write(void *user, const void *data, size_t len, uint64_t offset)
{
	struct memory *memory = user;

	if (memory->fail)
		return EIO;
	memcpy(memory->bytes + offset, data, len);
	return 0;
}

static int memory_flush(void *user)
{
	return ((struct memory *)user)->fail ? EIO : 0;
}

static int memory_discard(void *user, uint64_t offset, uint64_t len)
{
	memset(((struct memory *)user)->bytes + offset, 0x55, len);
	return 0;
}

static void memory_release(void *user)
{
	((struct memory *)user)->released++;
}

static void devices(void)
{
	struct memory memory = { calloc(16, 1 << 20), 0, 0 };
	struct extant_device device = { 0 };
	struct extant_fs *fs = NULL;

	device.user = &memory;
	device.len = 16 << 20;
	device.read = memory_read;
	device.release = memory_release;
	FAILS(EINVAL, extant_mkfs_device(&device, NULL, NULL));
	MUST(memory.released == 1);
	FAILS(EINVAL, extant_open_device(NULL, NULL, &fs));
	device.write = memory_write;
	device.flush = memory_flush;
	device.discard = memory_discard;
	FAILS(EINVAL, extant_mkfs_device(&device, NULL, "a label of more than 16 bytes"));
	MUST(memory.released == 2);
	MUST(!extant_mkfs_device(&device, NULL, "memory") && memory.released == 3);
	MUST(!extant_open_device(&device, NULL, &fs) && !extant_mkdir(fs, "/a", 0755));
	memory.fail = 1;
	FAILS(EIO, extant_sync(fs));
	MUST(strstr(extant_error(), "aborted"));
	memory.fail = 0;
	MUST(extant_unmount(fs) < 0);
	extant_free(fs);
	MUST(memory.released == 4);

	device.read_only = 1;
	MUST(!extant_open_device(&device, NULL, &fs));
	FAILS(EROFS, extant_mkdir(fs, "/b", 0755));
	MUST(!extant_unmount(fs));
	extant_free(fs);
	MUST(memory.released == 5);
	free(memory.bytes);
}

int main(int argc, char **argv)
{
	MUST(argc == 2 && *extant_error() == 0);
	MUST(!strncmp(extant_version(), "0.", 2));
	images(argv[1]);
	devices();
	printf("all done\n");
	return line_of_failure;
}
