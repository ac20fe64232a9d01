/*
 * Forms of the unpack kernel that `perf unpack --tune` compares, with the whole GPU: what docs/design/0007 could not
 * decide by arithmetic. The one that wins becomes dev_unpack_many (cuda/dev_unpack.h); then this, k_unpack_tune.h and
 * cuda/dev_unpack_tune.h go.
 *
 * X(NAME, text, kernel, lanes, blocks per multiprocessor). In the text: items x rounds / batch, and what else.
 */
#ifndef GANTRY_DEVICE_UNPACK_FORMS_H
#define GANTRY_DEVICE_UNPACK_FORMS_H

#define GANTRY_UNPACK_FORMS(X)                                                                                         \
	X(FEW, "3x4/8", UNPACK_TUNE, 512, 1)                                                                           \
	X(FEW_STREAM, "3x4/4 stream", UNPACK_TUNE, 512, 1)                                                             \
	X(PLAIN, "2x4/4", UNPACK_TUNE, 512, 1)                                                                         \
	X(MANY, "2x4/4 stream", UNPACK_TUNE, 512, 1)                                                                   \
	X(MANY_384, "2x4/4 stream, 384 lanes", UNPACK_TUNE, 384, 1)                                                    \
	X(MANY_256, "2x4/4 stream, 256 lanes", UNPACK_TUNE, 256, 1)                                                    \
	X(MANY_8, "2x4/8 stream", UNPACK_TUNE, 512, 1)                                                                 \
	X(MANY_1, "1x4/4 stream", UNPACK_TUNE, 512, 1)                                                                 \
	X(SECTORS, "2x4/4 stream, sectors", UNPACK_TUNE, 512, 1)                                                       \
	X(TICKETS, "2x4/4 stream, tickets", UNPACK_TUNE, 512, 1)                                                       \
	X(BOTH, "2x4/4 stream, sectors, tickets", UNPACK_TUNE, 512, 1)                                                 \
	X(TWIN, "1x4/4 stream, 2 blocks", UNPACK_TUNE2, 512, 2)                                                        \
	X(BULK, "bulk copies", UNPACK_TUNE2, 256, 1)                                                                   \
	X(BULK_2, "bulk copies, 2 blocks", UNPACK_TUNE2, 256, 2)                                                       \
	X(BULK_4, "bulk copies, 4 blocks", UNPACK_TUNE2, 256, 4)

enum gantry_unpack_form {
#define X(NAME, text, kernel, lanes, blocks) GANTRY_UNPACK_FORM_##NAME,
	GANTRY_UNPACK_FORMS(X)
#undef X
		GANTRY_UNPACK_FORM_COUNT
};

#endif
