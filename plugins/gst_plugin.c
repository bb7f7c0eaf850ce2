/* gst_plugin.c: the GStreamer element kraitdenoise. What comes out has the time stamps of what came in: the silence
 * that the model's latency puts first is dropped, and the rest is pushed at the end; a live pipeline is told the
 * latency. */
#include <gst/audio/audio.h>
#include <gst/gst.h>

#include "plug.h"

#define CAPS                                                                            \
  "audio/x-raw, format = (string) " GST_AUDIO_NE(F32) ", layout = (string) interleaved, " \
  "rate = (int) [ 8000, 192000 ], channels = (int) [ 1, 2 ]"

typedef struct GstKrait {
  GstElement element;
  GstPad *sink, *source;
  plug *plug;
  int n_channels, rate_hz;
  plug_controls controls;       /* as set; with the next two, which others read, under the object's lock */
  float speech;
  GstClockTime latency;         /* GST_CLOCK_TIME_NONE: no plug-in is open */
  guint64 n_in, n_out;          /* frames since the beginning */
  GstClockTime start;           /* of the first frame */
} GstKrait;
typedef struct GstKraitClass {
  GstElementClass parent;
} GstKraitClass;

static GType gst_krait_get_type(void);
G_DEFINE_TYPE(GstKrait, gst_krait, GST_TYPE_ELEMENT)

enum { PROPERTY_NONE, PROPERTY_MIX, PROPERTY_LIMIT, PROPERTY_GATE, PROPERTY_SPEECH };

/* ---- properties ---- */

static plug_controls read_controls(GstKrait *k) {
  GST_OBJECT_LOCK(k);
  const plug_controls controls = k->controls;
  GST_OBJECT_UNLOCK(k);
  return controls;
}

/* For other threads, which must not touch the plug-in; says so when the latency is another. */
static void publish_state(GstKrait *k) {
  const GstClockTime latency =
      k->plug ? gst_util_uint64_scale(plug_latency(k->plug), GST_SECOND, (guint64)k->rate_hz) : GST_CLOCK_TIME_NONE;
  GST_OBJECT_LOCK(k);
  const gboolean is_new = k->latency != latency;
  k->latency = latency, k->speech = k->plug ? plug_speech(k->plug) : 0;
  GST_OBJECT_UNLOCK(k);
  if (is_new && k->plug) gst_element_post_message(GST_ELEMENT(k), gst_message_new_latency(GST_OBJECT(k)));
}

static void set_property(GObject *object, guint id, const GValue *value, GParamSpec *spec) {
  GstKrait *k = (GstKrait *)object;
  (void)spec;
  GST_OBJECT_LOCK(k);
  *(id == PROPERTY_MIX ? &k->controls.mix : id == PROPERTY_LIMIT ? &k->controls.limit_db : &k->controls.gate) =
      g_value_get_float(value);
  GST_OBJECT_UNLOCK(k);
}

static void get_property(GObject *object, guint id, GValue *value, GParamSpec *spec) {
  GstKrait *k = (GstKrait *)object;
  (void)spec;
  GST_OBJECT_LOCK(k);
  g_value_set_float(value, id == PROPERTY_MIX     ? k->controls.mix
                           : id == PROPERTY_LIMIT ? k->controls.limit_db
                           : id == PROPERTY_GATE  ? k->controls.gate
                                                  : k->speech);
  GST_OBJECT_UNLOCK(k);
}

/* ---- sound ---- */

static void begin_sound(GstKrait *k) {
  const plug_controls controls = read_controls(k);
  if (k->plug) plug_begin(k->plug, &controls);
  k->n_in = k->n_out = 0, k->start = GST_CLOCK_TIME_NONE;
  publish_state(k);
}

static gboolean open_sound(GstKrait *k, const GstCaps *caps) {
  char why[1024];
  GstAudioInfo info;
  if (!gst_audio_info_from_caps(&info, caps)) return FALSE;
  plug_close(&k->plug);
  k->n_channels = info.channels, k->rate_hz = info.rate;
  k->plug = plug_open(k->n_channels, k->rate_hz, why);
  if (!k->plug) GST_ELEMENT_ERROR(k, LIBRARY, INIT, ("kraitdenoise: %s", why), (NULL));
  begin_sound(k);
  return k->plug != NULL;
}

/* Cleans n interleaved frames in place. */
static void clean_frames(GstKrait *k, float *frames, gsize n) {
  enum { MOST = 256 };
  float apart[PLUG_CHANNELS][MOST];
  float *const channels[] = {apart[0], apart[1]};
  const plug_controls controls = read_controls(k);
  for (gsize i = 0, some; i < n; i += some, frames += some * (gsize)k->n_channels) {
    some = n - i < MOST ? n - i : MOST;
    for (gsize f = 0; f < some; f++)
      for (int c = 0; c < k->n_channels; c++) apart[c][f] = frames[f * (gsize)k->n_channels + (gsize)c];
    plug_run(k->plug, &controls, (const float *const *)channels, channels, (uint32_t)some);
    for (gsize f = 0; f < some; f++)
      for (int c = 0; c < k->n_channels; c++) frames[f * (gsize)k->n_channels + (gsize)c] = apart[c][f];
  }
}

static GstClockTime time_of(const GstKrait *k, guint64 frame) {
  return k->start + gst_util_uint64_scale(frame, GST_SECOND, (guint64)k->rate_hz);
}

/* Cleans the buffer's frames, which become the next ones of the output, but for those before its beginning. */
static GstFlowReturn push_frames(GstKrait *k, GstBuffer *buffer, gsize n) {
  GstMapInfo map;
  const gsize each = (gsize)k->n_channels * sizeof(float);
  const guint64 latency = plug_latency(k->plug), early = k->n_in < latency ? MIN(latency - k->n_in, n) : 0;
  if (!gst_buffer_map(buffer, &map, GST_MAP_READWRITE)) return gst_buffer_unref(buffer), GST_FLOW_ERROR;
  clean_frames(k, (float *)(void *)map.data, n);
  gst_buffer_unmap(buffer, &map);
  publish_state(k);
  k->n_in += n;
  if (early == n) return gst_buffer_unref(buffer), GST_FLOW_OK;
  gst_buffer_resize(buffer, (gssize)(early * each), (gssize)((n - early) * each));
  if (GST_CLOCK_TIME_IS_VALID(k->start)) {
    GST_BUFFER_PTS(buffer) = time_of(k, k->n_out);
    GST_BUFFER_DURATION(buffer) = time_of(k, k->n_out + n - early) - GST_BUFFER_PTS(buffer);
  }
  GST_BUFFER_OFFSET(buffer) = k->n_out, GST_BUFFER_OFFSET_END(buffer) = k->n_out + n - early;
  if (k->n_out) GST_BUFFER_FLAG_UNSET(buffer, GST_BUFFER_FLAG_DISCONT);
  k->n_out += n - early;
  return gst_pad_push(k->source, buffer);
}

/* Silence in, so that the last frames come out. */
static GstFlowReturn drain_sound(GstKrait *k) {
  const gsize each = (gsize)k->n_channels * sizeof(float);
  const gsize n = k->plug && k->n_in ? MIN(k->n_in - k->n_out, plug_latency(k->plug)) : 0;
  GstFlowReturn flow = GST_FLOW_OK;
  if (!n) return flow;
  const guint64 early = plug_latency(k->plug) > k->n_in ? plug_latency(k->plug) - k->n_in : 0;
  GstBuffer *buffer = gst_buffer_new_allocate(NULL, (n + early) * each, NULL);
  gst_buffer_memset(buffer, 0, 0, (n + early) * each);
  flow = push_frames(k, buffer, n + early);
  begin_sound(k);
  return flow;
}

static GstFlowReturn take_buffer(GstPad *pad, GstObject *parent, GstBuffer *buffer) {
  GstKrait *k = (GstKrait *)parent;
  (void)pad;
  if (!k->plug) return gst_buffer_unref(buffer), GST_FLOW_NOT_NEGOTIATED;
  if (GST_BUFFER_IS_DISCONT(buffer) && k->n_in) { /* a gap: what is before it does not belong to what is after it */
    const GstFlowReturn flow = drain_sound(k);
    if (flow != GST_FLOW_OK) return gst_buffer_unref(buffer), flow;
  }
  if (!k->n_in) k->start = GST_BUFFER_PTS(buffer);
  const gsize n = gst_buffer_get_size(buffer) / ((gsize)k->n_channels * sizeof(float));
  return n ? push_frames(k, gst_buffer_make_writable(buffer), n) : gst_pad_push(k->source, buffer);
}

/* ---- events and queries ---- */

static gboolean take_event(GstPad *pad, GstObject *parent, GstEvent *event) {
  GstKrait *k = (GstKrait *)parent;
  GstCaps *caps;
  switch (GST_EVENT_TYPE(event)) {
    case GST_EVENT_CAPS:
      drain_sound(k);
      gst_event_parse_caps(event, &caps);
      if (!open_sound(k, caps)) return gst_event_unref(event), FALSE;
      break;
    case GST_EVENT_SEGMENT:
    case GST_EVENT_EOS: drain_sound(k); break;
    case GST_EVENT_FLUSH_STOP: begin_sound(k); break;
    default: break;
  }
  return gst_pad_event_default(pad, parent, event);
}

static gboolean answer_query(GstPad *pad, GstObject *parent, GstQuery *query) {
  GstKrait *k = (GstKrait *)parent;
  gboolean is_live;
  GstClockTime least, most;
  GST_OBJECT_LOCK(k);
  const GstClockTime own = k->latency;
  GST_OBJECT_UNLOCK(k);
  if (GST_QUERY_TYPE(query) != GST_QUERY_LATENCY || !GST_CLOCK_TIME_IS_VALID(own))
    return gst_pad_query_default(pad, parent, query);
  if (!gst_pad_peer_query(k->sink, query)) return FALSE;
  gst_query_parse_latency(query, &is_live, &least, &most);
  gst_query_set_latency(query, is_live, least + own, GST_CLOCK_TIME_IS_VALID(most) ? most + own : most);
  return TRUE;
}

/* ---- the class ---- */

/* A stopped pipeline begins anew. */
static GstStateChangeReturn change_state(GstElement *element, GstStateChange change) {
  const GstStateChangeReturn done = GST_ELEMENT_CLASS(gst_krait_parent_class)->change_state(element, change);
  if (change == GST_STATE_CHANGE_PAUSED_TO_READY) begin_sound((GstKrait *)element);
  return done;
}

static void finalize_krait(GObject *object) {
  plug_close(&((GstKrait *)object)->plug);
  G_OBJECT_CLASS(gst_krait_parent_class)->finalize(object);
}

static void install_control(GObjectClass *class, guint id, const char *name, const char *what, float most,
                            float value) {
  const GParamFlags how = id == PROPERTY_SPEECH ? G_PARAM_READABLE : G_PARAM_READWRITE | GST_PARAM_CONTROLLABLE;
  g_object_class_install_property(class, id,
                                  g_param_spec_float(name, name, what, 0, most, value, how | G_PARAM_STATIC_STRINGS));
}

static void gst_krait_class_init(GstKraitClass *class) {
  static GstStaticPadTemplate sink =
                                  GST_STATIC_PAD_TEMPLATE("sink", GST_PAD_SINK, GST_PAD_ALWAYS, GST_STATIC_CAPS(CAPS)),
                              source =
                                  GST_STATIC_PAD_TEMPLATE("src", GST_PAD_SRC, GST_PAD_ALWAYS, GST_STATIC_CAPS(CAPS));
  GObjectClass *object = G_OBJECT_CLASS(class);
  object->set_property = set_property, object->get_property = get_property, object->finalize = finalize_krait;
  GST_ELEMENT_CLASS(class)->change_state = change_state;
  install_control(object, PROPERTY_MIX, "mix", "How much of the output is cleaned", 1, 1);
  install_control(object, PROPERTY_LIMIT, "limit", "Attenuate by at most this, in dB; 60: without a limit",
                  PLUG_NO_LIMIT, PLUG_NO_LIMIT);
  install_control(object, PROPERTY_GATE, "gate", "Silence while speech is less probable than this; 0: never", 1, 0);
  install_control(object, PROPERTY_SPEECH, "speech", "How probable speech is", 1, 0);
  gst_element_class_add_static_pad_template(GST_ELEMENT_CLASS(class), &sink);
  gst_element_class_add_static_pad_template(GST_ELEMENT_CLASS(class), &source);
  gst_element_class_set_static_metadata(GST_ELEMENT_CLASS(class), "Krait speech denoiser", "Filter/Effect/Audio",
                                        "Removes noise from speech with a streaming neural network", "krait");
}

static void gst_krait_init(GstKrait *k) {
  GstElementClass *class = GST_ELEMENT_GET_CLASS(k);
  k->sink = gst_pad_new_from_template(gst_element_class_get_pad_template(class, "sink"), "sink");
  k->source = gst_pad_new_from_template(gst_element_class_get_pad_template(class, "src"), "src");
  gst_pad_set_chain_function(k->sink, take_buffer);
  gst_pad_set_event_function(k->sink, take_event);
  gst_pad_set_query_function(k->source, answer_query);
  GST_PAD_SET_PROXY_CAPS(k->sink), GST_PAD_SET_PROXY_CAPS(k->source);
  gst_element_add_pad(GST_ELEMENT(k), k->sink), gst_element_add_pad(GST_ELEMENT(k), k->source);
  k->controls = (plug_controls){1, PLUG_NO_LIMIT, 0}, k->start = k->latency = GST_CLOCK_TIME_NONE;
}

static gboolean register_krait(GstPlugin *plugin) {
  return gst_element_register(plugin, "kraitdenoise", GST_RANK_NONE, gst_krait_get_type());
}

#define PACKAGE "krait"
GST_PLUGIN_DEFINE(GST_VERSION_MAJOR, GST_VERSION_MINOR, krait, "Krait speech denoiser", register_krait, KRAIT_VERSION,
                  "Apache 2.0", "krait", "urn:krait")
