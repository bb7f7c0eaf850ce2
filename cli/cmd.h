/* cmd.h: the verbs. Each gets its own name as argv[0] and returns the exit status: 0 success, 1 the answer is no or the
 * work failed, 2 usage error or it could not run. */
#ifndef CLI_CMD_H
#define CLI_CMD_H
int cmd_bench(int argc, char **argv);
int cmd_chat(int argc, char **argv);
int cmd_classify(int argc, char **argv);
int cmd_convert(int argc, char **argv);
int cmd_describe(int argc, char **argv);
int cmd_restore(int argc, char **argv);
int cmd_enhance(int argc, char **argv);
int cmd_evaluate(int argc, char **argv);
int cmd_generate(int argc, char **argv);
int cmd_info(int argc, char **argv);
int cmd_devices(int argc, char **argv);
int cmd_warm(int argc, char **argv);
int cmd_doctor(int argc, char **argv);
int cmd_live(int argc, char **argv);
int cmd_score(int argc, char **argv);
int cmd_selftest(int argc, char **argv);
int cmd_train(int argc, char **argv);
int cmd_verify(int argc, char **argv);
int cmd_version(int argc, char **argv);
#endif
