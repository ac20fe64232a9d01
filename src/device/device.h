/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device: where kernels run and where their memory is. Two implementations behind one table, and two drivers of the
 * second one:
 *
 *   host/   kernels on CPU threads; device memory is host memory (a memfd each, so that other processes can map it)
 *   cuda/   a GPU, through the driver API opened at run time; kernels from an embedded fatbin
 *   hip/    a GPU of AMD's: what cuda/ does, over the HIP runtime in place of the driver API
 *
 * Everything above sees only this table. All calls may be made by any thread. Calls that a device cannot do answer
 * ERR_UNSUPPORTED with a reason in the log, never NULL entries.
 */
#ifndef GANTRY_DEVICE_DEVICE_H
#define GANTRY_DEVICE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device/kernels.h"
#include "gantry/device.h"
#include "gantry/fifo.h"
#include "gantry/result.h"

struct gantry_dev_event;

/* Where a pointer leads. */
enum gantry_mem_kind {
	GANTRY_MEM_PAGEABLE, /* plain host memory; a GPU cannot read it */
	GANTRY_MEM_HOST,     /* host memory that this device reads and writes */
	GANTRY_MEM_DEVICE,   /* memory of the device */
};
struct gantry_mem_info {
	enum gantry_mem_kind kind;
	int device;	  /* index of the GPU, -1 for host memory */
	void *device_ptr; /* the same place as kernels address it; NULL if they cannot */
	void *base;	  /* of the allocation, if known, else NULL */
	size_t size;	  /* of the allocation, if known, else 0 */
	int exportable;	  /* ipc_export would work */
};

/* An allocation of another process. Plain bytes: travels over the bootstrap network. */
enum { GANTRY_IPC_HANDLE_SIZE = 96 };
struct gantry_ipc_handle {
	unsigned char bytes[GANTRY_IPC_HANDLE_SIZE];
};

struct gantry_help;
struct gantry_failure;

struct gantry_launch {
	const struct gantry_kernel *kernel;
	uint32_t blocks;  /* all of them run at the same time, unless they do not wait for each other (kernels.def) */
	uint32_t lanes;	  /* per block; 0: the kernel's default on this device (host: 1) */
	const void *args; /* the kernel's argument struct, copied */
	size_t args_size;
	const uint32_t *abort; /* borrowed, device-visible: nonzero ends every wait of the kernel; NULL: none */
	struct gantry_eventcount
		*eventcounts; /* borrowed: eventcounts[b] is what block b sleeps on; NULL: it only spins and yields */
	const struct gantry_help *help; /* borrowed; used by CPU threads; NULL: none */
	int yields; /* CPU threads: what a block waits for may need this CPU, so it yields instead of spinning */
	struct gantry_failure *failure; /* borrowed: what holds the stream if the kernel fails; NULL: nothing */
};

/* `count` rows of `width` bytes each. A stride is at least the width, and less than 2 GiB. */
struct gantry_rows {
	uint8_t *dst;
	const uint8_t *src;
	size_t dst_stride, src_stride;
	size_t width, count;
};

enum gantry_copy_queue {
	GANTRY_COPY_IN,
	GANTRY_COPY_OUT,
	GANTRY_COPY_QUEUES
}; /* to the device, also within it; from it */

struct gantry_device_ops {
	void (*close)(struct gantry_device *dev);
#define OP(name, params) gantry_result(*name) params;
#include "device/ops.def"
};

/* What all devices of a kind have in common: what the layers above ask for in place of its name, peers' too. */
struct gantry_device_traits {
	bool cpu_reads_memory; /* device memory is host memory: the CPU reads and writes it */
	bool needs_own_copy;   /* host memory is far from its kernels: what they read often is copied to the device */
	bool calls_may_wait;   /* getting and returning memory may wait for kernels that run */
	bool has_own_clock;    /* times that kernels take are not the CPU's */
	bool ll128_host;       /* its kernels see a line of host memory in order */
	bool link_per_channel; /* its kernels keep more threads of a network busy than one connection can */
	int channels;	       /* of a communicator, where no parameter says how many */
	uint32_t p2p_step, net_step, coll_step; /* bytes of a step of these transports and of collectives, the same */
	/* Where dmabuf is 0: the reason, and what would help. */
	const char *dmabuf_why, *dmabuf_help;
};
const struct gantry_device_traits *gantry_traits_of_kind(int kind); /* never NULL: an unknown kind has none */

struct gantry_device {
	const struct gantry_device_ops *ops; /* borrowed, const */
	enum gantry_device_kind kind;
	int index;     /* GPU number, 0 for the host */
	int numa_node; /* -1: unknown */
	char name[64];
	char bus_id[24]; /* "0000:3b:00.0", "" for the host: same GPU in two processes <=> same bus_id */
	int flushes;	 /* flush_remote_writes has something to do: the CPU asks for it after each write of a NIC's */
	int dmabuf;	 /* dmabuf_export works for its memory, as far as the driver says */
	int reports; /* its streams return the error of a kernel that failed (failure.h); 0: such a kernel does not end,
			  * and neither does its stream get on, until the launch's abort flag is set */
	int sleeps;  /* kernels sleep on eventcounts and notify them (host); 0: they only spin (GPU) */
	int ll128_local; /* a line is seen in order between kernels of this device (and through shared memory on a host)
			  */
	uint32_t max_blocks; /* that run at the same time */
	uint32_t default_lanes;
};

static inline const struct gantry_device_traits *gantry_traits(const struct gantry_device *dev)
{
	return gantry_traits_of_kind((int)dev->kind);
}

/*
 * Which launch unpacks a list: its kernel, blocks and lanes (unpack_launch.c). Both kernels unpack any list whatever the
 * launch; this is about time only.
 */
enum gantry_unpack_room {
	GANTRY_UNPACK_WHOLE,  /* the launch has the device for itself; descriptors are in device memory */
	GANTRY_UNPACK_BESIDE, /* beside what the program runs; descriptors are in mapped memory */
};

/* n fragments with `bytes` in all. Sets kernel, blocks and lanes of *l and nothing else. */
void gantry_unpack_launch_shape(const struct gantry_device *dev, enum gantry_unpack_room room, uint64_t n,
				uint64_t bytes, struct gantry_launch *l);

/* Until the fence is reached: spins, then yields. ERR_TIMEOUT after ten seconds: copies take microseconds. */
gantry_result gantry_fence_await(struct gantry_device *dev, enum gantry_copy_queue queue, uint64_t fence);

/* One object per process and device, shared and counted. */
gantry_result gantry_device_host(struct gantry_device **ret_dev);
gantry_result gantry_device_cuda(int index, struct gantry_device **ret_dev);
gantry_result gantry_device_hip(int index, struct gantry_device **ret_dev);
/* The GPU that is current in the calling thread; the host device where there is no driver or no GPU is current. */
gantry_result gantry_device_current(struct gantry_device **ret_dev);
/* GPUs that this process sees and that do not, by the driver's word, address memory of `dev`, or `dev` theirs: the hash of
 * each one's bus id. Returns how many; 0 for the host device. */
int gantry_device_apart(const struct gantry_device *dev, uint32_t *ret_hashes, int most);
uint32_t gantry_bus_hash(const char *bus_id); /* never 0 */
/* How many GPUs the driver shows; 0 with the reason in `why` when there is no driver. */
int gantry_device_cuda_count(char *why, size_t len);
int gantry_device_hip_count(char *why, size_t len);
/* Whether all GPUs let network cards reach memory that the program maps itself: NCCL makes windows of such memory once there
 * is a GIN plugin. false: the reason is in `why`. */
bool gantry_device_cuda_offers_windows(char *why, size_t len);

#endif
