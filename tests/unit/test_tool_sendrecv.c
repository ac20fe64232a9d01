/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `gantry perf sendrecv`: options, sizes, arithmetic, launchers; and that a damaged byte is seen. For the last a rank
 * sends to itself on a host device whose copies can be made to go wrong.
 */
#include <math.h>

#include "common/figures.h"
#include "common/options.h"
#include "perf/perf_sendrecv.h"
#include "test.h"

static struct sr_opts o;

/* The exit status that the words lead to; -1: go on. */
static int parse(const char *words)
{
	char text[512], *argv[64], *rest = text, *word;
	int argc = 0;

	snprintf(text, sizeof(text), "sendrecv %s", words);
	while ((word = strsep(&rest, " ")))
		if (*word)
			argv[argc++] = word;
	argv[argc] = NULL;
	return sr_parse(argc, argv, &o) - 1;
}

TEST(options)
{
	CHECK_EQ(parse(""), -1);
	CHECK_EQ(o.size.begin, 8);
	CHECK_EQ(o.size.end, 32 << 20);
	CHECK_EQ(o.type, GANTRY_TYPE_FLOAT32);
	CHECK_EQ(o.reg, 1);
	CHECK_EQ(o.check, 1);
	CHECK_EQ(o.c.rank, -1);
	CHECK_EQ(parse("-b 0 -e 4k -f 8 -n 7 -w 3 -c 0 -d bfloat16 -m 8 --ranks 4 --threads --pattern alltoall --mode "
		       "offset "
		       "--proto ll128 --transport shm,net --channels 2 --repeats 9 --timeout 5s --json --baseline"),
		 -1);
	CHECK_EQ(o.iters, 7);
	CHECK_EQ(o.warmup, 3);
	CHECK_EQ(o.check, 0);
	CHECK_EQ(o.type, GANTRY_TYPE_BFLOAT16);
	CHECK_EQ(o.inflight, 8);
	CHECK_EQ(o.c.ranks, 4);
	CHECK_EQ(o.c.threads, 1);
	CHECK_EQ(o.pattern, SR_ALLTOALL);
	CHECK_EQ(o.mode, SR_MODE_OFFSET);
	CHECK_EQ(o.proto, 3);
	CHECK_EQ(o.reg, 0); /* that mode is for memory that is not registered */
	CHECK_STR(o.c.transport, "shm,net");
	CHECK_EQ(o.c.timeout_ns, 5000000000);
	CHECK_EQ(parse("--device cuda --gpus 0,2,1"), -1);
	CHECK_EQ(o.c.device, GANTRY_DEVICE_CUDA);
	CHECK_EQ(o.c.ngpus, 3);
	CHECK_EQ(o.c.gpus[1], 2);
	CHECK_EQ(parse("--mode normal --register 1"), -1);
	CHECK_EQ(o.reg, 1);
	/* The long names of nccl-tests. */
	CHECK_EQ(parse("--minbytes 1k --maxbytes 2k --stepbytes 512"), -1);
	CHECK_EQ(o.nsizes, 3);
}

TEST(wrong_options)
{
	static const char *const wrong[] = {"-b 2k -e 1k",
					    "-f 1",
					    "-f 2 -i 4",
					    "-d quad",
					    "--pattern star",
					    "--ranks 0",
					    "--gpus 1",
					    "--device cuda --gpus 1,x",
					    "--mode both",
					    "--nosuch",
					    "surplus",
					    "-b",
					    "-m 0",
					    "--timeout now",
					    "-b 0 -e 1M -i 1",
					    "--mode ptr --register 0",
					    "-c 2",
					    "--repeats 0",
					    "--device cuda --buffers plain"};

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		printf("wrong: %s\n", wrong[i]);
		CHECK_EQ(parse(wrong[i]), 2);
	}
	CHECK_EQ(parse("--help"), 0);
	CHECK_EQ(options_choice("auto|net|shm", "net"), 1);
	CHECK_EQ(options_choice("auto|net|shm", "ne"), -1);
	CHECK_EQ(options_choice("auto|net|shm", ""), -1);
}

static void expect_sizes(const char *words, const uint64_t *want, size_t n)
{
	CHECK_EQ(parse(words), -1);
	CHECK_EQ(o.nsizes, n);
	for (size_t i = 0; i < n; i++)
		CHECK_EQ(o.sizes[i], want[i]);
}
#define SIZES(words, ...) expect_sizes(words, (const uint64_t[]){__VA_ARGS__}, sizeof((uint64_t[]){__VA_ARGS__}) / 8)

TEST(sizes)
{
	SIZES("-b 8 -e 64 -f 2", 8, 16, 32, 64);
	SIZES("-b 0 -e 100 -f 8", 0, 4, 32); /* after nothing comes one element */
	SIZES("-b 0 -e 64 -f 8 -d int8", 0, 1, 8, 64);
	SIZES("-b 10 -e 30 -i 10", 8, 20, 28);	/* rounded down to the type */
	SIZES("-b 10 -e 14 -i 1 -d double", 8); /* and none twice */
	SIZES("-b 8 -e 64 -f 8 --odd", 7, 8, 9, 11, 63, 64, 65, 67);
	SIZES("-b 0 -e 8 -f 8 --odd", 0, 1, 2, 3, 4, 7, 8, 9, 11);
	SIZES("-b 64 -e 64 --odd -d float", 60, 64);
}

TEST(bandwidths)
{
	double alg, bus;

	sr_bandwidth(SR_RING, 4, 1000000, 100, &alg, &bus); /* 1 MB in 100 us */
	CHECK(fabs(alg - 10) < 1e-9 && fabs(bus - 10) < 1e-9);
	/* Four ranks, four messages of 1 MB from each, three of them to others. */
	sr_bandwidth(SR_ALLTOALL, 4, 1000000, 100, &alg, &bus);
	CHECK(fabs(alg - 40) < 1e-9 && fabs(bus - 30) < 1e-9);
	sr_bandwidth(SR_ONEWAY, 2, 0, 100, &alg, &bus);
	CHECK(alg == 0 && bus == 0);
	o.inflight = 8;
	o.pattern = SR_ONEWAY;
	CHECK(sr_messages(&o) == 8);
	o.inflight = 1;
	o.pattern = SR_PINGPONG; /* one way is half a round trip */
	CHECK(sr_messages(&o) == 2);
}

TEST(names)
{
	struct gantry_comm_counters c, d;
	char buf[32];

	memset(&c, 0, sizeof(c));
	perf_comm_mode_name(&c, buf, sizeof(buf));
	CHECK_STR(buf, "none");
	c.steps[GANTRY_PROTO_SIMPLE][GANTRY_MODE_PTR] = 3;
	perf_comm_mode_name(&c, buf, sizeof(buf));
	CHECK_STR(buf, "ptr");
	c.steps[GANTRY_PROTO_LL128][GANTRY_MODE_NORMAL] = 1;
	perf_comm_mode_name(&c, buf, sizeof(buf));
	CHECK_STR(buf, "ptr+normal");
	perf_comm_proto_name(&c, buf, sizeof(buf));
	CHECK_STR(buf, "simple+ll128");
	d = c;
	d.send_bytes = 100;
	perf_comm_counters_add(&c, &d, 1);
	CHECK_EQ(c.steps[GANTRY_PROTO_SIMPLE][GANTRY_MODE_PTR], 6);
	CHECK_EQ(c.send_bytes, 100);
	perf_comm_counters_add(&c, &d, -1);
	CHECK_EQ(c.steps[GANTRY_PROTO_LL128][GANTRY_MODE_NORMAL], 1);
	CHECK_EQ(c.send_bytes, 0);
	CHECK(perf_comm_copies(1 << 20, 1 << 20) == 1);
	CHECK(perf_comm_copies(0, 1 << 20) == 0);
	CHECK(isnan(perf_comm_copies(0, 0)));
	snprintf(buf, sizeof(buf), "shm+net");
	perf_comm_join(buf, sizeof(buf), "net");
	perf_comm_join(buf, sizeof(buf), "ne");
	CHECK_STR(buf, "shm+net+ne");
}

/* Nothing of whoever started this test. */
static void no_launcher(void)
{
	static const char *const names[] = {"OMPI_COMM_WORLD_RANK",
					    "OMPI_COMM_WORLD_SIZE",
					    "OMPI_COMM_WORLD_LOCAL_SIZE",
					    "OMPI_MCA_orte_hnp_uri",
					    "OMPI_MCA_ess_base_jobid",
					    "PMIX_NAMESPACE",
					    "PMI_RANK",
					    "PMI_SIZE",
					    "MPI_LOCALNRANKS",
					    "SLURM_PROCID",
					    "SLURM_NTASKS",
					    "SLURM_STEP_NUM_TASKS",
					    "SLURM_STEP_NUM_NODES",
					    "SLURM_STEP_ID",
					    "SLURM_JOB_ID",
					    "SLURM_STEP_NODELIST",
					    "SLURM_JOB_NODELIST",
					    "SLURM_LAUNCH_NODE_IPADDR",
					    "RANK",
					    "WORLD_SIZE",
					    "LOCAL_WORLD_SIZE",
					    "TORCHELASTIC_RUN_ID",
					    "MASTER_ADDR",
					    "MASTER_PORT"};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		unsetenv(names[i]);
}

/* The launcher's name; "none", or what is wrong. */
static const char *launcher(struct perf_launcher *l)
{
	static char why[256];

	if (perf_launcher_find(l, why, sizeof(why)) < 0)
		return why;
	return l->name ? l->name : "none";
}

TEST(launchers)
{
	struct perf_launcher l;

	no_launcher();
	CHECK_STR(launcher(&l), "none");
	setenv("RANK", "1", 1);
	setenv("WORLD_SIZE", "4", 1);
	CHECK_STR(launcher(&l), "none"); /* too common names, alone */
	setenv("MASTER_ADDR", "node0", 1);
	CHECK_STR(launcher(&l), "torchrun");
	CHECK_EQ(l.rank, 1);
	CHECK_EQ(l.size, 4);
	CHECK_EQ(l.one_host, 0);
	setenv("LOCAL_WORLD_SIZE", "4", 1);
	launcher(&l);
	CHECK_EQ(l.one_host, 1);
	setenv("SLURM_PROCID", "0", 1);
	setenv("SLURM_NTASKS", "8", 1); /* a batch script, not a rank */
	CHECK_STR(launcher(&l), "torchrun");
	setenv("SLURM_STEP_ID", "0", 1);
	CHECK_STR(launcher(&l), "srun");
	setenv("SLURM_STEP_NUM_TASKS", "1", 1); /* one rank alone is not a job of ranks */
	setenv("SLURM_NTASKS", "1", 1);
	CHECK_STR(launcher(&l), "torchrun");
	setenv("OMPI_COMM_WORLD_RANK", "7", 1);
	setenv("OMPI_COMM_WORLD_SIZE", "8", 1);
	CHECK_STR(launcher(&l), "mpirun");
	CHECK_EQ(l.rank, 7);
	/* Outside the world: not another measurement. */
	setenv("OMPI_COMM_WORLD_RANK", "8", 1);
	CHECK_HAS(launcher(&l), "OMPI_COMM_WORLD_RANK=8 and OMPI_COMM_WORLD_SIZE=8: there is no such rank");
	setenv("OMPI_COMM_WORLD_RANK", "-1", 1);
	CHECK_HAS(launcher(&l), "no such rank");
	setenv("OMPI_COMM_WORLD_RANK", "one", 1);
	CHECK_HAS(launcher(&l), "no such rank");
	no_launcher();
}

static const char *first_host(const char *list)
{
	static char buf[64];

	perf_launcher_first_host(list, buf, sizeof(buf));
	return buf;
}

/* Where rank 0 is: "hosts by whom", or what is wrong. */
static const char *root_of(const struct perf_launcher *l, const char *option, struct perf_root *root)
{
	static char text[1024];
	char why[512];

	if (perf_launcher_root(l, option, root, why, sizeof(why)) < 0)
		snprintf(text, sizeof(text), "%s", why);
	else
		snprintf(text, sizeof(text), "%s by %s", root->hosts, root->from);
	return text;
}

TEST(roots)
{
	struct perf_launcher mpi = {.program = "gantry perf sendrecv", .name = "mpirun", .rank = 1, .size = 4},
			     slurm = {.program = "gantry perf sendrecv", .name = "srun", .rank = 1, .size = 4},
			     torch = {.program = "gantry perf sendrecv", .name = "torchrun", .rank = 1, .size = 4},
			     here = {.program = "gantry perf sendrecv",
				     .name = "mpiexec",
				     .rank = 1,
				     .size = 4,
				     .one_host = 1};
	struct perf_root a, b;

	CHECK_STR(first_host("node7"), "node7");
	CHECK_STR(first_host("gpu-1,gpu-2"), "gpu-1");
	CHECK_STR(first_host("node[01-04,07],x"), "node01");
	CHECK_STR(first_host("node[3,5-6]"), "node3");
	CHECK_STR(first_host("a-b[1-2]-c[08-09].net,z"), "a-b1-c08.net");
	no_launcher();
	CHECK_HAS(root_of(&mpi, NULL, &a), "mpirun started this as rank 1 of 4, and nothing says where rank 0 is");
	CHECK_HAS(root_of(&mpi, NULL, &a), "--root HOST");
	CHECK_STR(root_of(&mpi, "node1:7000", &a), "node1:7000 by --root");
	CHECK_STR(root_of(&here, NULL, &a), "127.0.0.1 by mpiexec");
	CHECK(a.port > 18520 && a.port <= 18520 + 4096);
	setenv("OMPI_MCA_orte_hnp_uri", "1866.0;tcp://192.0.2.2,10.1.0.2:57867;tcp6://[fd00::2]:41881", 1);
	setenv("PMIX_NAMESPACE", "1866", 1);
	CHECK_STR(root_of(&mpi, NULL, &a), "192.0.2.2,10.1.0.2,fd00::2 by OMPI_MCA_orte_hnp_uri");
	CHECK_EQ(a.guessed, 1);
	unsetenv("OMPI_MCA_orte_hnp_uri");
	setenv("PMIX_NAMESPACE", "prterun-node-7-4711@1", 1);
	CHECK_STR(root_of(&mpi, NULL, &b), "node-7 by PMIX_NAMESPACE");
	CHECK(strcmp(a.job, b.job) != 0); /* another job, and with it most likely another port */
	setenv("SLURM_JOB_ID", "77", 1);
	setenv("SLURM_LAUNCH_NODE_IPADDR", "10.0.0.9", 1);
	CHECK_STR(root_of(&slurm, NULL, &a), "10.0.0.9 by SLURM_LAUNCH_NODE_IPADDR");
	setenv("SLURM_STEP_NODELIST", "n[4-7]", 1);
	CHECK_STR(root_of(&slurm, NULL, &a), "n4 by SLURM_STEP_NODELIST");
	/* The user's word counts more. */
	setenv("MASTER_ADDR", "node0", 1);
	setenv("MASTER_PORT", "29500", 1);
	CHECK_STR(root_of(&slurm, NULL, &a), "node0 by MASTER_ADDR");
	CHECK_STR(root_of(&torch, NULL, &a), "node0 by MASTER_ADDR");
	CHECK_EQ(a.port, 29501); /* torchrun's own store has 29500 */
	setenv("MASTER_PORT", "65535", 1);
	root_of(&torch, NULL, &a);
	CHECK_EQ(a.port, 65534);
	setenv("MASTER_PORT", "http", 1);
	CHECK_HAS(root_of(&torch, NULL, &a), "MASTER_PORT=http is not a port");
	no_launcher();
}

TEST(id_files)
{
	char path[] = "/tmp/test_tool_sendrecv.XXXXXX";
	const struct perf_launcher l = {.program = "gantry perf sendrecv", .rank = 1};
	struct gantry_unique_id id, got;

	CHECK_EQ(close(mkstemp(path)), 0); /* it exists and is empty, as if another run had just begun to write it */
	CHECK(perf_id_await(&l, path, 50000000, &got) == GANTRY_ERR_TIMEOUT);
	for (size_t i = 0; i < sizeof(id.bytes); i++)
		id.bytes[i] = (unsigned char)(i * 37 + 5);
	CHECK_OK(perf_id_publish(path, &id));
	CHECK_OK(perf_id_await(&l, path, 200000000000, &got));
	CHECK_EQ(memcmp(&id, &got, sizeof(id)), 0);
	got.bytes[0]++;
	perf_id_remove(path, &got); /* of another run by now: it stays */
	CHECK_EQ(access(path, F_OK), 0);
	perf_id_remove(path, &id);
	CHECK(access(path, F_OK) < 0);
}

/* Copies of the host device, and how they go wrong. */
static gantry_result (*right_copy)(struct gantry_device *, struct gantry_stream *, void *, const void *, size_t);
static enum { RIGHT, SHORT, LONG, SHIFTED } damage;

static gantry_result copy(struct gantry_device *dev, struct gantry_stream *s, void *dst, const void *src, size_t n)
{
	if (damage == SHORT)
		n -= 1; /* the last byte stays poisoned */
	else if (damage == LONG)
		n += 2; /* from the sender's guard into the receiver's, which is another one */
	else if (damage == SHIFTED)
		src = (const char *)src + 8;
	return right_copy(dev, s, dst, src, n);
}

static uint64_t wrong_bytes(int how)
{
	struct perf_comm_shared *all = perf_comm_map(&sr_op, &o.c, sizeof(struct sr_shared));
	struct sr_shared *shared = all->own;
	static struct sr_rank rk;
	struct gantry_device *dev = NULL;
	struct gantry_device_ops ops;
	const struct gantry_device_ops *before;
	uint64_t wrong;

	memset(&rk, 0, sizeof(rk));
	shared->opts = &o;
	perf_rank_init(&rk.base, all, 0);
	CHECK_OK(gantry_device_open(GANTRY_DEVICE_HOST, 0, &dev));
	before = dev->ops;
	ops = *before;
	right_copy = ops.copy_async;
	ops.copy_async = copy;
	damage = how;
	dev->ops = &ops; /* one object per process: the rank gets the same */
	CHECK_OK(perf_rank_run(&rk.base));
	dev->ops = before;
	gantry_device_close(dev);
	CHECK_EQ(shared->nrows, 1);
	CHECK_EQ(shared->rows[0].bytes, 1000);
	CHECK_STR(shared->rows[0].transport, "self");
	wrong = shared->rows[0].wrong;
	perf_comm_unmap(all);
	return wrong;
}

TEST(damaged)
{
	CHECK_EQ(parse("-b 1000 -e 1000 --ranks 1 -n 1 -w 1 --repeats 1"), -1);
	CHECK_EQ(wrong_bytes(RIGHT), 0);
	CHECK_EQ(wrong_bytes(SHORT), 3); /* a byte for each of the three addresses */
	CHECK(wrong_bytes(LONG) > 3);	 /* two for each, but for bytes that are equal by chance */
	CHECK(wrong_bytes(SHIFTED) > 3 * 950);
	o.check = 0;
	CHECK_EQ(wrong_bytes(SHORT), 0);
}
