# Extant: `make run` shows it at work, `make test` passes the tests. Each installs missing tools.

CARGO ?= cargo
BENCH_RUNS ?= 5
PAIR_RUNS ?= 15
FUZZ_SECONDS ?= 3600
CRASH_SECONDS ?= 3600
CRASH_WORKERS ?= 2
FIGURES ?= docs/figures.tsv
# Where cargo puts programs.
TARGET = $(shell scripts/target.sh)

.PHONY: all install uninstall capi install-capi header deb static packages run test test-builds bench bench-images bench-check bench-codecs bench-nbd boot pages fsmark space designs contention scale fuzz instructions lab mutants images check-images check-mutants repair-images repair-mutants repair-flips real rings crash devices kills stress inputs reliability conformance xfstests xfstests-tools coverage lint publishable tidy surface portable loom races python test-python fleet store ceph setup clean

# All programs. `make python` builds the Python package, whose link takes minutes.
all:
	$(CARGO) build --release --workspace --exclude extant-python

# The program, its manual pages, completions, helpers of mount(8) and units of systemd, below PREFIX.
# The program that `make` has built is installed as it is, so that root needs no cargo.
PREFIX ?= /usr/local
PROGRAM ?= $(TARGET)/release/extant
install uninstall: export PREFIX := $(PREFIX)
install uninstall: export DESTDIR := $(DESTDIR)
install uninstall: export HELPERDIR := $(HELPERDIR)
install uninstall: export UNITDIR := $(UNITDIR)
install uninstall: export ZSHDIR := $(ZSHDIR)
install:
	@[ -x "$(PROGRAM)" ] || $(CARGO) build --release -p extant-cli
	@scripts/install.sh install "$(PROGRAM)"

uninstall:
	@scripts/install.sh uninstall

# The library for programs in C, shared and static: docs/c.md. Then with its header and a file of
# pkg-config below PREFIX.
capi:
	$(CARGO) rustc --release -p extant-capi --crate-type cdylib,staticlib

install-capi: export PREFIX := $(PREFIX)
install-capi: export DESTDIR := $(DESTDIR)
install-capi:
	@[ -e "$(TARGET)/release/libextant_capi.a" ] || $(MAKE) capi
	scripts/capi.sh install "$(TARGET)/release"

# Writes its header from the sources; `make lint` looks whether that was forgotten.
header:
	scripts/capi.sh header

# A Debian package in target/packages.
deb:
	$(CARGO) build --release -p extant-cli
	scripts/deb.sh $(TARGET)/release/extant $(TARGET)/packages

# A program without shared libraries, at STATIC_PROGRAM. Needs a toolchain that rustup manages.
STATIC_TARGET ?= $(shell uname -m)-unknown-linux-musl
STATIC_PROGRAM ?= $(TARGET)/packages/extant-static
static:
	rustup target add $(STATIC_TARGET)
	$(CARGO) build --release -p extant-cli --target $(STATIC_TARGET)
	install -D $(TARGET)/$(STATIC_TARGET)/release/extant $(STATIC_PROGRAM)

# Builds both and tries them: the package in a new Debian system, the static program alone in an
# empty root directory. Needs root and the network.
packages: deb static
	@scripts/setup.sh packages
	scripts/packages.sh $(TARGET)/packages

# Tools that tests and the demonstration call: e2fsprogs, FUSE, attributes.
setup:
	@scripts/setup.sh

# Builds an image, mounts it, lets several programs write to it at once, unmounts it, checks it with
# e2fsck and the kernel.
run: setup
	$(CARGO) build --release -p extant-cli
	scripts/demo.sh $(TARGET)/release/extant

test: setup
	scripts/test.sh

# Tests of further builds: other designs under the engine in the lab, and fuzzing for half a minute.
test-builds: setup
	scripts/builds.sh

# Ratios against the kernel's ext4 and fuse2fs, in one run.
bench: setup
	$(CARGO) build --release -p extant-cli -p extant-lab
	$(TARGET)/release/extant-lab bench --runs $(BENCH_RUNS)
	$(TARGET)/release/extant-lab pairs --runs $(PAIR_RUNS)

# Programs at work on mounts beside the kernel's ext4 and fuse2fs, and requests to servers.
programs:
	@scripts/setup.sh programs
	$(CARGO) build --release -p extant-cli -p extant-lab
	$(TARGET)/release/extant-lab work --runs $(BENCH_RUNS)
	$(TARGET)/release/extant-lab requests

# Builds, copies and exports of images beside mke2fs, genext2fs, debugfs, the kernel, and programs
# that move the same bytes only: 15 GB in /dev/shm. MKE2FS=PROGRAM names another mke2fs. To store a
# run: `extant-bench images --json > docs/runs/images.json`, then `make pages`.
bench-images:
	@scripts/setup.sh bench
	$(CARGO) build --release -p extant-cli -p extant-bench
	$(TARGET)/release/extant-bench images --runs $(BENCH_RUNS)

# Checks, repairs and new sizes beside e2fsck, resize2fs and cp: 12 GB in /dev/shm. To store a run:
# `extant-bench check --json > docs/runs/check.json`, then `make pages`.
bench-check: setup
	$(CARGO) build --release -p extant-cli -p extant-bench
	$(TARGET)/release/extant-bench check --runs $(BENCH_RUNS)

# The crates that decompress and compress archives beside gzip, zstd, xz and bzip2. To store a run:
# `extant-bench codecs --json > docs/runs/codecs.json`, then `make pages`.
bench-codecs:
	$(CARGO) build --release -p extant-bench
	$(TARGET)/release/extant-bench codecs --runs $(BENCH_RUNS)

# Work on a network block device with NBD_DELAY milliseconds for each request, beside the same work
# on a file and the transfer alone: 1 GB in /dev/shm.
NBD_DELAY ?= 1
bench-nbd: setup
	$(CARGO) build --release -p extant-cli
	scripts/nbd.sh $(TARGET)/release/extant $(NBD_DELAY)

# Linux in QEMU from an overlay that is served by vhost-user and by NBD, without KVM: a minute.
boot:
	scripts/setup.sh boot
	$(CARGO) build --release -p extant-cli
	scripts/boot.sh $(TARGET)/release/extant

# Writes the figures of stored runs (docs/runs) into the pages. To renew a run:
# `extant-lab pairs --json > docs/runs/pairs.json`.
pages:
	$(CARGO) run -q --release -p extant-lab -- pages

# A million files of 4 KiB and 100 syncs, then 10 million empty files: an hour or more, and 7 GB in
# /dev/shm. FSMARK="--files N --empty N" for other numbers.
fsmark: setup
	$(CARGO) build --release -p extant-lab
	$(TARGET)/release/extant-lab fsmark $(FSMARK)

# Designs of block allocators beside the engine, and how fragmented long use leaves a file system.
space: setup
	$(CARGO) build --release -p extant-lab
	$(TARGET)/release/extant-lab space60t
	$(TARGET)/release/extant-lab space-claims
	$(TARGET)/release/extant-lab age

# Instructions of hot operations beside the stored counts; ends with an error beyond the tolerance.
# To store new ones: INSTRUCTIONS="--json > docs/runs/instructions.json", then `make pages`.
instructions: setup
	$(CARGO) build --profile profiling -p extant-lab --features instructions
	$(TARGET)/profiling/extant-lab instructions $(INSTRUCTIONS)

# One page with plots: published tables of five works, stored runs, and quick ones of this machine.
LAB_PAGE ?= $(TARGET)/lab.html
lab: setup designs
	$(CARGO) build --release -p extant-lab
	$(TARGET)/release/extant-lab reproduce all --runs $(TARGET)/lab \
		--designs $(DESIGNS) --page $(LAB_PAGE)

# The lab with other designs under the engine, in a second build: docs/lab.md names them.
DESIGNS = target/designs/release/extant-lab
designs:
	$(CARGO) build --release -p extant-lab --features designs --target-dir target/designs

# Accesses of each operation to memory that threads share. WORKLOAD is one of those that
# `make contention` names, or `all`.
contention:
	$(CARGO) build --release -p extant-lab --features contention --target-dir target/contention
	target/contention/release/extant-lab contention $(WORKLOAD)

# Rates on up to 128 processors, simulated from service times and counts. SCALE has workloads and
# options.
scale: setup
	$(CARGO) build --release -p extant-lab --features contention --target-dir target/contention
	$(CARGO) build --release -p extant-lab
	$(TARGET)/release/extant-lab scale $(SCALE)

# Fuzzing that watches which code is reached, with AddressSanitizer: FUZZ_SECONDS for each of
# FUZZ_TARGETS. Needs a nightly toolchain.
FUZZ_TARGETS ?= parsers journal image archive qcow2
fuzz: setup
	scripts/fuzz.sh build sanitized
	scripts/images.sh target/images
	EXTANT_IMAGES=$(abspath target/images) scripts/fuzz.sh seeds
	FIGURES=$(abspath $(FIGURES)) scripts/fuzz.sh run sanitized $(FUZZ_SECONDS) $(FUZZ_TARGETS)

# Damaged images by seeds, for FUZZ_SECONDS.
mutants: setup
	EXTANT_FIGURES=$(abspath $(FIGURES)) EXTANT_FUZZ_SECONDS=$(FUZZ_SECONDS) \
		$(CARGO) test --release -p extant-engine --test it -- --ignored fuzz_images --nocapture

# The damaged images of e2fsprogs' own tests, from Debian's source package.
images: setup
	scripts/images.sh target/images
	EXTANT_FIGURES=$(abspath $(FIGURES)) EXTANT_IMAGES=$(abspath target/images) \
		$(CARGO) test --release -p extant-engine --test it -- --ignored images_of_others --nocapture
	EXTANT_IMAGES=$(abspath target/images) \
		$(CARGO) test --release -p extant-cli --test it -- --ignored exports_of_images_of_others --nocapture

# Verdicts of `extant check` beside those of e2fsck: on the images of e2fsprogs' own tests, as a
# table, and on MUTANTS damaged images.
MUTANTS ?= 4000
check-images: setup
	scripts/images.sh target/images
	EXTANT_IMAGES=$(abspath target/images) \
		$(CARGO) test --release -p extant-check --test it -- --ignored verdicts_on_images_of_e2fsprogs --nocapture
check-mutants: setup
	EXTANT_MUTANTS=$(MUTANTS) \
		$(CARGO) test --release -p extant-check --test it -- --ignored verdicts_on_many_mutants --nocapture

# Repairs of the same images, as a table, and of MUTANTS damaged images; e2fsck and the kernel judge
# the results.
repair-images: setup
	scripts/images.sh target/images
	EXTANT_IMAGES=$(abspath target/images) \
		$(CARGO) test --release -p extant-check --test it -- --ignored images_of_e2fsprogs_are_repaired --nocapture
repair-mutants: setup
	EXTANT_MUTANTS=$(MUTANTS) \
		$(CARGO) test --release -p extant-check --test it -- --ignored many_mutants_are_repaired --nocapture

# Flipped bits in images of all kinds, from FLIP_SEED on for FLIP_SECONDS: names and contents that a
# repair keeps, beside those that e2fsck keeps.
FLIP_SEED ?= 1000
FLIP_SECONDS ?= 600
repair-flips: setup
	EXTANT_FLIP_SEED=$(FLIP_SEED) EXTANT_FLIP_SECONDS=$(FLIP_SECONDS) \
		$(CARGO) test --release -p extant-check --test it -- --ignored repairs_of_flipped_bits --nocapture

# All tests of mounts, the long ones too, served through io_uring.
rings: setup
	EXTANT_TRANSPORT=uring $(CARGO) test --release -p extant-fuse --test it -- --include-ignored

# Power cuts in random mixes of operations, until the time is over: goes on with the seed after the
# last one in FIGURES.
crash: setup
	EXTANT_FIGURES=$(abspath $(FIGURES)) EXTANT_CRASH_SECONDS=$(CRASH_SECONDS) EXTANT_CRASH_WORKERS=$(CRASH_WORKERS) \
		$(CARGO) test --release -p extant-engine --test it -- --ignored crash_campaign --nocapture

# Each request of each workload fails in its turn: some minutes, and no longer than FAULT_SECONDS.
FAULT_SECONDS ?= 3600
devices: setup
	EXTANT_FIGURES=$(abspath $(FIGURES)) EXTANT_FAULT_SECONDS=$(FAULT_SECONDS) \
		$(CARGO) test --release -p extant-engine --test it -- --ignored all_devices_die --nocapture

# Servers of a mount that are killed KILLS times under a writer, and started again: nothing that was
# synced is lost. Then UPGRADES upgrades of servers with open files, and under work. Some 20 minutes.
KILLS ?= 1000
UPGRADES ?= 50
kills: setup
	EXTANT_KILLS=$(KILLS) $(CARGO) test --release -p extant-cli --test it -- nothing_durable_is_lost_by_kills --nocapture
	EXTANT_UPGRADES=$(UPGRADES) $(CARGO) test --release -p extant-cli --test it -- upgrading::

# 33 threads whose answers have to be right in some order; then all operations by STRESS_THREADS at
# random, STRESS_ROUNDS times on each of nine kinds.
STRESS_SECONDS ?= 300
STRESS_THREADS ?= 32
STRESS_ROUNDS ?= 3
stress: setup
	EXTANT_FIGURES=$(abspath $(FIGURES)) EXTANT_ORDER_SECONDS=$(STRESS_SECONDS) \
		$(CARGO) test --release -p extant-engine --test it -- --ignored many_threads_are_answered --nocapture
	EXTANT_FIGURES=$(abspath $(FIGURES)) EXTANT_ORDER_SECONDS=$(STRESS_SECONDS) \
		$(CARGO) test --release -p extant-engine --test it -- --ignored failing_histories --nocapture
	EXTANT_STRESS_THREADS=$(STRESS_THREADS) EXTANT_STRESS_ROUNDS=$(STRESS_ROUNDS) \
		$(CARGO) test --release -p extant-engine --test it -- --ignored stress::soak --nocapture

# The largest and real sources of images: a million files, a directory of half a million, a new
# Debian system and its packages (needs the network), images of buildah; and REBUILDS rebuilds in
# other environments, which must have one digest.
REBUILDS ?= 1000
inputs:
	@scripts/setup.sh packages
	$(CARGO) test --release -p extant-cli --test it -- --ignored inputs:: --nocapture
	EXTANT_REBUILDS=$(REBUILDS) $(CARGO) test --release -p extant-cli --test it -- rebuilding:: --nocapture

# Suites that others wrote, for longer than `make test` runs them; with XFSTESTS=DIR fsstress, too.
SUITE_SECONDS ?= 30
conformance: setup
	$(CARGO) build --release -p extant-cli
	EXTANT_FSX_OPERATIONS=100000 EXTANT_FSX_SEEDS="1 2 3 4" scripts/conformance.sh $(TARGET)/release/extant
	EXTANT_SUITE_SECONDS=$(SUITE_SECONDS) XFSTESTS=$(XFSTESTS) scripts/suites.sh $(TARGET)/release/extant

# xfstests, from a built tree of it (docs/testing.md): AS=ext4, fuse, or kernel for the kernel's own
# ext4; TESTS as its `check` takes them; MKFS_OPTIONS for mke2fs. Make has an AS of its own, the
# assembler, which `?=` would keep.
ifeq ($(origin AS),default)
AS = ext4
endif
TESTS ?= -g generic/quick
xfstests: setup
	$(CARGO) build --release -p extant-cli
	scripts/xfstests.sh $(XFSTESTS) --as $(AS) --mkfs "$(MKFS_OPTIONS)" $(TESTS)

# Its tests that call programs of e2fsprogs, on the kernel's ext4, with these programs and with Extant
# under their names (docs/testing.md); results go to RESULTS. Half an hour or more. Prints the page
# docs/xfstests-tools.md.
RESULTS ?= $(TARGET)/xfstests-tools
xfstests-tools: setup
	$(CARGO) build --release -p extant-cli
	scripts/xfstests-tools.sh $(XFSTESTS) $(RESULTS) $(TOOL_TESTS)

# The sums of all runs so far, on the page about reliability.
reliability:
	scripts/reliability.sh $(FIGURES)

# Races of the lock-free parts, through all interleavings with at most LOOM_SWITCHES switches of
# threads.
LOOM_SWITCHES ?= 4
loom:
	LOOM_MAX_PREEMPTIONS=$(LOOM_SWITCHES) scripts/loom.sh

# Unsafe code of `sync` under Miri, threads of the engine under ThreadSanitizer: needs a nightly
# toolchain with miri and rust-src.
races:
	scripts/races.sh

# Error arms of maps that no fault campaign takes.
coverage: setup
	scripts/coverage.sh

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(CARGO) clippy -p extant-lab -p extant-sync --features extant-lab/contention --all-targets -- -D warnings
	$(CARGO) clippy -p extant-lab -p extant-engine -p extant-space -p extant-sync --features extant-lab/designs --all-targets -- -D warnings
	$(CARGO) clippy -p extant --no-default-features -- -D warnings
	$(CARGO) clippy -p extant -- -D warnings
	$(CARGO) clippy -p extant --all-features -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps
	scripts/capi.sh check

# Packages of the crates to be published (all but those with `publish = false`), without building
# them: `make lint` has built the same files.
publishable:
	$(CARGO) package --workspace --no-verify --allow-dirty $$(grep -l '^publish = false' crates/*/Cargo.toml \
		| sed -E 's|crates/(.*)/Cargo.toml|--exclude extant-\1|')

# Stores numbers that fell in crates/testkit/tidy.toml, and prints sizes of each crate.
tidy:
	$(CARGO) test -q -p extant-testkit --test it -- --ignored --nocapture tidy::store

# Stores the public surface of the crate `extant` in crates/extant/public-api.txt, and prints the
# changes.
surface:
	$(CARGO) test -q -p extant-testkit --test it -- --ignored --nocapture tidy::surface::store

# The engine for Windows, macOS and WebAssembly: that it compiles there.
portable:
	scripts/portable.sh

# The Python package in target/wheels, and its tests: pytest on the installed package, with pandas
# and pyarrow, and mypy. Needs the network.
python: setup
	scripts/python.sh wheel

test-python: python
	scripts/python.sh test

# `extant.ray` on a cluster of three nodes of Ray, whose workers and machines are killed; the Job
# for Kubernetes (dist/extant-batch.yaml) by its schemas, and its command lines. Some five minutes;
# needs root and the network.
fleet: setup
	$(CARGO) build --release -p extant-python -p extant-cli
	scripts/python.sh fleet $(TARGET)/release/lib_extant.so $(TARGET)/release/extant

# Images in a server of S3 and behind TLS: stored, fetched, read and mounted, with pushes that are
# killed, servers that go away, wrong chunks and wrong credentials. A minute; needs root and the
# network.
STORE_MB ?= 200
store: setup
	$(CARGO) build --release -p extant-cli
	scripts/store.sh $(TARGET)/release/extant $(STORE_MB)

# Images in a Ceph cluster of one node: RBD through qemu-nbd, with OSDs that are killed, hosts that are
# lost and fenced, snapshots and clones; and chunks in a RADOS gateway. Some ten minutes; needs root
# and 3 GB of memory.
ceph:
	@scripts/setup.sh ceph
	$(CARGO) build --release -p extant-cli
	scripts/ceph.sh $(TARGET)/release/extant

clean:
	$(CARGO) clean
