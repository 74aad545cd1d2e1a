/*
 * Prints all files of an image, which does not change:
 *
 *     cc list.c $(pkg-config --cflags --libs extant) -o list && ./list disk.img
 */
#include <extant.h>
#include <inttypes.h>
#include <stdio.h>

static int fail(const char *call)
{
	fprintf(stderr, "%s: %s\n", call, extant_error());
	return 1;
}

/* Prints each entry below the root; returns 1, 0 or a negative errno of the last call. */
static int print_all(struct extant_fs *fs, struct extant_dir *walk)
{
	struct extant_entry entry;
	struct extant_stat stat;
	int found;

	while ((found = extant_dir_next(walk, &entry)) > 0) {
		int error = extant_stat(fs, entry.name, EXTANT_NOFOLLOW, &stat);
		if (error)
			return error;
		printf("%06" PRIo32 " %10" PRIu64 " %s\n", stat.mode, stat.size, entry.name);
	}
	return found;
}

int main(int argc, char **argv)
{
	struct extant_options *options = extant_options_new();
	struct extant_fs *fs = NULL;
	struct extant_dir *walk = NULL;
	int failed = 0;

	if (argc != 2) {
		fprintf(stderr, "usage: list IMAGE\n");
		failed = 2;
	} else if (extant_options_add(options, EXTANT_READ_ONLY)
		   || extant_open(argv[1], options, &fs)) {
		failed = fail("open");
	} else if (extant_walk_open(fs, "/", &walk) || print_all(fs, walk)) {
		failed = fail("walk");
	}
	/* A null pointer is none. */
	extant_dir_close(walk);
	if (fs && extant_unmount(fs))
		failed = fail("unmount");
	extant_free(fs);
	extant_options_free(options);
	return failed;
}
