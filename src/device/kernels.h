/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels and sets of them. A set is compiled for CPU threads, and for each vendor's GPUs into an image that is
 * embedded beside that: a fatbin by nvcc, a bundle of code objects by hipcc. It registers itself when the program or library that holds it is loaded, before any device is opened. A
 * kernel is named by the address of its record, so a program holds the sets that it launches kernels of and no others:
 * the plugin none, libgantry.so the product's, the tool the benchmarks' as well.
 */
#ifndef GANTRY_DEVICE_KERNELS_H
#define GANTRY_DEVICE_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { GANTRY_KERNELS_MAX = 32 }; /* in all sets of a program */

struct gantry_kernel {
	const char *name;
	void (*body)(const void *args); /* on CPU threads */
	size_t args_size;
	uint32_t lanes;	 /* of a block on a GPU, at most and by default */
	bool together;	 /* blocks wait for each other */
	uint32_t number; /* among all of the program, once registered */
};

struct gantry_kernel_set {
	struct gantry_kernel_set *next;
	const char *name;
	struct gantry_kernel *const *kernels;
	uint32_t n;
	const unsigned char *fatbin, *fatbin_end;	/* NULL: built without nvcc */
	const unsigned char *hip_image, *hip_image_end; /* NULL: built without hipcc */
};

extern struct gantry_kernel_set *gantry_kernel_sets; /* all that are registered; constant once main runs */
void gantry_kernels_register(struct gantry_kernel_set *set);

#define KERNEL(name, args, most, wait) extern struct gantry_kernel gantry_kernel_##name;
#include "device/kernels.def"
#undef KERNEL

#endif
