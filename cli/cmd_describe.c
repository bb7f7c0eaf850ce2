/* cmd_describe.c: krait describe: asks a model about a video, streams the answer, and shows which frames it saw. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <krait/vision.h>

#include "args.h"
#include "cmd.h"
#include "inputs.h"
#include "interrupt.h"
#include "output.h"
#include "decode_loop.h"

typedef struct settings {
  const char *weights, *tokenizer, *frames;
  cli_telling telling;
  int as_json, force;
  cli_run run;
} settings;

/* One video, one question, and their results. */
typedef struct work {
  const settings *s;
  const char *path, *question;
  krait_describer *describer;
  krait_video_info film;
  cli_decoding story;
} work;

/* ---- results ---- */

static void print_describe_rates(const work *w) {
  const cli_decoding *o = &w->story;
  const double seconds = o->end_s - o->read_s;
  FILE *err = cli_err();
  fflush(stdout); /* the text comes before the rates when both go to the same place */
  fprintf(err, "used %d of %lld frames", w->film.n, (long long)w->film.n_frames);
  if (w->film.n < KRAIT_FILM_FRAMES) fprintf(err, " and %d black ones as padding", KRAIT_FILM_FRAMES - w->film.n);
  fprintf(err,
          " (decoding %.3f s, towers %.3f s); prompt: %lld tokens in %.3f s; time to first token %.3f s; generated "
          "%lld in %.3f s (%.1f/s)\n",
          w->film.decode_s, w->film.encode_s, (long long)o->n_read, o->read_s - o->start_s,
          o->first_s - o->start_s + w->film.encode_s, (long long)o->n_drawn, seconds,
          seconds > 0 ? (double)o->n_drawn / seconds : 0);
}

static json_t *film_json(const krait_video_info *f) {
  json_t *at = json_array(), *scores = json_array(), *chosen = json_array();
  for (int i = 0; i < f->n; i++) {
    json_array_append_new(at, json_integer((json_int_t)f->at[i]));
    json_array_append_new(scores, cli_json_real(f->score[i]));
  }
  for (int i = 0; i < KRAIT_FILM_CHOSEN; i++)
    json_array_append_new(chosen, f->chosen[i] < f->n ? json_integer((json_int_t)f->at[f->chosen[i]]) : json_null());
  return json_pack("{s:I, s:o, s:o, s:o, s:o}", "frames", (json_int_t)f->n_frames, "fps", cli_json_real(f->fps), "at",
                   at, "scores", scores, "chosen", chosen);
}

static int print_description_json(const work *w) {
  const cli_decoding *o = &w->story;
  json_t *report = json_pack(
      "{s:o, s:o, s:o, s:I, s:I, s:s, s:o, s:o, s:o, s:o}", "film", film_json(&w->film), "question",
      cli_json_text(w->question), "answer", cli_json_bytes(o->text, o->n_text), "prompt_tokens",
      (json_int_t)o->n_read, "tokens", (json_int_t)o->n_drawn, "stop_reason", o->reason, "decode_s",
      cli_json_real(w->film.decode_s), "towers_s", cli_json_real(w->film.encode_s), "first_token_s",
      cli_json_real(o->first_s - o->start_s + w->film.encode_s), "generate_s", cli_json_real(o->end_s - o->read_s));
  if (report) cli_json_set_name(report, "path", w->path);
  return cli_print_json("describe", report, JSON_COMPACT | JSON_REAL_PRECISION(9)) != 0;
}

/* ---- the work ---- */

static int answer(work *w) {
  const settings *s = w->s;
  cli_decoding *o = &w->story;
  const krait_lm_sampling sampling = cli_telling_sampling(&s->telling);
  int32_t status = krait_describer_load(w->describer, w->path, &w->film);
  if (status >= 0 && s->frames) status = krait_describer_contact_sheet(w->describer, s->frames);
  o->start_s = cli_now_s();
  if (status >= 0) status = krait_describer_ask(w->describer, w->question, &sampling, &o->session);
  if (status < 0) return cli_report_call("describe", status, krait_error_detail());
  o->n_read = krait_lm_n_tokens(o->session);
  o->reason = s->telling.n == 0 ? "length" : NULL;
  o->read_s = o->first_s = o->end_s = cli_now_s();
  if (s->as_json) cli_let_interrupt_ask(); /* what was generated until then is printed */
  const int exit_status = cli_decode_text("describe", &s->telling, o, !s->as_json);
  if (exit_status >= 0) return exit_status;
  if (s->as_json && print_description_json(w) != 0) return 1;
  if (cli_is_asked_to_stop()) {
    fprintf(cli_err(), "krait describe: stopped; the text generated so far has been printed\n");
    return 130;
  }
  if (s->as_json) return 0;
  if (o->n_text == 0 || o->text[o->n_text - 1] != '\n') putchar('\n');
  if (!cli_is_quiet() && !ferror(stdout)) print_describe_rates(w);
  return 0;
}

static int run_describe(work *w) {
  krait_ctx *ctx = NULL;
  int exit_status = cli_run_open_ctx("describe", &w->s->run, &ctx);
  if (exit_status >= 0) return exit_status;
  const krait_describer_options options = {
      .size = sizeof options, .path = w->s->weights, .tokenizer_path = w->s->tokenizer};
  const int32_t status = krait_describer_open(ctx, &options, &w->describer);
  exit_status = status < 0 ? cli_report("describe", status) + 1 : answer(w);
  krait_lm_session_close(&w->story.session);
  krait_describer_close(&w->describer);
  krait_ctx_close(&ctx);
  free(w->story.text);
  return exit_status;
}

int cmd_describe(int argc, char **argv) {
  int first;
  settings s = {.telling = {CLI_TELLING_UNSET}};
  const cli_option options[] = {
      CLI_TEXT("weights", 'w', "DIR", &s.weights, "folder of Mobile-VideoGPT: config.json, weights, tokenizer.json"),
      CLI_TEXT("frames", 0, "PNG", &s.frames,
               "write the frames used as a contact sheet; those that the video tower saw have an orange border"),
      CLI_SWITCH("force", 'f', &s.force, "replace the file of --frames if it exists"),
      CLI_TELLING_OPTIONS(&s.telling, "", "1024"),
      CLI_TEXT("tokenizer", 0, "FILE", &s.tokenizer,
               "tokenizer.json or its folder (default: the one beside the weights)"),
      CLI_SWITCH("json", 0, &s.as_json, "print a JSON object at the end, with the frames and their scores"),
      CLI_RUN_OPTIONS(&s.run),
  };
  const cli_verb verb = {"describe",
                         "VIDEO|IMAGE [QUESTION]",
                         "Answers a question about a video (default: \"Describe this video.\") with Mobile-VideoGPT. "
                         "Uses one frame per second, at most 16, spread evenly. The answer is printed as it is "
                         "generated, rates on standard error. Needs the program ffmpeg.",
                         options,
                         CLI_N(options),
                         1,
                         -1,
                         "krait describe film.mp4 \"What happens?\" -w Mobile-VideoGPT-0.5B"};
  int exit_status = cli_args_read(&verb, argc, argv, &first);
  if (exit_status >= 0) return exit_status;
  if (argc - first > 2)
    return cli_usage_error(verb.name, "unexpected '%s' after the question '%s': put the whole question in quotes",
                           argv[first + 2], argv[first + 1]);
  if (!s.weights)
    return cli_usage_error(verb.name, "--weights is missing: give the folder with Mobile-VideoGPT's weights");
  const char *const read_too[] = {s.weights, s.tokenizer};
  const cli_outputs_rule rule = {
      .verb = verb.name, .read_too = read_too, .n_read_too = 2, .model = s.weights, .force = s.force};
  if (s.frames && (exit_status = cli_output_check(&rule, argv[first], s.frames)) >= 0) return exit_status;
  if (s.frames && (exit_status = cli_png_check(verb.name, "frames", s.frames)) >= 0) return exit_status;
  cli_telling_fill(&s.telling, NULL, 1024);
  cli_catch_signals(verb.name, "");
  work w = {.s = &s,
            .path = argv[first],
            .question = argc - first > 1 ? argv[first + 1] : "Describe this video.",
            .film.size = sizeof w.film};
  return run_describe(&w);
}
