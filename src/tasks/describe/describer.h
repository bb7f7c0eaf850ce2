/* describer.h: a contact sheet of a video's frames. */
#ifndef KR_DESCRIBER_H
#define KR_DESCRIBER_H

#include <krait/vision.h>

/* frames (KRAIT_FILM_FRAMES, side, side, 3) bytes. */
int32_t kr_describer_draw(const krait_video_info *film, const uint8_t *frames, int64_t side, const char *png_path);

#endif
