/* primeknet_load.h: from parameters as they are published to packed ones, for a device. */
#ifndef KR_PRIMEKNET_LOAD_H
#define KR_PRIMEKNET_LOAD_H

#include "primeknet_packed.h"

int32_t pk_load_packed(kr_primeknet *m);
void pk_storage_free(struct pk_chunk **storage);

#endif
