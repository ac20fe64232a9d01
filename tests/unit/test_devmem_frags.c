/* SPDX-License-Identifier: Apache-2.0 */
/* Control messages to fragments: what a kernel may say, and what it may not. */
#include "devmem_util.h"

enum { MEMORY = 1 << 20, IOV = 65536 };

static uint8_t control[DEVMEM_CONTROL_SIZE + 4096];
static struct msghdr msg;
static struct devmem_list list;
static const struct devmem_binding binding = {.dmabuf_id = FAKE_ID, .memory = {.size = MEMORY}};

static void begin(void)
{
	memset(control, 0xee, sizeof(control));
	msg = (struct msghdr){.msg_control = control};
}

static void put(int level, int type, const void *data, size_t len)
{
	struct cmsghdr h = {.cmsg_len = CMSG_LEN(len), .cmsg_level = level, .cmsg_type = type};
	uint8_t *at = control + msg.msg_controllen;

	CHECK(msg.msg_controllen + CMSG_SPACE(len) <= sizeof(control));
	memcpy(at, &h, sizeof(h));
	memcpy(at + CMSG_LEN(0), data, len);
	msg.msg_controllen += CMSG_SPACE(len);
}

static void dmabuf(uint64_t offset, uint32_t size, uint32_t token)
{
	struct devmem_cmsg c = {.frag_offset = offset, .frag_size = size, .frag_token = token, .dmabuf_id = FAKE_ID};

	put(SOL_SOCKET, SCM_DEVMEM_DMABUF, &c, sizeof(c));
}

static void linear(uint32_t size)
{
	struct devmem_cmsg c = {.frag_size = size};

	put(SOL_SOCKET, SCM_DEVMEM_LINEAR, &c, sizeof(c));
}

static gantry_result parse(ssize_t got)
{
	return devmem_parse(&msg, got, &binding, IOV, &list);
}

static void is(uint32_t i, enum devmem_where where, uint64_t offset, uint32_t len, uint32_t token)
{
	CHECK(i < list.n);
	CHECK_EQ(list.frags[i].where, where);
	CHECK_EQ(list.frags[i].offset, offset);
	CHECK_EQ(list.frags[i].len, len);
	CHECK_EQ(list.frags[i].token, token);
}

TEST(what_may_come)
{
	uint32_t page = (uint32_t)sysconf(_SC_PAGESIZE);
	int foreign = 12345;

	begin();
	CHECK_OK(parse(1000));
	CHECK_EQ(list.n, 1);
	is(0, DEVMEM_PLAIN, 0, 1000, 0);

	/* In stream order; linear bytes back to back in the buffer; others' messages in between. */
	begin();
	linear(100);
	dmabuf(4096, 1448, 1);
	put(SOL_SOCKET, SCM_RIGHTS, &foreign, sizeof(foreign));
	linear(7);
	put(41, SCM_DEVMEM_DMABUF, &foreign, 1);
	dmabuf(MEMORY - page, page, 9);
	CHECK_OK(parse(100 + 1448 + 7 + page));
	CHECK_EQ(list.n, 4);
	CHECK_EQ(list.bytes, 100 + 1448 + 7 + page);
	is(0, DEVMEM_LINEAR, 0, 100, 0);
	is(1, DEVMEM_IN_POOL, 4096, 1448, 1);
	is(2, DEVMEM_LINEAR, 100, 7, 0);
	is(3, DEVMEM_IN_POOL, MEMORY - page, page, 9);

	/* Only others' messages: ordinary bytes. */
	begin();
	put(SOL_SOCKET, SCM_RIGHTS, &foreign, sizeof(foreign));
	CHECK_OK(parse(IOV));
	is(0, DEVMEM_PLAIN, 0, IOV, 0);

	/* The last byte of the memory, and a full list. */
	begin();
	for (uint32_t i = 0; i < DEVMEM_LIST_MAX; i++)
		dmabuf(MEMORY - 1, 1, i + 1);
	CHECK_OK(parse(DEVMEM_LIST_MAX));
	CHECK_EQ(list.n, DEVMEM_LIST_MAX);

	/* A control buffer at an odd address, and the last one's padding missing. */
	begin();
	dmabuf(0, 5, 1);
	memmove(control + 1, control, msg.msg_controllen);
	msg.msg_control = control + 1;
	CHECK_OK(parse(5));
	begin();
	dmabuf(0, 5, 1);
	put(SOL_SOCKET, SCM_RIGHTS, &foreign, sizeof(foreign));
	msg.msg_controllen -= CMSG_SPACE(sizeof(foreign)) - CMSG_LEN(sizeof(foreign));
	CHECK_OK(parse(5));
}

/* A good fragment first: its token must be in the list whatever follows. */
static void refuse(ssize_t got, const char *why)
{
	CHECK_ERROR(parse(got), GANTRY_ERR_PROTOCOL, why);
	CHECK(list.n >= 1);
	is(0, DEVMEM_IN_POOL, 8192, 10, 3);
}

static void good(void)
{
	begin();
	dmabuf(8192, 10, 3);
}

TEST(bad_fragments)
{
	uint32_t page = (uint32_t)sysconf(_SC_PAGESIZE);
	struct devmem_cmsg c = {.frag_offset = 0, .frag_size = 10, .frag_token = 4, .dmabuf_id = FAKE_ID};
	struct devmem_cmsg d;

	good();
	dmabuf(0, 10, 0);
	refuse(20, "without a token");
	good();
	dmabuf(0, 0, 4);
	refuse(10, "an empty fragment");
	good();
	linear(0);
	refuse(10, "an empty fragment");
	good();
	dmabuf(MEMORY - 9, 10, 4);
	refuse(20, "of memory of");
	good();
	dmabuf(UINT64_MAX - 5, 10, 4);
	refuse(20, "of memory of");
	good();
	dmabuf(MEMORY, 1, 4);
	refuse(11, "of memory of");
	good();
	dmabuf(0, UINT32_MAX, 4);
	refuse(20, "of memory of");
	good();
	dmabuf(page - 1, 2, 4);
	refuse(12, "not within one page");
	good();
	dmabuf(0, page + 1, 4);
	refuse(10 + page + 1, "not within one page");
	good();
	d = c;
	d.dmabuf_id = FAKE_ID + 1;
	put(SOL_SOCKET, SCM_DEVMEM_DMABUF, &d, sizeof(d));
	refuse(20, "of dma-buf 8 on a flow of dma-buf 7");
	good();
	d = c;
	d.flags = 2;
	put(SOL_SOCKET, SCM_DEVMEM_DMABUF, &d, sizeof(d));
	refuse(20, "unknown flags 0x2");
	good();
	put(SOL_SOCKET, SCM_DEVMEM_LINEAR, &c, sizeof(c));
	refuse(20, "linear bytes with token 4");
	good();
	linear(IOV);
	linear(1);
	refuse(10 + IOV + 1, "65537 linear bytes");
}

TEST(bad_receives)
{
	struct devmem_cmsg c = {.frag_size = 10, .frag_token = 4, .dmabuf_id = FAKE_ID};

	good();
	refuse(11, "fragments of 10 bytes in a receive of 11");
	good();
	refuse(9, "fragments of 10 bytes in a receive of 9");
	good();
	msg.msg_flags = MSG_CTRUNC;
	refuse(10, "cut off after 1 fragment");
	good();
	for (int i = 0; i < 17; i++)
		dmabuf(0, 4096, (uint32_t)i + 10);
	refuse(10 + 17 * 4096, "into a buffer of 65536");
	good();
	for (int i = 0; i < DEVMEM_LIST_MAX; i++)
		dmabuf(0, 1, (uint32_t)i + 10);
	refuse(10 + DEVMEM_LIST_MAX, "more than 1024");
	begin();
	CHECK_EQ(parse(IOV + 1), GANTRY_ERR_PROTOCOL); /* ordinary bytes */
	CHECK_EQ(parse(0), GANTRY_ERR_INVALID);
	CHECK_EQ(parse(-1), GANTRY_ERR_INVALID);
	msg.msg_control = NULL;
	CHECK_OK(parse(1));
	msg.msg_controllen = 40;
	CHECK_EQ(parse(1), GANTRY_ERR_INVALID);

	good();
	put(SOL_SOCKET, SCM_DEVMEM_DMABUF, &c, sizeof(c) - 1);
	refuse(20, "with 39 bytes");
	good();
	put(SOL_SOCKET, SCM_DEVMEM_DMABUF, &c, 12);
	refuse(20, "with 28 bytes");
}

/* Lengths that cannot be: too short for a header, past the end, so large that adding to them wraps. */
TEST(bad_lengths)
{
	static const size_t lens[] = {0, 1, 15, 41, 1000, SIZE_MAX, SIZE_MAX - 7, SIZE_MAX - 39, (size_t)1 << 63};

	EACH_ROW (i, lens) {
		uint8_t *copy;

		good();
		dmabuf(0, 10, 4);
		memcpy(control + 40, &lens[i], sizeof(lens[i]));
		copy = malloc(msg.msg_controllen); /* of that size exactly, for ASan */
		memcpy(copy, control, msg.msg_controllen);
		msg.msg_control = copy;
		refuse(20, "exceeds its buffer");
		free(copy);
	}
	/* Cut anywhere: never a read past the end, and never accepted, except where nothing is left of the second. */
	for (size_t cut = 41; cut < 80; cut++) {
		uint8_t *copy = malloc(cut);

		good();
		dmabuf(0, 10, 4);
		memcpy(copy, control, cut);
		msg.msg_control = copy;
		msg.msg_controllen = cut;
		refuse(20, "exceeds its buffer");
		free(copy);
	}
}

/* Types that are not ours: those of the 12-byte vectors of older kernels, say. */
TEST(others)
{
	uint32_t vector[3] = {4096, 1000, 5};

	for (int type = 98; type <= 99; type++) {
		begin();
		put(SOL_SOCKET, type, vector, sizeof(vector));
		CHECK_OK(parse(1000));
		is(0, DEVMEM_PLAIN, 0, 1000, 0);
	}
}

void tests_begin(void)
{
	CHECK_OK(gantry_params_load(0));
	gantry_log_configure(GANTRY_LOG_ERROR, 0, "/dev/null"); /* errors are expected here */
}
