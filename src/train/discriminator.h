/* discriminator.h: the metric discriminator of MetricGAN (Fu et al. 2019) as in PrimeKnet's training, as calls of a
 * graph: four convolutions with spectral norm, instance norm and PReLU, a max pool over each channel, two linear
 * layers, a sigmoid. */
#ifndef KR_DISCRIMINATOR_H
#define KR_DISCRIMINATOR_H

#include "graph.h"

enum { KR_DISC_NORMS = 6, KR_DISC_WIDTH = 64 };
extern const int kr_disc_layers[KR_DISC_NORMS];  /* 0, 3, 6, 9, 14, 17: layers with spectral norm */
int64_t kr_disc_outputs(int norm);               /* the length of u */
int64_t kr_disc_inputs(int norm);                /* of v */

typedef struct kr_disc {
  kr_tensor reference, judged; /* (B,F,T): the magnitudes that it compares */
  kr_tensor dropout;           /* (B,64): factors after the first layer; 0: none */
  kr_tensor u[KR_DISC_NORMS];  /* input: before; output: after one step of the power iteration */
  kr_tensor v[KR_DISC_NORMS], sigma[KR_DISC_NORMS]; /* given (to be written), or 0: created */
  kr_tensor score;             /* (B): made */
} kr_disc;

typedef kr_tensor kr_disc_parameter_fn(void *user, kr_graph *g, const char *name, kr_dims dims);
void kr_disc_record(kr_graph *g, kr_disc_parameter_fn *parameter, void *user, kr_disc *d);

#endif
