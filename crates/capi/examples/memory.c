/*
 * Makes a file system in memory of the program and writes a file into it. A device of any kind
 * is used in the same way.
 */
#include <extant.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int memory_read(void *user, void *data, size_t len, uint64_t offset)
{
	memcpy(data, (const char *)user + offset, len);
	return 0;
}

static int memory_write(void *user, const void *data, size_t len, uint64_t offset)
{
	memcpy((char *)user + offset, data, len);
	return 0;
}

static int memory_flush(void *user)
{
	(void)user;
	return 0;
}

static int check(int result, const char *call)
{
	if (result < 0)
		fprintf(stderr, "%s: %s\n", call, extant_error());
	return result < 0;
}

static int write_and_read(struct extant_fs *fs)
{
	static const char text[] = "hello\n";
	char back[16] = "";
	struct extant_file *file = NULL;
	int failed = check(extant_mkdir_all(fs, "/var/log"), "mkdir_all")
		|| check(extant_file_open(fs, "/var/log/today", EXTANT_CREATE, &file), "open")
		|| check(extant_file_write(file, text, strlen(text), 0), "write")
		|| check(extant_file_sync(file), "sync")
		|| check((int)extant_file_read(file, back, sizeof(back), 0), "read");

	extant_file_close(file);
	printf("%s", back);
	return failed;
}

int main(void)
{
	size_t len = 16 << 20;
	struct extant_device device = { 0 };
	struct extant_fs *fs = NULL;
	int failed;

	device.user = calloc(1, len);
	if (!device.user)
		return 1;
	device.len = len;
	device.read = memory_read;
	device.write = memory_write;
	device.flush = memory_flush;
	failed = check(extant_mkfs_device(&device, NULL, "memory"), "mkfs")
		|| check(extant_open_device(&device, NULL, &fs), "open")
		|| write_and_read(fs)
		|| check(extant_unmount(fs), "unmount");
	extant_free(fs);
	free(device.user);
	return failed;
}
