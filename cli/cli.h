/* SPDX-License-Identifier: Apache-2.0 */
/*
** What the commands of the program share: options, messages, exit codes.
**
** A command parses its options into texts, turns the texts into the library's structs, calls
** the library and shows the result. Exit codes: 0; 1 for what failed (an infeasible plan, a
** full disk); 2 for what was asked wrongly. One sentence on stderr says which.
*/
#ifndef CLI_H
#define CLI_H

#include <stdbool.h>
#include <stdio.h>

#include <jansson.h>

#include <knapformer.h>

enum { EXIT_FAILED = 1, EXIT_MISUSE = 2 };

/* ------------------------------------------------------------- option.c: reading */

/* The values of an option that may be given several times, in their order. */
enum { CLI_MAX_LIST = 64 };
typedef struct cli_list {
  const char *value[CLI_MAX_LIST];
  int n;
} cli_list;

/*
** "--name VALUE" or "--name=VALUE" sets a text, a whole number or a real one, or goes into a list;
** an option without a value sets a flag. What is not given stays as it was. The option of no name
** gets the argument that belongs to no option; there may be one.
*/
typedef struct cli_option {
  const char *name;
  const char **text; /* one of these five */
  bool *flag;
  cli_list *list;
  int64_t *whole, min, max;
  double *real, least, most;
} cli_option;

/*
** Parse everything after the command; then read the numbers, in the order of the table. `command`
** ("plan", "bench plan") is for messages, `help` is what --help prints. Returns -1 to go on, or an
** exit code to stop with.
*/
int cli_parse(const char *command, const char *help, char **argv, const cli_option *options,
              int n_options);

/* The number that an option gave; text NULL: it did not, and *out stays. They say what is wrong on
** stderr and return false. */
bool cli_int(const char *command, const char *option, const char *text, int64_t min, int64_t max,
             int64_t *out);
bool cli_real(const char *command, const char *option, const char *text, double min, double max,
              double *out);

/* "knapformer COMMAND: sentence" on stderr; returns `code`. */
#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
int
cli_fail(int code, const char *command, const char *format, ...);

/* 0 if a call of the library succeeded; else an exit code, after saying what failed. `option` is
** what the user gave, or NULL. */
int cli_exit_code(kf_status status, const char *command, const char *option);

/* The whole of a file, or of standard input if `path` is "-"; free() *out. 0, or an exit code after
** saying why; `option` is what the user gave it by, or NULL. */
int cli_read_file(const char *command, const char *option, const char *path, char **out,
                  size_t *n_bytes);

/* How that file is called in messages and tables. */
const char *cli_file_name(const char *path);

/* What an option named, and which: a file. */
typedef struct cli_file {
  const char *option, *path; /* path NULL: not given */
  bool is_written;           /* so "-" is no file */
} cli_file;

/* Is a file named twice, by whatever name? It would be read twice, or written over. 0, or an exit
** code after saying so. */
int cli_check_files(const char *command, const cli_file *file, int n);

/* Write a text that an option asked for into the file it named, over what is there, and free it. 0,
** or an exit code after saying why. */
int cli_write_file(const char *command, const char *option, const char *path, char *text);

/* Show an object that json_pack has made, or NULL for want of memory, and free it. 0, or an exit
** code after saying why. */
int cli_print_json(const char *command, json_t *object, int digits);

/* Close stdout and see that all of it was written: a full disk must not look like success. */
int cli_close_stdout(const char *command);

/* ------------------------------------------------------ configure.c: what a user configures */

/* A key of the configuration that an option gave; value NULL: it did not. */
typedef struct cli_key {
  const char *name, *value;
} cli_key;

typedef struct cli_configuration {
  const char *option, *file; /* "--config", and FILE or -; NULL: none */
  const cli_list *set;       /* --set KEY=VALUE */
  const cli_key *key;
  int n_keys;
  bool on_ranks; /* of an MPI launcher: standard input reaches the first one only */
} cli_configuration;

/* Returns 0, or an exit code after saying what is wrong. */
int cli_configure(const char *command, const cli_configuration *asked, kf_config *config);

/* When all steps are done: end the files of a configuration and save the state, both in any
** case. */
int cli_end_files(const char *command, kf_outputs *outputs, const kf_scheduler *scheduler,
                  const char *state_file);

/* A kf_log_fn: lines on stderr. `user` is the command's name. */
void cli_log(void *user, kf_log_level level, const char *line);

/* --------------------------------------------------------- environment.c: which rank */

/* What torchrun, mpirun (Open MPI), mpiexec (MPICH, Intel) or srun says of this process. */
typedef struct cli_ranks {
  int32_t rank, n_ranks;
  int32_t local_rank;   /* among those of this node; -1: not known */
  const char *launcher; /* for messages; NULL: none, this is rank 0 of 1 */
} cli_ranks;

/* 0, or an exit code after saying which variable of the environment is wrong. */
int cli_find_ranks(const char *command, cli_ranks *out);

/* Is this process one of the ranks of an MPI launcher (not torchrun), whatever its variables
** say? */
bool cli_mpi_rank(void);

/* -------------------------------------------------------------- launch.c: the ranks */

/* Is this process a rank that an MPI launcher (mpirun, mpiexec, srun) has started? */
bool cli_launched(void);

/* Was it built with an MPI whose launcher can start ranks? */
bool cli_can_launch(void);

/* Start this program again as n ranks, with the command and its arguments, in place of this
** process; also as root, and with more ranks than cores. Returns only if that failed: an exit code,
** after saying why. */
int cli_launch(const char *command, int32_t n_ranks, char **argv);

/* A call on `comm` failed, as it then does on all ranks: one of them says why, all return 1. */
int cli_fail_rank(const char *command, const kf_comm *comm);

/* ------------------------------------------------------------ view_plan.c: the terminal */

/* What the user and the locale let a terminal show, and how many cells each bar in a row has. */
typedef struct cli_screen {
  bool colour, unicode;
  int bar;
} cli_screen;

/* With bars of 8 to `most` cells, 60 at the most; `bar` if it is in between. */
cli_screen cli_screen_of(int bar, int most);

/* Of standard output, colour on a terminal only; for rows of two bars whose text takes
** `n_columns`. */
cli_screen cli_screen_of_stdout(int n_columns);

/* A bar of compute and communication, `top` of which would fill all cells; where it ends short of
** the ideal, a mark shows how far, and what lies beyond it is red. */
void cli_print_bar(double compute, double comm, double ideal, double top, const cli_screen *s);

/* Three or four digits, in the unit that suits: "104.8 ms". Returns `out`. */
const char *cli_seconds(double s, char out[32]);

/* What `plan` shows besides the plan. */
typedef struct cli_view {
  const char *data, *model, *cluster, *bags; /* as the user said it */
  double gamma;
  int32_t ranks_per_node;
  double solve_us;
} cli_view;

void cli_view_plan(const kf_plan *plan, const cli_view *view);

/* ---------------------------------------------------------------- the commands */

/* argv begins after the command's name and ends with NULL; all return an exit code. */
int cli_plan(char **argv);
int cli_fit(char **argv);
int cli_bucket(char **argv);
int cli_bench(char **argv);
int cli_config(char **argv);
int cli_sim(char **argv);
int cli_train(char **argv);

/* Wall time, for what the commands report. */
double cli_now_us(void);

#endif
