"""Writes a C program that calls every function of the public headers with nothing: all arguments zero, and again with a context, model and session that exist and
the rest zero. Each call runs in a child; one that dies fails the test. Usage: make_null_calls.py INCLUDE-FOLDER OUT.c"""
import pathlib
import re
import sys

include, out = pathlib.Path(sys.argv[1]), sys.argv[2]
headers = sorted(p.name for p in include.glob("*.h"))
text = "\n".join(re.sub(r"/\*.*?\*/", "", (include / name).read_text(), flags=re.S) for name in headers)
text = re.sub(r"^#.*$", "", text, flags=re.M)
functions = re.findall(r"KRAIT_API\s+([\w\s\*]+?)\b(krait_\w+)\(((?:[^();]|\([^()]*\))*)\)\s*;", text)
assert len(functions) > 60 and len(functions) == len(re.findall(r"\bKRAIT_API\s+\w", text)), len(functions)
FEW = {"n_cases": "1", "budget_s": "0.001"}  # else a self-test of a minute


def arguments(parameters):
    return [p.strip() for p in re.split(r",(?![^(]*\))", parameters) if p.strip() != "void"]


def value(parameter, objects):
    name = re.search(r"(\w+)$", re.sub(r"\(\*(\w+)\).*", r"\1", parameter, flags=re.S)).group(1)
    for kind in ("ctx", "model", "session"):
        if objects and re.match(rf"(const )?krait_{kind} \*\w+$", parameter):
            return kind
    return FEW.get(name, "0")


calls = []
for _, name, parameters in functions:
    for objects in (False, True):
        values = [value(p, objects) for p in arguments(parameters)]
        if not objects or any(v in ("ctx", "model", "session") for v in values):
            calls.append((name, f"(void){name}({', '.join(values)});"))

body = "\n".join(f"    case {i}: {call} break;" for i, (_, call) in enumerate(calls))
names = ",\n".join(f'  "{call[6:-1]}"' for _, call in calls)
pathlib.Path(out).write_text(f"""/* Made by tests/api/make_null_calls.py. */
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
{"".join(f'#include <krait/{h}>{chr(10)}' for h in headers)}
static const char *const names[] = {{
{names}}};

static void call(int i, const krait_ctx *ctx, krait_model *model, krait_session *session) {{
  (void)ctx, (void)model, (void)session;
  switch (i) {{
{body}
    default: break;
  }}
}}

int main(void) {{
  krait_ctx *ctx = 0;
  krait_model *model = 0;
  krait_session *session = 0;
  const krait_ctx_options options = {{.size = sizeof options, .device = KRAIT_DEVICE_CPU, .n_threads = 1}};
  const int cannot = krait_ctx_open(&options, &ctx) != 0 || krait_model_open(ctx, 0, &model) != 0 || krait_session_open(model, &session) != 0;
  int n_failed = cannot;
  if (cannot) fprintf(stderr, "cannot begin: %s\\n", krait_error_detail());
  for (int i = 0; i < (int)(sizeof names / sizeof *names) && !cannot; i++) {{
    int status = 0;
    fflush(stderr);
    const pid_t child = fork();
    if (child == 0) {{
      alarm(60);
      call(i, ctx, model, session);
      _exit(0);
    }}
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {{
      fprintf(stderr, "%s: dies with status 0x%x\\n", names[i], status);
      n_failed++;
    }}
  }}
  krait_session_close(&session), krait_model_close(&model), krait_ctx_close(&ctx);
  fprintf(stderr, "%d calls, %d failures\\n", {len(calls)}, n_failed);
  return n_failed != 0;
}}
""")
